"""The registry of the sandboxes whose sessions are open in this process, one for each session.

All callers that ask for an open session get the same sandbox. It is closed as follows:

- `sandbox.close()` closes it for all callers at once. Nothing is lost: the session's next sandbox
  goes on with the same variables and files.
- A `with` block closes it at its end, unless another caller got it and has not left its own block.
- `prune_sessions` closes it if the session is old enough, no cell runs in it and no other process
  has the session open. `delete_session_workspace` closes it even if a cell runs.
- Sandboxes that are still open when the process ends are closed then.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar, cast

from wasm_kernel.errors import SessionInUse


class CellRuns(SessionInUse):
    """The error of a session that is not closed because a cell runs in it."""


class OpenSandbox(Protocol):
    """The part of a sandbox that the registry uses."""

    @property
    def closed(self) -> bool:
        """True if the sandbox is closed."""

    @property
    def busy(self) -> bool:
        """True if a cell runs or waits."""

    def close_if_idle(self, why: str) -> bool:
        """Closes the sandbox, unless it is busy; returns whether it is closed."""

    def close(self, *, why: str = ...) -> None:
        """Closes the sandbox; later calls raise `why`."""


AnySandbox = TypeVar("AnySandbox", bound=OpenSandbox)


class _Open:
    """A sandbox of the registry, and the counts of its users. Guarded by the registry's lock.

    Each caller that gets the sandbox has a handle. A `with` block uses up one handle; a block
    inside another one uses up none.
    """

    def __init__(self, sandbox: OpenSandbox, is_only: Callable[[], bool]) -> None:
        self.sandbox = sandbox
        self.is_only = is_only
        self.handles, self.blocks = 1, 0
        self.leaving = False
        self.gone = threading.Event()

    @property
    def closing(self) -> bool:
        return self.leaving or self.sandbox.closed


class OpenSandboxes:
    """The open sandboxes of this process by the real paths of their workspaces. Any thread."""

    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._open: dict[Path, _Open] = {}
        self._parents: list[dict[Path, _Open]] = []

    def begin_anew(self) -> None:
        """Empties the registry in a forked process: the open sandboxes belong to its parent."""
        self._parents.append(self._open)
        self._guard, self._open = threading.RLock(), {}

    def add(self, workspace: Path, sandbox: OpenSandbox, is_only: Callable[[], bool]) -> None:
        """Registers a new sandbox by its workspace's real path.

        `is_only` returns whether no other process or sandbox has the session open.
        """
        with self._guard:
            self._open[workspace] = _Open(sandbox, is_only)

    def get(
        self, workspace: Path, make: Callable[[], AnySandbox], found: Callable[[AnySandbox], None]
    ) -> AnySandbox:
        """Returns the open sandbox of a workspace, or makes one, which adds itself here.

        Waits for a sandbox that is being closed, so that the new one finds its saved state. `found`
        is called with the open one; it raises if that does not fit the caller's arguments.
        """
        while True:
            with self._guard:
                if (entry := self._open.get(workspace)) is None:
                    return make()
                if not entry.closing:
                    sandbox = cast("AnySandbox", entry.sandbox)  # one class in a process
                    found(sandbox)
                    entry.handles += 1
                    return sandbox
            entry.gone.wait()

    def entered(self, workspace: Path) -> None:
        """Counts the beginning of a sandbox's `with` block."""
        with self._guard:
            if (found := self._open.get(workspace)) is not None:
                found.handles = max(0, found.handles - 1)
                found.blocks += 1

    def left(self, workspace: Path) -> bool:
        """Counts the end of a `with` block; returns whether the sandbox must be closed now."""
        with self._guard:
            if (found := self._open.get(workspace)) is None:
                return True
            found.blocks -= 1
            found.leaving = found.leaving or not (found.handles or found.blocks)
            return found.leaving

    def remove(self, workspace: Path) -> None:
        """Removes a closed sandbox, and wakes the threads that wait for that."""
        with self._guard:
            found = self._open.pop(workspace, None)
        if found is not None:
            found.gone.set()

    def check(self, workspace: Path, *, stop_cell: bool = False) -> _Open | None:
        """Returns the sandbox that is open on a workspace; None if there is none.

        Raises `SessionInUse` if it can't be closed, as the session is open elsewhere, too, or,
        without `stop_cell`, `CellRuns` if a cell runs in it.
        """
        with self._guard:
            found = self._open.get(workspace)
        if found is not None and not found.closing:
            if found.sandbox.busy and not stop_cell:
                raise CellRuns
            if not found.is_only():
                raise SessionInUse(
                    "This session is open elsewhere, too, in another process or another sandbox. "
                    "Nothing was deleted or closed. Close it there, or shut its kernel down, and "
                    "try again."
                )
        return found

    def close(self, workspace: Path, why: str, *, stop_cell: bool = False) -> None:
        """Closes the sandbox that is open on a workspace, if any; later calls raise `why`.

        Raises as `check`; nothing was closed.
        """
        if (found := self.check(workspace, stop_cell=stop_cell)) is not None:
            if stop_cell:
                found.sandbox.close(why=why)
            elif not found.sandbox.close_if_idle(why):
                raise CellRuns
            found.gone.wait()

    def close_all(self) -> None:
        """Closes every sandbox when the process ends."""
        with self._guard:
            left = [found.sandbox for found in self._open.values()]
        for sandbox in left:
            sandbox.close()


OPEN_SANDBOXES = OpenSandboxes()
atexit.register(OPEN_SANDBOXES.close_all)
os.register_at_fork(after_in_child=OPEN_SANDBOXES.begin_anew)
