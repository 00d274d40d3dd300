"""A fault at each operation of a worker on files: open, write, rename, link, remove.

A write has two halves, each of which is brought to the disk at once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, BinaryIO

from tests.faults import Fault


class Watched:
    """A file whose writes may meet the fault."""

    def __init__(self, file: BinaryIO, fault: Fault) -> None:
        self._file, self._fault = file, fault

    def write(self, data: bytes) -> int:
        self._fault.passes()
        half = len(data) // 2
        written = self._file.write(data[:half])
        self._file.flush()
        self._fault.passes()
        return written + self._file.write(data[half:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()


def arm(fault: Fault) -> None:
    """Lets each operation meet the fault, in a worker."""
    opened: Any = os.fdopen

    def fdopen(fd: int, mode: str, **options: Any) -> Any:
        if mode != "wb":
            return opened(fd, mode, **options)
        fault.passes()
        return Watched(opened(fd, mode, **options), fault)

    os.fdopen = fdopen  # type: ignore[assignment]
    for owner, name in (
        *((os, each) for each in ("link", "write", "rename", "unlink")),
        *((Path, each) for each in ("replace", "unlink")),
    ):
        setattr(owner, name, fault.around(getattr(owner, name)))
