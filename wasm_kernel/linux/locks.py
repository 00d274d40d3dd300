"""Locks between processes, on files."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from wasm_kernel.linux.folders import Folder

_POLL_SECONDS = 0.0005


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Locks an open file or folder without waiting; returns False if another process holds it.

    The lock ends when the descriptor is closed, also by the end of the process. Several processes
    can hold `shared` locks. Raises `OSError` if the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Releases a lock, even if a forked process has the descriptor, too."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def wait_lock(descriptor: int, seconds: float, *, shared: bool = False) -> bool:
    """Tries to lock, as `try_lock` does, for up to `seconds`; returns whether it succeeded."""
    until = time.monotonic() + seconds
    while not try_lock(descriptor, shared=shared):
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


class FileLock:
    """A lock that one process at a time holds; the system frees it when the holder dies.

    The file is made if it is missing. Name a `folder`, and the file's name in it as `path`, if a
    stranger may have put a link or a special file there.
    """

    def __init__(self, path: Path | str, folder: Folder | None = None) -> None:
        self._path = path
        self._folder = folder
        self._descriptor = -1
        self.is_elsewhere = False

    def acquire(self, seconds: float = 0.0) -> bool:
        """Takes the lock, waiting `seconds` at most; returns whether it succeeded.

        If not, `is_elsewhere` is true if another holder has it, and false if the file system has
        no locks.
        """
        flags = os.O_RDWR | os.O_CREAT
        if self._folder is None:
            descriptor = os.open(self._path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        else:
            descriptor = self._folder.open_regular(str(self._path), flags)
        try:
            held = wait_lock(descriptor, seconds)
            self.is_elsewhere = not held
        except OSError:
            held = self.is_elsewhere = False
        if not held:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Releases the lock. Safe to call twice."""
        if self._descriptor >= 0:
            unlock(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
