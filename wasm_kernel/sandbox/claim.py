"""Who a session's history belongs to: one process at a time, and how the last one ended."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from wasm_kernel.engine.locks import FileLock

LOCK = "lock"
"""The file in the private folder that the claim's holder has locked."""

_ALIVE = "alive"
_WAIT_SECONDS = 0.1  # who looks whether a session is alive has the lock for an instant


class Resume(str, Enum):
    """When a session goes on from what an earlier process left of its variables."""

    NEVER = "never"
    CRASH = "crash"
    ALWAYS = "always"


class Claim:
    """A process's claim on the private folder of a session. The guest's thread owns it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = FileLock(folder / LOCK)
        self._alive = folder / _ALIVE
        self.held = False
        self.crashed = False

    def take(self) -> bool:
        """Claim the folder; False where another living process has it.

        Afterwards `crashed` tells whether the last holder ended without giving it back.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.held = self._lock.acquire(_WAIT_SECONDS)
        if self.held:
            self.crashed = self._alive.exists()
            self._alive.touch(mode=0o600)
        return self.held

    def wants(self, resume: Resume) -> bool:
        """Whether what an earlier process left is to be used."""
        if not self.held:
            return False
        return resume is Resume.ALWAYS or (resume is Resume.CRASH and self.crashed)

    def give_back(self) -> None:
        """The process ends as it should; idempotent."""
        if self.held:
            self.held = False
            self._alive.unlink(missing_ok=True)
            self._lock.release()
