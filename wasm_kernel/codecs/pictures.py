"""Writing WebP, by the crate `image` in npm's `@cf-wasm/photon`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wasm_kernel.codecs.module import CodecModule, CodecResult, Function, Imports
from wasm_kernel.engine.host_calls import Import


class PictureImports(Imports):
    """Takes the text of an error."""

    reports: ClassVar[Mapping[Import, str]] = {
        ("./photon_rs_bg.js", "__wbg___wbindgen_throw_344f42d3211c4765"): "ii>",
    }


def encode_webp(codec: CodecModule, at: int, length: int, numbers: tuple[int, ...]) -> CodecResult:
    """Writes RGBA pixels as lossless WebP; numbers: width, height."""
    width, height = numbers
    picture = codec.call("photonimage_new", at, length, width, height)
    place, size = codec.call_for(2, "photonimage_get_bytes_webp", picture)
    return CodecResult(place, size)


FUNCTIONS: Mapping[str, Function] = {"encode_webp": encode_webp}
IMPORTS = PictureImports
