"""That a session is open somewhere: a lock that its users share, and that its remover has alone.

The history's own lock (`sandbox/history/claim.py`) says which one process keeps the variables. This
one says that anybody uses the session at all: a second kernel on it, a sandbox that has not begun
yet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from wasm_kernel.engine.folders import walk
from wasm_kernel.engine.locks import try_lock, unlock, wait_lock
from wasm_kernel.errors import SessionInUse
from wasm_kernel.sandbox.history.claim import LOCK
from wasm_kernel.sandbox.private import PRIVATE

_NAME = "present"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_ATTEMPTS = 1000  # to be faster than whoever deletes the session; then something else is wrong
_REMOVAL_SECONDS = 30.0  # for another process to finish deleting the session


class Presence:
    """One user's share of the lock. Any thread may leave; that is idempotent."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._process = os.getpid()

    @classmethod
    def enter(cls, private: Callable[[], Path]) -> Presence:
        """Be present in a session.

        Args:
            private: Makes the session's private folder, where it is missing, and says where it is.

        Raises:
            SessionInUse: another process has been deleting the session for too long.
            OSError: the folder can't be made or opened.
        """
        while True:
            path, descriptor = _opened(private)
            try:
                _share(descriptor)
                if _same(descriptor, path):
                    return cls(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # that lock went away with a session that was deleted

    def is_only(self) -> bool:
        """Whether nobody else is present, here or in another process."""
        if self._descriptor < 0:
            return False
        try:
            only = try_lock(self._descriptor)
            try_lock(self._descriptor, shared=True)  # a try that failed has given the share back
        except OSError:
            return False  # a file system without locks: it can't be told
        return only

    def leave(self) -> None:
        """Not be present any more."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            if os.getpid() == self._process:  # in a forked child, the lock is the parent's
                unlock(descriptor)
            os.close(descriptor)


def _opened(private: Callable[[], Path]) -> tuple[Path, int]:
    """The lock's file, open; others may delete the session while its folder is made."""
    for left in reversed(range(_ATTEMPTS)):
        try:
            path = private() / _NAME
            return path, os.open(path, _FLAGS, 0o600)
        except FileNotFoundError:
            if not left:
                raise
    raise AssertionError("there are attempts")


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


def _same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


@contextmanager
def alone(workspace: int) -> Iterator[None]:
    """Nobody uses the session meanwhile, nor begins to.

    Args:
        workspace: A descriptor of the session's folder.

    Raises:
        SessionInUse: somebody uses it, in this process or in another.
        OSError: it can't be told.
    """
    with ExitStack() as held:
        with suppress(FileExistsError):
            os.mkdir(PRIVATE, 0o700, dir_fd=workspace)
        private = held.enter_context(walk.opened(PRIVATE, workspace))
        for name in (_NAME, LOCK):
            descriptor = os.open(name, _FLAGS, 0o600, dir_fd=private)
            held.callback(os.close, descriptor)
            if not try_lock(descriptor):
                raise SessionInUse(
                    "This session is open, in this process or in another one. Nothing was deleted. "
                    "Close its sandbox, or shut its kernel down, and try again."
                )
            held.callback(unlock, descriptor)
        yield


def is_used(workspace: int) -> bool:
    """Whether somebody uses the session now. Nothing is made or changed.

    Raises:
        OSError: it can't be told.
    """
    with ExitStack() as held:
        try:
            private = held.enter_context(walk.opened(PRIVATE, workspace))
        except FileNotFoundError:
            return False
        for name in (_NAME, LOCK):
            try:
                descriptor = os.open(name, _FLAGS & ~os.O_CREAT, dir_fd=private)
            except FileNotFoundError:
                continue
            held.callback(os.close, descriptor)
            if not try_lock(descriptor):
                return True
            unlock(descriptor)
        return False
