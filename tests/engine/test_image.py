"""Base images: memory saved, and given to a new instance, mapped or read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine.tiny import APP, MIB, Guest
from wasm_kernel.engine import abi
from wasm_kernel.errors import ImageError
from wasm_kernel.state import image
from wasm_kernel.wasi_files.descriptors import OpenFile

WORDS = {128: 1}
SCRATCH = 41_024
Making = Callable[..., Guest]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Making]:
    """Makes guests, and closes them in the end."""
    made: list[Guest] = []

    def one(**options: int) -> Guest:
        made.append(Guest(tmp_path, **options))  # type: ignore[arg-type]
        return made[-1]

    yield one
    for guest in made:
        guest.close()


@pytest.fixture
def saved(make: Making, tmp_path: Path) -> tuple[Path, image.Facts]:
    """The image of a guest with something in its memory, also in what it grew by."""
    guest = make()
    guest.call("grow", 32)
    guest.instance.reach.write(200_000, b"remembered")
    guest.instance.reach.write(2 * MIB, b"far away")
    path = tmp_path / "memory"
    image.save(guest.instance, path)
    return path, image.Facts(guest.instance.reach.size, WORDS, SCRATCH)


def test_a_new_instance_remembers(make: Making, saved: tuple[Path, image.Facts]) -> None:
    guest = make()
    image.attach(guest.instance, *saved)
    assert guest.instance.reach.read(200_000, 10) == b"remembered"
    assert guest.instance.reach.read(2 * MIB, 8) == b"far away"


def test_what_one_guest_writes_no_other_sees(make: Making, saved: tuple[Path, image.Facts]) -> None:
    before = saved[0].read_bytes()
    one, other = make(), make()
    for guest in (one, other):
        image.attach(guest.instance, *saved)
    one.instance.reach.write(200_000, b"overwritten")
    assert other.instance.reach.read(200_000, 10) == b"remembered"
    assert saved[0].read_bytes() == before


def test_a_guest_with_an_image_runs(make: Making, saved: tuple[Path, image.Facts]) -> None:
    guest = make()
    image.attach(guest.instance, *saved)
    assert guest.make("a", b"x") == abi.SUCCESS
    assert guest.call("grow", 1) * 65_536 == saved[1].size


def test_an_image_arms_the_interrupt_words(make: Making, saved: tuple[Path, image.Facts]) -> None:
    guest = make()
    image.attach(guest.instance, *saved)
    guest.instance.words.raise_()
    assert guest.instance.reach.read_word(128) == 1


def test_an_image_that_is_cut_off_is_refused(make: Making, saved: tuple[Path, image.Facts]) -> None:
    path, facts = saved
    with path.open("rb+") as file:
        file.truncate(facts.size - 1)
    with pytest.raises(ImageError, match="not complete"):
        image.attach(make().instance, path, facts)


def test_an_image_larger_than_the_limit_is_refused(
    make: Making, saved: tuple[Path, image.Facts]
) -> None:
    with pytest.raises(MemoryError, match="memory_bytes"):
        image.attach(make(memory_bytes=MIB).instance, *saved)


def test_zeros_are_holes(saved: tuple[Path, image.Facts]) -> None:
    status = saved[0].stat()
    assert status.st_blocks * 512 < status.st_size / 2


def test_facts_come_back_as_they_were() -> None:
    file = OpenFile(15, "/app", "a/b", 7, 0, 2, 0, 1)
    facts = image.Facts(65_536, WORDS, 99, (file,))
    assert image.Facts.load(facts.dump()) == facts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "null",
        '{"size": 1, "words": [], "scratch": 1, "files": []}',
        '{"size": 1, "words": {}, "scratch": 1, "files": [{"fd": 1}]}',
    ],
)
def test_damaged_facts_are_refused(text: str) -> None:
    with pytest.raises(ImageError):
        image.Facts.load(text)


def test_an_open_file_is_open_again_at_its_place(make: Making) -> None:
    first = make()
    (first.app / "a").write_bytes(b"0123456789")
    fds = [first.open("a")[1] for _ in range(3)]
    first.call("fd_close", fds[1])
    first.call("fd_seek", fds[2], 5, 0, 64)
    table = first.instance.descriptors.save()
    second = make()
    assert second.instance.descriptors.restore(table) == []
    assert second.call("fd_tell", fds[2], 64) == abi.SUCCESS
    assert second.instance.reach.read_word(64) == 5
    assert second.call("fd_tell", fds[1], 64) == abi.EBADF


def test_a_lost_files_number_is_not_given_to_another(make: Making) -> None:
    first = make()
    (first.app / "a").write_bytes(b"0123456789")
    fd = first.open("a")[1]
    table = first.instance.descriptors.save()
    (first.app / "a").unlink()
    second = make()
    assert [file.path for file in second.instance.descriptors.restore(table)] == ["a"]
    (second.app / "b").touch()
    assert second.open("b")[1] != fd
    assert second.write(fd, b"x") != abi.SUCCESS


def test_a_file_swapped_for_a_hidden_one_is_not_opened_again(make: Making) -> None:
    first = make()
    (first.app / "a").write_bytes(b"plain")
    first.open("a")
    table = first.instance.descriptors.save()
    (first.app / "a").unlink()
    (first.app / ".metadata.json").write_text("secret")
    (first.app / "a").symlink_to(".metadata.json")
    second = make()
    assert [file.path for file in second.instance.descriptors.restore(table)] == ["a"]


def test_an_open_folder_is_open_again(make: Making) -> None:
    first = make()
    (first.app / "d").mkdir()
    (first.app / "d" / "x").touch()
    fd = first.open("d", abi.O_DIRECTORY)[1]
    second = make()
    second.instance.descriptors.restore(first.instance.descriptors.save())
    assert second.names(fd) == ["x"]


def test_a_restored_workspace_folder_hides_the_same_names(make: Making) -> None:
    first = make()
    (first.app / ".metadata.json").touch()
    fd = first.open(".", abi.O_DIRECTORY)[1]
    second = make()
    second.instance.descriptors.restore(first.instance.descriptors.save())
    assert second.names(fd) == []
    assert second.open(".metadata.json", fd=fd)[0] == abi.ENOENT
    assert second.names(APP) == []
