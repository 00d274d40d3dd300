"""Who a session's history belongs to: one process at a time, and how the last one ended."""

from __future__ import annotations

import contextlib
from enum import Enum
from pathlib import Path

from wasm_kernel.engine.locks import FileLock

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

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = FileLock(folder / LOCK)
        self._alive, self._anew, self._forked = (folder / name for name in (_ALIVE, _ANEW, _FORKED))
        self.held = self.crashed = self.forked = self._forsaken = False

    def take(self) -> bool:
        """Claim the folder; False where another living process has it.

        Call `settled` when the history is what it is to be: until then, another start would find
        the folder as this one did.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.held = self._lock.acquire(_WAIT_SECONDS)
        if self.held:
            self.crashed = self._alive.exists()
            self.forked = self._forked.exists()
            self._forsaken = self._anew.exists()
            self._alive.touch(mode=0o600)
        return self.held

    def settled(self) -> None:
        """What the folder's last holder wished was done."""
        if self.held:
            self._anew.unlink(missing_ok=True)
            self._forked.unlink(missing_ok=True)

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
                self._anew.touch(mode=0o600)

    def give_back(self) -> None:
        """The process ends as it should; idempotent."""
        if self.held:
            self.held = False
            self._alive.unlink(missing_ok=True)
            self._lock.release()


def leave_fork(folder: Path) -> None:
    """The session that a private folder belongs to was forked off: it waits for its first holder.

    Raises:
        OSError: that can't be noted.
    """
    (folder / _FORKED).touch(mode=0o600)


def is_forsaken(folder: Path) -> bool:
    """Whether whoever claims a private folder next is to begin anew."""
    return (folder / _ANEW).exists()
