"""`RunFolder`: a temporary folder of a run, which a later run removes if this one was killed."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from wasm_kernel.linux.locks import try_lock

_PREFIX = "wasm-kernel-run-"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LEFT_SECONDS = 600.0  # by then the kernels of a run that was killed have ended


class RunFolder:
    """A folder among temporary files, locked for as long as it is used."""

    def __init__(self) -> None:
        self._made = TemporaryDirectory(prefix=_PREFIX)
        self.path = Path(self._made.name)
        self._lock = os.open(self.path, _FOLDER)
        try_lock(self._lock)

    def __enter__(self) -> Path:
        """Returns where it lies."""
        return self.path

    def __exit__(self, *_: object) -> None:
        """Removes it."""
        self.remove()

    def remove(self) -> None:
        """Removes it, with all that it holds."""
        self._made.cleanup()
        os.close(self._lock)


def sweep() -> None:
    """Removes the folders of runs that were killed: sockets, keys, and notebooks of a cluster."""
    for path in Path(gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            folder = os.open(path, _FOLDER)
            try:
                found = os.fstat(folder)
                is_old = time.time() - found.st_mtime > _LEFT_SECONDS
                if is_old and found.st_uid == os.geteuid() and try_lock(folder):
                    shutil.rmtree(path)
            finally:
                os.close(folder)
