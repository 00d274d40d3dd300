"""The objects that the file calls of one guest share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from msgspec import Struct

from wasm_kernel.engine import abi
from wasm_kernel.engine.host_calls import GuestMemory
from wasm_kernel.wasi_files.changes import FileChanges
from wasm_kernel.wasi_files.file_history import FileHistory
from wasm_kernel.wasi_files.listing import Listings
from wasm_kernel.wasi_files.open_files import OpenFiles
from wasm_kernel.wasi_files.paths import GuestPaths
from wasm_kernel.wasi_files.preopens import Refused
from wasm_kernel.wasi_files.quota import Quota

T = TypeVar("T")

_BETWEEN_LOOKS = 256  # entries of a folder


class FileCalls(Struct, frozen=True):
    """The objects that the file calls of one guest share. Only the guest's thread uses it."""

    memory: GuestMemory
    paths: GuestPaths
    files: OpenFiles
    listings: Listings
    changes: FileChanges
    quota: Quota
    history: FileHistory
    should_stop: Callable[[], bool]

    def check_time(self) -> None:
        """Raises `Refused` if an interrupt is asked for, or the cell's time is over."""
        if self.should_stop():
            raise Refused(abi.EINTR)

    def until_stopped(self, entries: Iterable[T]) -> Iterator[T]:
        """Yields the entries of a folder; in a large one, calls `check_time` now and then."""
        for index, entry in enumerate(entries):
            if index % _BETWEEN_LOOKS == _BETWEEN_LOOKS - 1:
                self.check_time()
            yield entry
