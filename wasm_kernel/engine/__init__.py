"""WebAssembly: compiling, one live instance, its limits. The only importer of wasmtime."""

import platform

_PROCESSORS = ("x86_64", "AMD64", "aarch64", "arm64", "ARM64")

if platform.machine() not in _PROCESSORS:
    raise ImportError(
        f"wasm-kernel can't run on {platform.machine()} processors: wasmtime has code for x86-64 "
        "and ARM64 alone. Nothing was changed."
    )
