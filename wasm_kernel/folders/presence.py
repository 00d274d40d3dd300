"""That a session is open somewhere: a lock that its users share, and that its remover has alone.

The history's own lock (`folders/claim.py`) says which one process keeps the variables. This
one says that anybody uses the session at all: a second kernel on it, a sandbox that has not begun
yet. Both lie in the session's private folder.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from wasm_kernel.errors import SessionInUse
from wasm_kernel.folders.claim import LOCK
from wasm_kernel.folders.folders import PRESENT
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.locks import try_lock, unlock, wait_lock

_REMOVAL_SECONDS = 30.0  # for another process to finish deleting the session


class Presence:
    """One user's share of the lock. Any thread may leave; that is idempotent."""

    def __init__(self, private: Folder) -> None:
        """Be present in a session with this private folder; see afterwards that it is still there.

        Raises:
            SessionInUse: another process has been deleting the session for too long.
            OSError: the lock can't be opened.
        """
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._descriptor = private.open_regular(PRESENT, os.O_RDWR | os.O_CREAT)
        try:
            _share(self._descriptor)
        except BaseException:
            os.close(self._descriptor)
            raise

    def is_only(self) -> bool:
        """Whether nobody else is present, here or in another process."""
        with self._guard:
            if self._descriptor < 0:
                return False
            try:
                only = try_lock(self._descriptor)
                try_lock(self._descriptor, shared=True)  # a failed try has given the share back
            except OSError:
                return False  # a file system without locks: it can't be told
            return only

    def leave(self) -> None:
        """Not be present any more."""
        with self._guard:
            descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            if os.getpid() == self._process:  # in a forked child, the lock is the parent's
                unlock(descriptor)
            os.close(descriptor)


def _share(descriptor: int) -> None:
    try:
        shared = wait_lock(descriptor, _REMOVAL_SECONDS, shared=True)
    except OSError:
        return  # a file system without locks: removers refuse such a session
    if not shared:
        raise SessionInUse(
            "Another process is deleting this session. Nothing was opened. Try again when it is "
            "done, or take another session id."
        )


@contextmanager
def alone(private: Folder) -> Iterator[None]:
    """Nobody uses the session meanwhile, nor begins to.

    Args:
        private: The session's private folder.

    Raises:
        SessionInUse: somebody uses it, in this process or in another.
        OSError: it can't be told.
    """
    with ExitStack() as held:
        for name in (PRESENT, LOCK):
            descriptor = private.open_regular(name, os.O_RDWR | os.O_CREAT)
            held.callback(os.close, descriptor)
            if not try_lock(descriptor):
                raise SessionInUse(
                    "This session is open, in this process or in another one. Nothing was deleted. "
                    "Close its sandbox, or shut its kernel down, and try again."
                )
            held.callback(unlock, descriptor)
        yield


def is_used(private: Folder) -> bool:
    """Whether somebody uses the session now. Nothing is made or changed.

    Raises:
        OSError: it can't be told.
    """
    with ExitStack() as held:
        for name in (PRESENT, LOCK):
            try:
                descriptor = private.open_regular(name, os.O_RDWR)
            except FileNotFoundError:
                continue
            held.callback(os.close, descriptor)
            if not try_lock(descriptor):
                return True
            unlock(descriptor)
        return False
