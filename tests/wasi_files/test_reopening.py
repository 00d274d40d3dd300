"""Open files come back under their numbers, or fail: never another file."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.engine.tiny import APP, FOLLOW, RIGHTS, Guest
from wasm_kernel.engine import abi

Making = Callable[[], Guest]


@pytest.fixture
def make(tmp_path: Path, ending: ExitStack) -> Making:
    """Makes guests on one folder."""
    return lambda: ending.enter_context(closing(Guest(tmp_path)))


def restored(make: Making, guest: Guest) -> tuple[Guest, list[str | None]]:
    """A new guest with the open files of another, and the paths of those that are lost."""
    table = guest.files.open_records()
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


def test_files_go_on_where_they_were_under_their_numbers(make: Making) -> None:
    guest = make()
    for name in ("read", "appended", *(f"gap {number}" for number in range(6))):
        (guest.app / name).write_text(f"{name}, in full")
    (guest.app / "folder").mkdir()
    (guest.app / "folder" / "inside").touch()
    reading, again = opened(guest, "read"), opened(guest, "read")
    read(guest, reading, 6)
    read(guest, again, 9)
    writing = opened(guest, "written", abi.O_CREAT | abi.O_TRUNC)
    guest.write(writing, b"one ")
    path = guest.text("appended")
    guest.call("path_open", APP, FOLLOW, *path, 0, RIGHTS, RIGHTS, abi.FD_APPEND, 64)
    appending = guest.instance.memory.read_word(64)
    gaps = {opened(guest, f"gap {number}"): f"gap {number}" for number in range(6)}
    closed = [fd for fd in gaps if fd % 3]
    for fd in closed:
        guest.call("fd_close", fd)
    folder = opened(guest, "folder", abi.O_DIRECTORY)
    guest.rename("read", "renamed")
    new, lost = restored(make, guest)
    assert lost == []
    assert (read(new, reading), read(new, again)) == (b"in full", b"full")
    assert {fd: read(new, fd, 5) for fd in gaps if fd not in closed} == {
        fd: name.encode()[:5] for fd, name in gaps.items() if fd not in closed
    }
    assert new.names(folder) == ["inside"]
    (guest.app / "appended").write_text("longer than it was before ")
    for fd in (writing, appending):
        new.write(fd, b"two")
    assert (new.app / "written").read_text() == "one two"
    assert (new.app / "appended").read_text() == "longer than it was before two"
    assert opened(new, "gap 0") in closed


PLACED: dict[str, Callable[[Path], object]] = {
    "another file": lambda place: place.write_text("other"),
    "an editor's file": lambda place: place.with_name("aside").rename(place),
    "nothing": lambda place: None,
    "a link": lambda place: place.symlink_to("../secret"),
    "a link to a hidden name": lambda place: place.symlink_to(".metadata.json"),
}


def replace(guest: Guest, kind: str) -> None:
    if kind == "the guest's own":
        guest.one_path("path_unlink_file", "f")
        guest.make("f", b"other")
    else:
        (guest.app / "f").unlink()
        PLACED[kind](guest.app / "f")


@pytest.mark.parametrize("when", ["before the commit", "after it"])
@pytest.mark.parametrize("kind", ["the guest's own", *PLACED])
def test_another_file_of_its_name_is_never_taken_and_its_number_neither(
    make: Making, kind: str, when: str
) -> None:
    guest = make()
    (guest.app / "f").write_text("mine")
    for path in ("other", "aside", ".metadata.json", "../secret"):
        (guest.app / path).write_text("other")
    fd = opened(guest, "f")
    if when == "before the commit":
        replace(guest, kind)
    table = guest.files.open_records()
    if when == "after it":
        replace(guest, kind)
    for lost in (["f"], []):  # a placeholder stays open, and is not lost twice
        new = make()
        assert [file.path for file in new.files.reopen(table)] == lost
        assert isinstance(read(new, fd), int)
        assert new.write(fd, b"x") != abi.SUCCESS
        assert opened(new, "other") != fd
        table = new.files.open_records()
        (guest.app / "f").unlink(missing_ok=True)
        (guest.app / "f").write_text("another")


def test_a_restored_workspace_folder_hides_the_same_names(make: Making) -> None:
    first = make()
    (first.app / ".metadata.json").touch()
    fd = first.open(".", abi.O_DIRECTORY)[1]
    second = make()
    second.files.reopen(first.files.open_records())
    assert second.names(fd) == []
    assert second.open(".metadata.json", fd=fd)[0] == abi.ENOENT
    assert second.names(APP) == []
