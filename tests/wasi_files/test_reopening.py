"""Open files come back under their numbers, or fail: never another file."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine.tiny import APP, FOLLOW, RIGHTS, Guest
from wasm_kernel.engine import abi

Making = Callable[[], Guest]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Making]:
    """Makes guests on one folder."""
    made: list[Guest] = []

    def one() -> Guest:
        made.append(Guest(tmp_path))
        return made[-1]

    yield one
    for guest in made:
        guest.close()


def restored(make: Making, guest: Guest) -> tuple[Guest, list[str | None]]:
    """A new guest with the open files of another, and the paths of those that are lost."""
    table = guest.files.opened()
    new = make()
    return new, [file.path for file in new.files.reopen(table)]


def read(guest: Guest, fd: int, length: int = 100) -> bytes | int:
    """The bytes read from a descriptor, or the error number."""
    reach = guest.instance.memory
    reach.write(64, struct.pack("<II", 65_536, length))
    errno = guest.call("fd_read", fd, 64, 1, 96)
    return errno or reach.read(65_536, reach.read_word(96))


def opened(guest: Guest, name: str, how: int = 0) -> int:
    errno, fd = guest.open(name, how)
    assert errno == abi.SUCCESS
    return fd


def test_a_file_goes_on_where_it_was_read_and_written(make: Making) -> None:
    guest = make()
    (guest.app / "f").write_text("hello world")
    fd, other = opened(guest, "f"), opened(guest, "f")
    made = opened(guest, "made", abi.O_CREAT)
    read(guest, fd, 6)
    read(guest, other, 9)
    guest.write(made, b"one ")
    new, lost = restored(make, guest)
    assert (read(new, fd), read(new, other), lost) == (b"world", b"ld", [])
    new.write(made, b"two")
    assert (new.app / "made").read_text() == "one two"


def test_appending_goes_on_appending(make: Making) -> None:
    guest = make()
    (guest.app / "f").write_text("one ")
    appending = 1
    path = guest.text("f")
    guest.call("path_open", APP, FOLLOW, *path, 0, RIGHTS, RIGHTS, appending, 64)
    fd = guest.instance.memory.read_word(64)
    new, _ = restored(make, guest)
    (guest.app / "f").write_text("longer than before ")
    new.write(fd, b"end")
    assert (new.app / "f").read_text() == "longer than before end"


def test_numbers_stay_with_gaps_between(make: Making) -> None:
    guest = make()
    names = [f"f{number}" for number in range(12)]
    for name in names:
        (guest.app / name).write_text(name)
    fds = [opened(guest, name) for name in names]
    kept = {fd: name for fd, name in zip(fds, names, strict=True) if fd % 3 == 0}
    for fd in fds:
        if fd not in kept:
            guest.call("fd_close", fd)
    new, _ = restored(make, guest)
    assert {fd: read(new, fd) for fd in kept} == {fd: n.encode() for fd, n in kept.items()}
    assert opened(new, "f0") in {fd for fd in fds if fd not in kept}


def test_an_open_folder_comes_back(make: Making) -> None:
    guest = make()
    (guest.app / "d").mkdir()
    (guest.app / "d" / "inside").touch()
    fd = opened(guest, "d", abi.O_DIRECTORY)
    new, lost = restored(make, guest)
    assert (new.names(fd), lost) == (["inside"], [])


def test_a_file_that_the_guest_renamed_is_found(make: Making) -> None:
    guest = make()
    (guest.app / "f").write_text("same")
    fd = opened(guest, "f")
    guest.rename("f", "g")
    new, lost = restored(make, guest)
    assert (read(new, fd), lost) == (b"same", [])


def test_a_missing_file_fails_on_use_and_keeps_its_number(make: Making) -> None:
    guest = make()
    (guest.app / "f").write_text("gone")
    (guest.app / "other").write_text("other")
    fd = opened(guest, "f")
    (guest.app / "f").unlink()
    new, lost = restored(make, guest)
    assert lost == ["f"]
    assert isinstance(read(new, fd), int)
    assert new.write(fd, b"x") != abi.SUCCESS
    assert opened(new, "other") != fd


def test_a_lost_file_is_not_lost_twice(make: Making) -> None:
    """Its placeholder stays open, and using it still fails."""
    guest = make()
    fd = opened(guest, "f", abi.O_CREAT)
    (guest.app / "f").unlink()
    new, _ = restored(make, guest)
    (guest.app / "f").write_text("another")
    newer, lost = restored(make, new)
    assert (isinstance(read(newer, fd), int), lost) == (True, [])


@pytest.mark.parametrize("when", ["before the commit", "after it"])
@pytest.mark.parametrize("who", ["guest", "host", "editor"])
def test_another_file_of_its_name_is_never_taken(make: Making, who: str, when: str) -> None:
    guest = make()
    (guest.app / "f").write_text("mine")
    fd = opened(guest, "f")

    def replace() -> None:
        if who == "guest":
            guest.one_path("path_unlink_file", "f")
            guest.make("f", b"other")
        elif who == "host":
            (guest.app / "f").unlink()
            (guest.app / "f").write_text("other")
        else:
            (guest.app / "aside").write_text("other")
            (guest.app / "aside").replace(guest.app / "f")

    if when == "before the commit":
        replace()
    table = guest.files.opened()
    if when == "after it":
        replace()
    new = make()
    assert [file.path for file in new.files.reopen(table)] == ["f"]
    assert isinstance(read(new, fd), int)


def test_a_link_in_a_files_place_is_not_followed(make: Making, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    guest = make()
    (guest.app / "f").write_text("mine")
    fd = opened(guest, "f")
    (guest.app / "f").unlink()
    (guest.app / "f").symlink_to(tmp_path / "secret")
    new, lost = restored(make, guest)
    assert (isinstance(read(new, fd), int), lost) == (True, ["f"])


def test_a_file_swapped_for_a_hidden_one_is_not_opened_again(make: Making) -> None:
    first = make()
    (first.app / "a").write_bytes(b"plain")
    first.open("a")
    table = first.files.opened()
    (first.app / "a").unlink()
    (first.app / ".metadata.json").write_text("secret")
    (first.app / "a").symlink_to(".metadata.json")
    second = make()
    assert [file.path for file in second.files.reopen(table)] == ["a"]


def test_a_restored_workspace_folder_hides_the_same_names(make: Making) -> None:
    first = make()
    (first.app / ".metadata.json").touch()
    fd = first.open(".", abi.O_DIRECTORY)[1]
    second = make()
    second.files.reopen(first.files.opened())
    assert second.names(fd) == []
    assert second.open(".metadata.json", fd=fd)[0] == abi.ENOENT
    assert second.names(APP) == []
