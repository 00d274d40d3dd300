"""A base image: a guest's linear memory after boot, kept as a file and mapped into new instances.

What makes the state of a guest between two turns is its linear memory alone: the wasm stack is
empty, the one mutable global that matters (the stack pointer) has its initial value, the table
never changes. So a new instance plus the saved memory is the booted guest. On Linux the file is
mapped copy-on-write over the instance's memory, which takes a millisecond and shares its pages
between all kernels of this machine; elsewhere it is read into it.

The file is the memory, nothing else; zero pages are holes. What must be known besides stands in a
second file, `Facts`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import ImageError
from wasm_kernel.linux import memory
from wasm_kernel.record import record
from wasm_kernel.state.commit import DAMAGED
from wasm_kernel.wasi_files.descriptors import OpenFile

_BLOCK = 65_536
FORMAT = "6"
"""Changes with what is saved and how; a part of every image's name."""


@record
class Facts:
    """What is known of an image besides its bytes.

    `words` are the interrupt words (`interrupt.py`), `scratch` the address of the guest memory that
    belongs to the host, `files` what was open (`descriptors.py`), `dice` where SQLite's lie
    (`dice.py`), `build` tells this image from another that was built of the same things: no two
    are alike in their bytes, and what is saved relative to one means nothing over the other.
    """

    size: int
    words: Mapping[int, int]
    scratch: int
    files: tuple[OpenFile, ...] = ()
    dice: tuple[int, ...] = ()
    build: str = ""

    def dump(self) -> str:
        """As JSON."""
        words = {str(at): bits for at, bits in self.words.items()}
        files = [file.as_json() for file in self.files]
        facts = {"size": self.size, "words": words, "scratch": self.scratch, "files": files}
        return json.dumps({**facts, "dice": self.dice, "build": self.build})

    @classmethod
    def load(cls, text: str) -> Facts:
        """From JSON.

        Raises:
            ImageError: the text is not what `dump` writes.
        """
        try:
            raw = json.loads(text)
            words = {int(at): int(bits) for at, bits in raw["words"].items()}
            files = tuple(OpenFile(**file) for file in raw["files"])
            dice = tuple(int(at) for at in raw["dice"])
            build = str(raw["build"])
            return cls(int(raw["size"]), words, int(raw["scratch"]), files, dice, build)
        except DAMAGED as problem:
            raise ImageError("the base image's description is damaged") from problem


def save(instance: Instance, path: Path) -> None:
    """Write an instance's memory to a file, without its zero blocks."""
    size, empty = instance.reach.size, bytes(_BLOCK)
    with path.open("wb") as file:
        for at in range(0, size, _BLOCK):
            block = instance.reach.read(at, min(_BLOCK, size - at))
            if block != empty:
                file.seek(at)
                file.write(block)
        file.truncate(size)


def attach(instance: Instance, path: Path, facts: Facts) -> None:
    """Give an instance the memory of an image.

    Raises:
        ImageError: the file is not as large as it should be, or can't be mapped.
        MemoryError: the policy's memory limit is below the image's size.
    """
    if path.stat().st_size != facts.size:
        raise ImageError("the base image is not complete")
    instance.grow_to(facts.size)
    _map(instance.reach.address, path, facts.size)
    instance.arm_interrupts(facts.words)
    instance.use_scratch(facts.scratch)
    instance.use_dice(facts.dice)


def _map(address: int, path: Path, size: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        memory.map_file(address, size, descriptor, 0)
    except OSError as problem:
        raise ImageError(f"the base image can't be mapped: {problem.strerror}") from problem
    finally:
        os.close(descriptor)
