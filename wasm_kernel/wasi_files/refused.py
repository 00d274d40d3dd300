"""A file call of the guest's that is answered with an error number before wasmtime sees it."""

from __future__ import annotations

from wasm_kernel.engine import abi


class Refused(Exception):
    """The call is refused; `errno` is WASI's number."""

    errno = abi.EPERM

    def __init__(self, errno: int | None = None) -> None:
        if errno is not None:
            self.errno = errno
