"""Who a session's history belongs to: one process at a time, and how the last one ended."""

from __future__ import annotations

import contextlib
import stat
from enum import Enum

from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.locks import FileLock

LOCK = "lock"
"""The file in the private folder that the claim's holder has locked."""

_ALIVE, _ANEW, _FORKED = "alive", "anew", "forked"
_WAIT_SECONDS = 0.1  # who looks whether a session is alive has the lock for an instant


class Resume(str, Enum):
    """When a session goes on from what an earlier process left of its variables."""

    NEVER = "never"
    CRASH = "crash"
    ALWAYS = "always"


class Claim:
    """A process's claim on the private folder of a session. The guest's thread owns it.

    Attributes:
        held: Whether this process has it.
        crashed: Whether the last holder ended without giving it back.
        forked: Whether nobody had it since another session was forked off into it.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._lock = FileLock(LOCK, folder)
        self.held = self.crashed = self.forked = self._forsaken = False

    def take(self) -> bool:
        """Claim the folder; False if another living process has it.

        Call `settled` when the history is what it is to be: until then, another start would find
        the folder as this one did.
        """
        self.held = self._lock.acquire(_WAIT_SECONDS)
        if self.held:
            self.crashed = _is_noted(self._folder, _ALIVE)
            self.forked = _is_noted(self._folder, _FORKED)
            self._forsaken = _is_noted(self._folder, _ANEW)
            _note(self._folder, _ALIVE)
        return self.held

    def settled(self) -> None:
        """What the folder's last holder wished was done."""
        if self.held:
            self._folder.remove(_ANEW)
            self._folder.remove(_FORKED)

    def wants(self, resume: Resume) -> bool:
        """Whether what an earlier process left is to be used."""
        if not self.held or self._forsaken:
            return False
        left_for_us = self.crashed or self.forked
        return resume is Resume.ALWAYS or (resume is Resume.CRASH and left_for_us)

    def forsake(self) -> None:
        """The next holder is to begin anew, whatever it is told. Any thread."""
        if self.held:
            with contextlib.suppress(OSError):
                _note(self._folder, _ANEW)

    def give_back(self) -> None:
        """The process ends as it should; idempotent."""
        if self.held:
            self.held = False
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


def leave_fork(folder: Folder) -> None:
    """The session that a private folder belongs to was forked off: it waits for its first holder.

    Raises:
        OSError: that can't be noted.
    """
    _note(folder, _FORKED)


def is_forsaken(folder: Folder) -> bool:
    """Whether whoever claims a private folder next is to begin anew."""
    return _is_noted(folder, _ANEW)
