"""Making the session that a fork lives in, by whoever may write beside the parent's folder.

A kernel's process is confined to its own session. It chooses the id of a new one while the cell
runs, and has it made when the cell is over.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from wasm_kernel import events
from wasm_kernel.errors import ForkError, describe
from wasm_kernel.events import SandboxLogger, heard_by
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.places import PrivateFolders
from wasm_kernel.linux.folders import Folder, real_path
from wasm_kernel.linux.task import QUIET, Task
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.staging import inscribe, settle, staged
from wasm_kernel.state import told
from wasm_kernel.state.plan import Plan, carry_out

_TAKEN = "there is a session of that id already"


class Founding(Protocol):
    """Who makes sessions for the forks of one. One thread's own."""

    def fork(self, session_id: str, plan: Mapping[str, Any], task: Task = QUIET) -> str:
        """Make a session as a plan says.

        Args:
            session_id: The id that it is to have; there is none of that id.
            plan: A `Plan` as JSON.
            task: Says when it is not wanted any more; then it is not made.

        Returns:
            What the cell's author must be told, such as which files were left out.

        Raises:
            WasmKernelError: it can't be made, and nothing of it is left.
        """


class Founder:
    """Makes them beside one session, in this process.

    Args:
        root: The sessions' folder.
        parent: The id of the session that is forked.
        logger: Hears of it; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.
    """

    def __init__(
        self,
        root: Path,
        parent: str,
        logger: SandboxLogger | None = None,
        private_root: Path | str | None = None,
    ) -> None:
        self._private_root = private_root
        self._root = real_path(root)
        self._parent = ids.checked(parent)
        self._logger = heard_by(logger)

    def fork(self, session_id: str, plan: Mapping[str, Any], task: Task = QUIET) -> str:
        """As `Founding` has it."""
        wanted, name = Plan.from_json(plan), ids.checked(session_id)
        if os.path.lexists(self._root / name):
            raise ForkError(_TAKEN)
        try:
            left_out = self._make(name, wanted, task)
        except OSError as problem:
            raise ForkError(describe(problem)) from problem
        self._tell(events.SESSION_CREATED, name, workspace_path=self._root / name)
        return told.left_out(left_out) if left_out else ""

    def _make(self, name: str, plan: Plan, task: Task) -> Mapping[str, str]:
        """What could not be copied."""
        with (
            contextlib.closing(self._parents_own()) as own,
            staged(self._root) as (root, made),
        ):
            left_out = carry_out(plan, own, made.folders(name, self._private_root), task)
            try:
                inscribe(made.workspace.fd, name)
            except OSError as problem:
                self._tell(events.METADATA_FAILED, name, error=describe(problem))
            if not settle(root.fd, made.aside, name):
                raise ForkError(_TAKEN)
        return left_out

    def _parents_own(self) -> SandboxFolders:
        """The folders of the session that is forked; its process can't lead them elsewhere."""
        with Folder.open(self._root) as root:
            workspace, real = root.enter(self._parent), self._root / self._parent
        found = PrivateFolders(self._root, self._private_root).open(self._parent, workspace)
        return SandboxFolders(real, real, workspace, found, self._private_root)

    def _tell(self, event: str, session_id: str, **fields: object) -> None:
        self._logger.log_event(event, session_id=session_id, **fields)
