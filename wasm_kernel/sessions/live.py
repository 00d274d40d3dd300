"""The sessions that are open in this process: one sandbox each, found again and not started twice.

A session has at most one sandbox in a process, and the process keeps it: whoever asks for the
session is handed that one. Who closes it?

- `sandbox.close()` ends it for everybody at once. Nothing is lost: the next one that is asked for
  goes on with the same variables and files.
- A `with` block closes it at its end, unless somebody else was handed it and has not left his own.
- `prune_sessions` closes it if the session is due, no cell runs in it and no other process has the
  session open. `delete_session_workspace` closes it even if a cell runs.
- What is still open when the process ends is closed then.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from wasm_kernel.errors import SessionInUse

if TYPE_CHECKING:
    from wasm_kernel.execution.sandbox import BaseSandbox


RUNNING_CELL, ANOTHER_PROCESS = "running_cell", "another_process"


class Holders:
    """Who has been handed a sandbox, and who has left it. Guarded by the registry's lock.

    A `with` block takes up one handing over; a block inside another one takes up none.
    """

    def __init__(self) -> None:
        self._handed = 1
        self._inside = 0

    def handed(self) -> None:
        """Somebody else has been given the sandbox."""
        self._handed += 1

    def entered(self) -> None:
        """A `with` block begins."""
        self._handed = max(0, self._handed - 1)
        self._inside += 1

    def left(self) -> bool:
        """A `with` block ends; whether it was the last that anybody has to do with the sandbox."""
        self._inside -= 1
        return not (self._handed or self._inside)


class _Open:
    """A sandbox of the registry, its holders, and whether it is being closed."""

    def __init__(self, sandbox: BaseSandbox, is_only: Callable[[], bool]) -> None:
        self.sandbox = sandbox
        self.is_only = is_only
        self.holders = Holders()
        self.leaving = False
        self.gone = threading.Event()

    @property
    def closing(self) -> bool:
        return self.leaving or self.sandbox.closed


class Live:
    """The open sandboxes of this process by the real paths of their workspaces. Any thread."""

    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._open: dict[Path, _Open] = {}
        self._parents: list[dict[Path, _Open]] = []

    def begin_anew(self) -> None:
        """This process was forked: what its parent has open is not open here, nor ours to close."""
        self._parents.append(self._open)
        self._guard, self._open = threading.RLock(), {}

    def add(self, workspace: Path, sandbox: BaseSandbox, is_only: Callable[[], bool]) -> None:
        """A sandbox has been made.

        Args:
            workspace: Its workspace's real path.
            sandbox: The sandbox.
            is_only: Says whether nobody else, such as another process, has the session open.
        """
        with self._guard:
            self._open[workspace] = _Open(sandbox, is_only)

    def get(
        self,
        workspace: Path,
        make: Callable[[], BaseSandbox],
        found: Callable[[BaseSandbox], None],
    ) -> BaseSandbox:
        """The sandbox that is open on a workspace, or a new one.

        One that is being closed is waited for, so that the next finds what it saved.

        Args:
            workspace: The workspace's real path.
            make: Makes a sandbox that adds itself here.
            found: Hears of the open sandbox, and raises where it is not what is asked for.
        """
        while True:
            with self._guard:
                one = self._open.get(workspace)
                if one is None:
                    return make()
                if not one.closing:
                    found(one.sandbox)
                    one.holders.handed()
                    return one.sandbox
            one.gone.wait()

    def entered(self, workspace: Path) -> None:
        """A `with` block of a sandbox begins."""
        with self._guard:
            if (found := self._open.get(workspace)) is not None:
                found.holders.entered()

    def left(self, workspace: Path) -> bool:
        """A `with` block ends; whether the sandbox is to be closed now."""
        with self._guard:
            found = self._open.get(workspace)
            if found is None:
                return True
            found.leaving = found.holders.left() or found.leaving
            return found.leaving

    def remove(self, workspace: Path) -> None:
        """A sandbox has been closed."""
        with self._guard:
            found = self._open.pop(workspace, None)
        if found is not None:
            found.gone.set()

    def has(self, workspace: Path) -> bool:
        """Returns whether a sandbox is open on a workspace."""
        with self._guard:
            return workspace in self._open

    def user(self, workspace: Path) -> str:
        """Returns who keeps the sandbox that is open on a workspace from being closed for pruning.

        That is a cell of its own or another process; an empty text if there is nobody, or no
        sandbox.
        """
        with self._guard:
            found = self._open.get(workspace)
        if found is None:
            return ""
        if found.sandbox.busy:
            return RUNNING_CELL
        return "" if found.is_only() else ANOTHER_PROCESS

    def close(self, workspace: Path, why: str) -> None:
        """Close the sandbox that is open on a workspace, if there is one.

        Args:
            workspace: The workspace's real path.
            why: What a later call on the sandbox is told.

        Raises:
            SessionInUse: another process has the session open, too; nothing was closed.
        """
        with self._guard:
            found = self._open.get(workspace)
        if found is not None:
            if not (found.closing or found.is_only()):
                raise SessionInUse(
                    "Another process has this session open, too. Nothing was deleted or closed. "
                    "Close it there, or shut its kernel down, and try again."
                )
            found.sandbox.close(why=why)
            found.gone.wait()

    def retire(self, workspace: Path, why: str) -> str:
        """Close the sandbox that is open on a workspace, unless somebody needs it.

        Returns:
            Who needs it, as `user`; an empty text if no sandbox is open there any more.
        """
        needed = self.user(workspace)
        if not needed:
            with self._guard:
                found = self._open.get(workspace)
            if found is not None:
                if not found.sandbox.retire(why):
                    return RUNNING_CELL
                found.gone.wait()
        return needed

    def close_all(self) -> None:
        """Close every sandbox; the process ends."""
        with self._guard:
            left = [found.sandbox for found in self._open.values()]
        for sandbox in left:
            sandbox.close()


LIVE = Live()
atexit.register(LIVE.close_all)
os.register_at_fork(after_in_child=LIVE.begin_anew)
