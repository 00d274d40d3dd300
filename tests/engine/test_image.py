"""Base images: memory saved, and given to a new instance, mapped or read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine.tiny import APP, MIB, Guest
from wasm_kernel.engine import abi
from wasm_kernel.errors import ImageError
from wasm_kernel.state import image
from wasm_kernel.wasi_files.open_files import OpenFile

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
def saved(make: Making, tmp_path: Path) -> image.BaseImage:
    """The image of a guest with something in its memory, also in what it grew by."""
    guest = make()
    guest.call("grow", 32)
    guest.instance.memory.write(200_000, b"remembered")
    guest.instance.memory.write(2 * MIB, b"far away")
    path = tmp_path / "memory"
    image.save(guest.instance, path)
    record = image.ImageRecord(guest.instance.memory.size, "build")
    return image.BaseImage(path, "tiny", record)


def test_a_new_instance_remembers(make: Making, saved: image.BaseImage) -> None:
    guest = make()
    saved.attach(guest.instance)
    assert guest.instance.memory.read(200_000, 10) == b"remembered"
    assert guest.instance.memory.read(2 * MIB, 8) == b"far away"


def test_what_one_guest_writes_no_other_sees(make: Making, saved: image.BaseImage) -> None:
    before = saved.path.read_bytes()
    one, other = make(), make()
    for guest in (one, other):
        saved.attach(guest.instance)
    one.instance.memory.write(200_000, b"overwritten")
    assert other.instance.memory.read(200_000, 10) == b"remembered"
    assert saved.path.read_bytes() == before


def test_a_guest_with_an_image_runs(make: Making, saved: image.BaseImage) -> None:
    guest = make()
    saved.attach(guest.instance)
    assert guest.make("a", b"x") == abi.SUCCESS
    assert guest.call("grow", 1) * 65_536 == saved.record.size


def test_an_image_that_is_cut_off_is_refused(make: Making, saved: image.BaseImage) -> None:
    with saved.path.open("rb+") as file:
        file.truncate(saved.record.size - 1)
    with pytest.raises(ImageError, match="not complete"):
        saved.attach(make().instance)


def test_an_image_larger_than_the_limit_is_refused(make: Making, saved: image.BaseImage) -> None:
    with pytest.raises(MemoryError, match="memory_bytes"):
        saved.attach(make(memory_bytes=MIB).instance)


def test_zeros_are_holes(saved: image.BaseImage) -> None:
    status = saved.path.stat()
    assert status.st_blocks * 512 < status.st_size / 2


def test_a_record_comes_back_as_they_were() -> None:
    file = OpenFile(15, "/app", "a/b", 7, 0, 2, 0, 1)
    record = image.ImageRecord(65_536, "build", (file,), {"its": ["own"]})
    assert image.ImageRecord.load(record.dump()) == record


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        "null",
        '{"size": 1, "build": "", "files": [], "extra": 1}',
        '{"size": 1, "build": "", "files": [{"fd": 1}], "extra": {}}',
    ],
)
def test_a_damaged_record_is_refused(text: str) -> None:
    with pytest.raises(ImageError):
        image.ImageRecord.load(text)


def test_an_open_file_is_open_again_at_its_place(make: Making) -> None:
    first = make()
    (first.app / "a").write_bytes(b"0123456789")
    fds = [first.open("a")[1] for _ in range(3)]
    first.call("fd_close", fds[1])
    first.call("fd_seek", fds[2], 5, 0, 64)
    table = first.files.opened()
    second = make()
    assert second.files.reopen(table) == []
    assert second.call("fd_tell", fds[2], 64) == abi.SUCCESS
    assert second.instance.memory.read_word(64) == 5
    assert second.call("fd_tell", fds[1], 64) == abi.EBADF


def test_a_lost_files_number_is_not_given_to_another(make: Making) -> None:
    first = make()
    (first.app / "a").write_bytes(b"0123456789")
    fd = first.open("a")[1]
    table = first.files.opened()
    (first.app / "a").unlink()
    second = make()
    assert [file.path for file in second.files.reopen(table)] == ["a"]
    (second.app / "b").touch()
    assert second.open("b")[1] != fd
    assert second.write(fd, b"x") != abi.SUCCESS


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


def test_an_open_folder_is_open_again(make: Making) -> None:
    first = make()
    (first.app / "d").mkdir()
    (first.app / "d" / "x").touch()
    fd = first.open("d", abi.O_DIRECTORY)[1]
    second = make()
    second.files.reopen(first.files.opened())
    assert second.names(fd) == ["x"]


def test_a_restored_workspace_folder_hides_the_same_names(make: Making) -> None:
    first = make()
    (first.app / ".metadata.json").touch()
    fd = first.open(".", abi.O_DIRECTORY)[1]
    second = make()
    second.files.reopen(first.files.opened())
    assert second.names(fd) == []
    assert second.open(".metadata.json", fd=fd)[0] == abi.ENOENT
    assert second.names(APP) == []
