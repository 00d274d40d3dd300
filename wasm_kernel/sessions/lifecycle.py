"""`delete_session_workspace`: the end of a session."""

from __future__ import annotations

import os
from pathlib import Path

from wasm_kernel import events
from wasm_kernel.events import SandboxLogger
from wasm_kernel.linux.folders import open_named
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.paths import WORKSPACE_ROOT
from wasm_kernel.sessions.removal import ASKED, Deleter
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import WorkspaceError


def delete_session_workspace(
    session_id: str,
    workspace_root: Path | str = WORKSPACE_ROOT,
    logger: SandboxLogger | None = None,
    *,
    private_root: Path | str | None = None,
) -> None:
    """Deletes a session: its files, its variables, its folder. Does nothing if there is none.

    An open sandbox of the session in this process is closed first. Links in the session are
    deleted, but not their targets. If the id is a link to a session in the same root, that session
    is deleted with all links to it.

    Args:
        session_id: Letters, digits and hyphens.
        workspace_root: The folder that holds the sessions' folders.
        logger: Gets the events; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.

    Raises:
        SessionIdError: `session_id` is not a session id (a `ValueError`).
        SessionInUse: another process uses the session; nothing was deleted.
        OverlapError: the root is one of the host's own folders.
        WorkspaceError: the name is not that of a session's folder, or a file in the folder can't
            be deleted.
    """
    asked, log = ids.checked(session_id), SandboxLogger.of(logger)
    root = SessionsRoot(workspace_root, private_root)
    name = root.target_of(asked)
    root.check(name)
    try:
        with open_named(workspace_root) as top:
            deleter = Deleter(root, top)
            deleter.finish_earlier()
            deleter.delete(name, ASKED)
    except FileNotFoundError:
        return
    except OSError as problem:
        raise WorkspaceError(
            f"Session {name} can't be deleted ({os.strerror(problem.errno or 0)}). What was "
            "deleted before is gone. Look at the permissions of its folder, and try again."
        ) from problem
    log.log_event(events.SESSION_DELETED, session_id=name)
