"""The table of codecs.

A codec is a pinned file of WebAssembly, which `guest/codecs.py` takes from npm when the wheel is
built; it is compiled and cached like a guest's. A new codec is a row here, a file of functions
beside this one, and its pins in `pyproject.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from msgspec import Struct

from wasm_kernel.codecs.module import Function, Imports
from wasm_kernel.engine.cache import REINSTALL, built_folder
from wasm_kernel.engine.compiler import GuestBinary

FOLDER = "_codecs"
_STACK_BYTES = 8 * 1024 * 1024
_SHA256 = {
    "jpeg-turbo.wasm": "80ed55eef2d0ff276f837ef521fad8181ccdfa6f298f652f6e45aed7fbbbc871",
    "libjpegturbowasm.wasm": "101ba61e91478330474d4a36b0c6b0b888b49feec689651283f17986187a2edc",
    "photon_rs_bg.wasm": "f477b87cbea0445c65fc7e580e89050190600379fcd44821cec67403483872b1",
    "webp.wasm": "b0bc0f19c589f0d7f27cd98191bc113d0779108a10f38538f466cea4985c480e",
    "parquet_wasm_bg.wasm": "7636a31df453d8c73aacbed5ae9fd262a71136258f420fa0d97016b8da9e8aa1",
}
"""The digest of each file of WebAssembly, which is checked before compiling."""


class Codec(Struct, frozen=True):
    """One codec: its name, which is that of its file of functions in this folder; its file of
    WebAssembly; and its name for people.
    """

    name: str
    module: str
    title: str

    @property
    def binary(self) -> GuestBinary:
        """The file of WebAssembly, as the compiler takes it."""
        path = built_folder(FOLDER) / self.module
        return GuestBinary(path, _SHA256[self.module], self.title, _STACK_BYTES, REINSTALL)

    @property
    def functions(self) -> Mapping[str, Function]:
        """The codec's functions, by name."""
        functions: Mapping[str, Function] = self._file.FUNCTIONS
        return functions

    def imports(self) -> Imports:
        """Returns the object that answers the imports of one instance."""
        made: Imports = self._file.IMPORTS()
        return made

    @property
    def _file(self) -> Any:
        return import_module(f"wasm_kernel.codecs.{self.name}")


_ROWS = (
    Codec("jpeg", "jpeg-turbo.wasm", "the codec that reads JPEG"),
    Codec("jpeg_writer", "libjpegturbowasm.wasm", "the codec that writes JPEG"),
    Codec("pictures", "photon_rs_bg.wasm", "the codec that writes WebP"),
    Codec("webp", "webp.wasm", "the codec that reads WebP"),
    Codec("parquet", "parquet_wasm_bg.wasm", "the codec of Parquet and Feather"),
)
CODECS = {codec.name: codec for codec in _ROWS}
"""All codecs, by name."""
