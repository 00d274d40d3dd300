"""`run_folder`: a temporary folder of a run; a later run removes it if this one was killed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from wasm_kernel.linux.folders import closing_fd
from wasm_kernel.linux.locks import try_lock

_PREFIX = "wasm-kernel-run-"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LEFT_SECONDS = 600.0  # by then the workers of a killed run have ended


@contextmanager
def run_folder() -> Iterator[Path]:
    """Makes a temporary folder, which is locked while the block runs, and removed at its end."""
    with TemporaryDirectory(prefix=_PREFIX) as path, closing_fd(os.open(path, _FOLDER)) as lock:
        try_lock(lock)
        yield Path(path)


def remove_left_folders() -> None:
    """Removes the folders of killed runs, which hold requirements, and notebooks of a cluster."""
    for path in Path(gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError), closing_fd(os.open(path, _FOLDER)) as folder:
            found = os.fstat(folder)
            is_old = time.time() - found.st_mtime > _LEFT_SECONDS
            if is_old and found.st_uid == os.geteuid() and try_lock(folder):
                shutil.rmtree(path)
