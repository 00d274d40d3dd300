"""A base image: a guest's linear memory after boot, kept as a file and mapped into new instances.

The state of a guest between two turns is its linear memory alone: the wasm stack is
empty, the one mutable global that matters (the stack pointer) has its initial value, the table
never changes. So a new instance plus the saved memory is the booted guest. The file is mapped
copy-on-write over the instance's memory, which takes a millisecond and shares its pages between all
kernels of this machine.

The file is the memory, nothing else; zero pages are holes. Everything else about the image is in a
second file, an `ImageRecord`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import ImageError
from wasm_kernel.linux import memory
from wasm_kernel.wasi_files.open_files import OpenFile

_BLOCK = 65_536
FORMAT = "8"
"""The version of the saved format; a part of every image's name."""


class ImageRecord(msgspec.Struct, frozen=True):
    """The description of an image: everything but its bytes.

    Attributes:
        size: The size of its memory in bytes.
        build: Distinguishes images that were built from the same parts: their bytes differ, and
            memory saved relative to one image has no meaning over another.
        extra: Facts that only the guest's language reads, as JSON.
    """

    size: int
    build: str
    files: tuple[OpenFile, ...] = ()
    extra: Mapping[str, Any] = {}

    def dump(self) -> str:
        """Returns the record as JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def load(cls, text: str) -> ImageRecord:
        """Reads a record from JSON; `ImageError` if `dump` did not write it."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as problem:
            raise ImageError("the base image's description is damaged") from problem


class BaseImage(msgspec.Struct, frozen=True):
    """A base image that lies on this machine: the file with its memory, and its record.

    The name is equal on other machines with the same guest.
    """

    path: Path
    name: str
    record: ImageRecord

    @property
    def id(self) -> str:
        """The name of this build of the image, to which saved memory is relative."""
        return f"{self.name}.{self.record.build}"

    @property
    def files(self) -> tuple[OpenFile, ...]:
        """The files that the image has open."""
        return self.record.files

    def attach(self, instance: Instance) -> None:
        """Gives an instance the memory of the image; `ImageError` if its file is not right.

        Raises `MemoryError` if the policy's memory limit is below the image's size.
        """
        descriptor = self.keep_open()
        if os.fstat(descriptor).st_size != self.record.size:
            raise ImageError("the base image is not complete")
        instance.grow_to(self.record.size)
        try:
            memory.map_file(instance.memory.address, self.record.size, descriptor, 0)
        except OSError as problem:
            raise ImageError(f"the base image can't be mapped: {problem.strerror}") from problem

    def keep_open(self) -> int:
        """Returns the file's descriptor, which works even if the file is removed from the cache.

        Forked processes have it, too.
        """
        key = (self.path, self.id)
        if key not in _opened:
            _opened[key] = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        return _opened[key]


_opened: dict[tuple[Path, str], int] = {}
"""The descriptors of the images that this process has used, by their paths and ids."""


def save(instance: Instance, path: Path) -> None:
    """Writes an instance's memory to a file, without its zero blocks."""
    size, empty = instance.memory.size, bytes(_BLOCK)
    with path.open("wb") as file:
        for at in range(0, size, _BLOCK):
            block = instance.memory.read(at, min(_BLOCK, size - at))
            if block != empty:
                file.seek(at)
                file.write(block)
        file.truncate(size)
