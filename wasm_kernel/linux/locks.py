"""Locks between processes, on files."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from wasm_kernel.linux.folders import Folder

_POLL_SECONDS = 0.0005


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Locks an open file or folder, at once or not at all; `OSError` if there are no locks.

    The lock ends when the descriptor is closed, also by the end of the process. Others may hold a
    `shared` one, too, as long as theirs are shared.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Gives a lock back, also for a forked process that has the descriptor, too."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def wait_lock(descriptor: int, seconds: float, *, shared: bool = False) -> bool:
    """Tries to lock, as `try_lock` does, for up to so many seconds for others to let go."""
    until = time.monotonic() + seconds
    while not try_lock(descriptor, shared=shared):
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


class FileLock:
    """One process at a time holds it; the system frees it when the holder dies, however it does.

    The file is made if it is missing; by its name in `folder` where others may have put something
    else.
    """

    def __init__(self, path: Path | str, folder: Folder | None = None) -> None:
        self._path = path
        self._folder = folder
        self._descriptor = -1

    def acquire(self, seconds: float = 0.0) -> bool:
        """Takes the lock, waiting so many seconds at most; False if another holder has it."""
        flags = os.O_RDWR | os.O_CREAT
        if self._folder is None:
            descriptor = os.open(self._path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        else:
            descriptor = self._folder.open_regular(str(self._path), flags)
        try:
            held = wait_lock(descriptor, seconds)
        except OSError:
            held = False
        if not held:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Gives it back. Safe to call twice."""
        if self._descriptor >= 0:
            unlock(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
