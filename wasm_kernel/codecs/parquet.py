"""Parquet, by the crates `parquet` and `arrow` in npm's `parquet-wasm`. Tables are IPC streams of
Arrow.

The module takes the options of a reader as an object of JavaScript. It asks for the object's
members one by one, and the host answers for the rows of a batch alone. Each object is null in its
calls, so the last name that it asked for tells which member it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from wasm_kernel.codecs.module import (
    CodecInputError,
    CodecModule,
    CodecResult,
    Function,
    Imports,
    text_at,
)
from wasm_kernel.engine.host_calls import GuestMemory, Handler, Import
from wasm_kernel.engine.instance import Instance

_FILE = "./parquet_wasm_bg.js"
_OPTION = "batchSize"
_BATCH_ROWS = 1 << 24  # a batch is never larger than the row groups of a file
_SHAPES = {
    "__wbg___wbindgen_is_object_edb6b15aa3afe12e": "e",
    "__wbindgen_generic_0000000000000005": "ii>e",  # makes a text
    "__wbg_get_with_ref_key_6412cf3094599694": "ee>e",
    "__wbg___wbindgen_is_undefined_8c687d0b90d5b524": "e",
    "__wbg___wbindgen_jsval_loose_eq_3c30021c243b64cd": "ee",
    "__wbg___wbindgen_is_bigint_60fc0336cb14f5d7": "e",
    "__wbg_isSafeInteger_8f51c743827d1ec5": "e",
    "__wbg_Number_c54e7112a3fa7e3e": "e>d",
    "__wbg___wbindgen_in_50072d4d6e45c193": "ee",
}


class ParquetImports(Imports):
    """Takes the text of an error, and answers questions about a reader's options."""

    reports: ClassVar[Mapping[Import, str]] = {
        (_FILE, "__wbg_Error_67e7344beaa85059"): "ii>e",
        (_FILE, "__wbg___wbindgen_throw_5d9e815e6fdf150f"): "ii>",
    }
    others: ClassVar[Mapping[Import, str]] = {(_FILE, n): shape for n, shape in _SHAPES.items()}

    def __init__(self) -> None:
        super().__init__()
        self._asked = ""

    def bind(self, guest: Instance) -> Mapping[Import, Handler]:
        """Returns the handlers for an instance."""
        answers: list[Handler] = [
            lambda _: 1,
            partial(self._name, guest.memory),
            lambda *_: 0,
            lambda _: int(self._asked != _OPTION),
            lambda *_: 0,
            lambda _: 0,
            lambda _: 1,
            lambda _: _BATCH_ROWS,
            lambda *_: 0,
        ]
        own = dict(zip(self.others, answers, strict=True))
        return {**super().bind(guest), **own}

    def _name(self, memory: GuestMemory, at: int, length: int) -> int:
        self._asked = text_at(memory, at, length)
        return 0


def read(codec: CodecModule, at: int, length: int, _numbers: tuple[int, ...]) -> CodecResult:
    """Reads a file; returns its table."""
    options = codec.call("__externref_table_alloc")
    table, _, failed = codec.call_for(3, "readParquet", at, length, options)
    _check(codec, failed)
    place, size, _, failed = codec.call_for(4, "table_intoIPCStream", table)
    _check(codec, failed)
    return CodecResult(place, size)


def write(codec: CodecModule, at: int, length: int, numbers: tuple[int, ...]) -> CodecResult:
    """Writes a table as a file; numbers: the compression, the most rows of a row group."""
    compression, rows = numbers
    return _write(codec, at, length, setCompression=compression, setMaxRowGroupSize=rows)


def write_plain(codec: CodecModule, at: int, length: int, numbers: tuple[int, ...]) -> CodecResult:
    """Writes a table as a file that holds its values as they are; number: the compression."""
    (compression,) = numbers
    off = {"setDictionaryEnabled": 0, "setStatisticsEnabled": 0}
    return _write(codec, at, length, setCompression=compression, **off)


def _write(codec: CodecModule, at: int, length: int, **settings: int) -> CodecResult:
    table, _, failed = codec.call_for(3, "table_fromIPCStream", at, length)
    _check(codec, failed)
    builder = codec.call("writerpropertiesbuilder_new")
    for name, value in settings.items():
        builder = codec.call(f"writerpropertiesbuilder_{name}", builder, value)
    options = codec.call("writerpropertiesbuilder_build", builder)
    place, size, _, failed = codec.call_for(4, "writeParquet", table, options)
    _check(codec, failed)
    return CodecResult(place, size)


def _check(codec: CodecModule, failed: int) -> None:
    if failed:
        raise CodecInputError(codec.imports.text)


FUNCTIONS: Mapping[str, Function] = {"read": read, "write": write, "write_plain": write_plain}
IMPORTS = ParquetImports
