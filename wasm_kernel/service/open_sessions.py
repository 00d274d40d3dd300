"""`OpenSessions`: the sessions of a service that have a worker, with their folders open.

An open session is in use: no other process deletes or prunes it.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.service.open_message import Open
from wasm_kernel.service.session_worker import SessionWorker
from wasm_kernel.sessions.root import SessionsRoot, WorkspaceError
from wasm_kernel.sessions.session import DELETED, Session


class OpenSessions:
    """The open sessions of a service. Each session's own thread opens and closes it."""

    def __init__(self, root: SessionsRoot) -> None:
        self._root = root
        self._open: dict[SessionWorker, Session] = {}

    def open(self, session: SessionWorker) -> Open:
        """Opens a session's folders; returns the message that makes its new worker open them.

        Raises the errors of `Session`.
        """
        opened = session.opened
        policy = opened.policy
        mounts = ExecutionPolicy.from_values(policy).mounts if policy["mounts"] else ()
        # `known`: no event is sent, and a deleted session does not come back empty
        own = Session(self._root, opened.session_id, known=True, mounts=mounts)
        self._open[session] = own
        if opened.files_of and not Path(opened.files_of).is_dir():
            raise WorkspaceError(DELETED)
        notices = (*own.folders.notices, *opened.notices)
        session.opened = replace(opened, folders=own.folders.opened_folders, notices=notices)
        return session.opened

    def close(self, session: SessionWorker) -> None:
        """Closes a session's folders, if they are open."""
        if (own := self._open.pop(session, None)) is not None:
            own.leave()
