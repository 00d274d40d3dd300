"""Base images: memory saved and attached to a new instance, mapped or read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.engine.tiny import MIB, Guest
from wasm_kernel.errors import ImageError
from wasm_kernel.state import image

Making = Callable[..., Guest]


@pytest.fixture
def make(tmp_path: Path, ending: ExitStack) -> Making:
    """Makes guests, and closes them at the end."""
    return lambda **options: ending.enter_context(closing(Guest(tmp_path, **options)))


@pytest.fixture
def saved(make: Making, tmp_path: Path) -> image.BaseImage:
    """The image of a guest with data in its memory, also in the part by which it grew."""
    guest = make()
    guest.call("grow", 32)
    guest.instance.memory.write(200_000, b"remembered")
    guest.instance.memory.write(2 * MIB, b"far away")
    path = tmp_path / "memory"
    image.save(guest.instance, path)
    record = image.ImageRecord(guest.instance.memory.size, "build")
    return image.BaseImage(path, "tiny", record)


def test_no_guest_sees_the_writes_of_another(make: Making, saved: image.BaseImage) -> None:
    before = saved.path.read_bytes()
    one, other = make(), make()
    for guest in (one, other):
        saved.attach(guest.instance)
    one.instance.memory.write(200_000, b"overwritten")
    assert other.instance.memory.read(200_000, 10) == b"remembered"
    assert saved.path.read_bytes() == before


def test_an_image_that_is_kept_open_is_there_when_its_file_is_removed(
    make: Making, saved: image.BaseImage
) -> None:
    saved.keep_open()
    saved.path.unlink()
    saved.attach((guest := make()).instance)
    assert guest.instance.memory.read(200_000, 10) == b"remembered"


def test_an_image_that_is_too_large_or_cut_off_is_refused(
    make: Making, saved: image.BaseImage
) -> None:
    with pytest.raises(MemoryError, match="memory_bytes"):
        saved.attach(make(memory_bytes=MIB).instance)
    with saved.path.open("rb+") as file:
        file.truncate(saved.record.size - 1)
    with pytest.raises(ImageError, match="not complete"):
        saved.attach(make().instance)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"size": 1, "build": "", "files": [{"fd": 1}], "extra": {}}']
)
def test_a_damaged_record_is_refused(text: str) -> None:
    with pytest.raises(ImageError):
        image.ImageRecord.load(text)
