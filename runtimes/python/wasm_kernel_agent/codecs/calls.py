"""Calls of codecs: modules of WebAssembly that the host runs beside this interpreter."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import _host
import numpy

Key = TypeVar("Key")
_MARK = b"\0"  # no frame begins with it
_HEAD = struct.Struct("<4I")
_call: Any = _host.call


class CodecError(ValueError):
    """A codec can't read or write the data; `str()` says why."""


def call(
    codec: str, function: str, data: Any, *numbers: int
) -> tuple[memoryview, tuple[int, int, int]]:
    """Calls a function of a codec with `data`, which is not copied; returns bytes and numbers.

    Raises:
        CodecError: The codec can't read it.
        MemoryError: There is no room for the result.
    """
    held = numpy.frombuffer(data, numpy.uint8)
    at, _ = held.__array_interface__["data"]
    asked = {"codec": codec, "function": function, "at": at, "length": held.size}
    try:
        answer = memoryview(_call(_MARK + json.dumps({**asked, "numbers": numbers}).encode()))
    except OSError:
        raise MemoryError("there is no room for what a codec has read or written") from None
    failed, *found = _HEAD.unpack_from(answer)
    rest = answer[_HEAD.size :]
    if failed:
        raise CodecError(bytes(rest).decode("utf-8", "replace"))
    return rest, (found[0], found[1], found[2])


def grouped(sizes: Mapping[Key, int], most: int) -> Iterator[list[Key]]:
    """Yields the keys in groups that are small enough for one call: of `most` bytes together.

    A key that is larger than `most` is a group of its own.
    """
    group: list[Key] = []
    total = 0
    for key, size in sizes.items():
        if group and total + size > most:
            yield group
            group, total = [], 0
        group.append(key)
        total += size
    if group:
        yield group
