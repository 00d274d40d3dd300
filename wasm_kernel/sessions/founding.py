"""Making the session that a fork lives in, by whoever may write beside the parent's folder.

A kernel's process is confined to its own session. It chooses the id of a new one while the cell
runs, and has it made when the cell is over.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from wasm_kernel.engine.folders.content import Stopped
from wasm_kernel.errors import ForkError, WasmKernelError
from wasm_kernel.events import SandboxLogger
from wasm_kernel.sandbox.history import told
from wasm_kernel.sandbox.history.copying import discard
from wasm_kernel.sandbox.history.plan import Plan, carry_out
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.session import Session


class Founding(Protocol):
    """Who makes sessions for the forks of one. One thread's own."""

    def fork(
        self, session_id: str, plan: Mapping[str, Any], stopped: Stopped = lambda: False
    ) -> str:
        """Make a session as a plan says.

        Args:
            session_id: The id that it is to have; there is none of that id.
            plan: A `Plan` as JSON.
            stopped: Says when it is not wanted any more; then it is not made.

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
    """

    def __init__(self, root: Path, parent: str, logger: SandboxLogger | None = None) -> None:
        self._root = root
        self._parent = ids.checked(parent)
        self._logger = logger or SandboxLogger()

    def fork(
        self, session_id: str, plan: Mapping[str, Any], stopped: Stopped = lambda: False
    ) -> str:
        """As `Founding` has it."""
        wanted = Plan.from_json(plan)
        session = self._session(ids.checked(session_id))
        try:
            if not session.made:
                raise ForkError("there is a session of that id already")
            left_out = carry_out(wanted, session.root / self._parent, session.workspace, stopped)
        finally:
            session.closed()
        return told.left_out(left_out) if left_out else ""

    def _session(self, session_id: str) -> Session:
        place = self._root / session_id
        there = os.path.lexists(place)
        try:
            return Session(self._root, session_id, self._logger)
        except WasmKernelError:
            if not there:
                discard(place)
            raise
