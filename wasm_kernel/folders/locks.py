"""A session's two locks: who keeps its history, and whether anybody uses it at all.

One process at a time keeps a session's history. Any number of them may use the session: a second
kernel on it, a sandbox that has not begun yet; only whoever removes it has it alone. Both locks lie
in the session's private folder.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum

from wasm_kernel.errors import SessionInUse
from wasm_kernel.folders.folders import PRESENT
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.locks import FileLock, try_lock, unlock, wait_lock

LOCK = "lock"
"""The file in the private folder that whoever keeps the history has locked."""

_ALIVE, _ANEW, _FORKED = "alive", "anew", "forked"
_WAIT_SECONDS = 0.1  # who looks whether a session is alive has the lock for an instant
_REMOVAL_SECONDS = 30.0  # for another process to finish deleting the session


class Resume(str, Enum):
    """When a session goes on from what an earlier process left of its variables."""

    NEVER = "never"
    CRASH = "crash"
    ALWAYS = "always"


class HistoryLock:
    """A process's lock on the history of a session. The guest's thread owns it.

    Attributes:
        held: Whether this process has it.
        crashed: Whether the last holder ended without giving it back.
        forked: Whether nobody had it since another session was forked off into it.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._lock = FileLock(LOCK, folder)
        self.held = self.crashed = self.forked = self._begins_anew = self._is_settled = False

    def take(self) -> bool:
        """Takes the lock; returns False if another living process has it.

        Call `settled` when the history is what it is to be: until then, another start would find
        the folder as this one did.
        """
        self.held = self._lock.acquire(_WAIT_SECONDS)
        if self.held:
            self.crashed = _is_noted(self._folder, _ALIVE)
            self.forked = _is_noted(self._folder, _FORKED)
            self._begins_anew = _is_noted(self._folder, _ANEW)
            _note(self._folder, _ALIVE)
        return self.held

    def settled(self) -> None:
        """Forgets what the last holder asked for, as it was done."""
        if self.held:
            self._folder.remove(_ANEW)
            self._folder.remove(_FORKED)
            self._is_settled = True

    def wants(self, resume: Resume) -> bool:
        """Returns whether what an earlier process left is to be used."""
        if not self.held or self._begins_anew:
            return False
        left_for_us = self.crashed or self.forked
        return resume is Resume.ALWAYS or (resume is Resume.CRASH and left_for_us)

    def begin_anew(self) -> None:
        """Lets the next holder begin anew, whatever it is told. Any thread."""
        if self.held:
            with contextlib.suppress(OSError):
                _note(self._folder, _ANEW)

    def release(self, *, ended: bool = True) -> None:
        """Gives the lock back. Safe to call twice.

        Args:
            ended: Whether all that is on disk says so, as it should. If not, or if the history was
                never `settled`, the next holder finds it as after a crash.
        """
        if self.held:
            self.held = False
            if ended and self._is_settled:
                with contextlib.suppress(OSError):
                    self._folder.remove(_ALIVE)
            self._lock.release()


def _note(folder: Folder, name: str) -> None:
    """Notes something by an empty file; what lay in its place is gone.

    Raises:
        OSError: it can't be noted.
    """
    with folder.replacing(name):
        pass


def _is_noted(folder: Folder, name: str) -> bool:
    status = folder.status(name)
    return status is not None and stat.S_ISREG(status.st_mode)


def note_forked(folder: Folder) -> None:
    """Notes that the session of a private folder was forked off: it waits for its first holder.

    Raises:
        OSError: that can't be noted.
    """
    _note(folder, _FORKED)


def begins_anew(folder: Folder) -> bool:
    """Returns whether whoever takes a session's history next is to begin anew."""
    return _is_noted(folder, _ANEW)


class PresenceLock:
    """One user's share of the lock that tells others that a session is in use.

    Any thread may release it. Look afterwards whether the private folder is still there.

    Raises:
        SessionInUse: another process has been deleting the session for too long.
        OSError: the lock can't be opened.
    """

    def __init__(self, private: Folder) -> None:
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._descriptor = private.open_regular(PRESENT, os.O_RDWR | os.O_CREAT)
        try:
            _share(self._descriptor)
        except BaseException:
            os.close(self._descriptor)
            raise

    def is_only(self) -> bool:
        """Returns whether nobody else uses the session, here or in another process."""
        with self._guard:
            if self._descriptor < 0:
                return False
            try:
                only = try_lock(self._descriptor)
                try_lock(self._descriptor, shared=True)  # a failed try has given the share back
            except OSError:
                return False  # a file system without locks: it can't be told
            return only

    def release(self) -> None:
        """Gives the share back. Safe to call twice."""
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
def exclusively(private: Folder) -> Iterator[None]:
    """Keeps everybody from using a session while the block runs.

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
    """Returns whether somebody uses the session now. Nothing is made or changed.

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
