"""`RunFolder`: a temporary folder of a run; a later run removes it if this one was killed."""

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
_LEFT_SECONDS = 600.0  # by then the workers of a killed run have ended


class RunFolder:
    """A temporary folder, locked as long as it is in use."""

    def __init__(self) -> None:
        self._made = TemporaryDirectory(prefix=_PREFIX)
        self.path = Path(self._made.name)
        self._lock = os.open(self.path, _FOLDER)
        try_lock(self._lock)

    def __enter__(self) -> Path:
        """Returns the folder's path."""
        return self.path

    def __exit__(self, *_: object) -> None:
        """Removes the folder."""
        self.remove()

    def remove(self) -> None:
        """Removes the folder with its content."""
        self._made.cleanup()
        os.close(self._lock)


def remove_left_folders() -> None:
    """Removes the folders of killed runs, which hold requirements, and notebooks of a cluster."""
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
