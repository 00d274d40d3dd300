"""The life of a session: create one, get it again, delete it.

A session has a folder, `workspace_root/<session_id>/`, and a private one elsewhere. With its id,
its files and variables can be had again, in this process or in a later one. In one process a
session has one sandbox (`open_sandboxes.py` says who closes it).
"""

from __future__ import annotations

import os
from pathlib import Path

from wasm_kernel import events
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.create import check, create_sandbox, offer_pip
from wasm_kernel.execution.descriptors import make_room
from wasm_kernel.execution.sandbox import BaseSandbox
from wasm_kernel.folders import orphans
from wasm_kernel.folders.locks import Resume
from wasm_kernel.linux.folders import open_named
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.sessions import ids, removal
from wasm_kernel.sessions.open_sandboxes import OPEN_SANDBOXES
from wasm_kernel.sessions.paths import WORKSPACE_ROOT
from wasm_kernel.sessions.root import SessionsRoot, remove_links
from wasm_kernel.sessions.session import Session, WorkspaceError

_DELETED = (
    "This sandbox was closed because its session was to be deleted. Get the session again with "
    "get_session_sandbox: it goes on with what is left, or begins empty."
)


def create_session_sandbox(
    runtime: RuntimeType | str = RuntimeType.PYTHON,
    policy: ExecutionPolicy | None = None,
    workspace_root: Path | str = WORKSPACE_ROOT,
    logger: SandboxLogger | None = None,
    *,
    private_root: Path | str | None = None,
    pip: bool = False,
) -> tuple[str, BaseSandbox]:
    """Makes a new session and its sandbox.

    Args:
        runtime: The guest's language, or its name.
        policy: The limits; the defaults fit a notebook.
        workspace_root: The folder that holds the sessions' folders, made if it is not there.
        logger: Gets the events, each with the session's id; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.
        pip: Whether cells may install packages, as `offer_pip` says.

    Returns:
        The session's id, a random UUID, and the sandbox. The guest starts with the first cell
        or with `start`.

    Raises:
        WorkspaceError: the session's folder can't be made.
        ValueError, TypeError: as `create_sandbox`; no session is made.
    """
    logger = check(runtime, policy, logger)
    mounts = policy.mounts if policy is not None else ()
    make_room(policy)
    root = SessionsRoot(workspace_root, private_root)
    session = Session(root, ids.new(), logger, new=True, mounts=mounts)
    orphans.sweep_now_and_then()
    try:
        return session.id, _sandbox_in(session, runtime, policy, logger, pip=pip)
    except BaseException:
        session.folders.discard()
        raise


def get_session_sandbox(
    session_id: str,
    runtime: RuntimeType | str = RuntimeType.PYTHON,
    policy: ExecutionPolicy | None = None,
    workspace_root: Path | str = WORKSPACE_ROOT,
    logger: SandboxLogger | None = None,
    *,
    private_root: Path | str | None = None,
    pip: bool = False,
) -> BaseSandbox:
    """Returns the sandbox of a session, with the session's files and variables.

    If the session is open in this process, this is the sandbox that is open. `policy` and `logger`
    then apply to it from the next cell on, for everybody who has it; its variables stay. A session
    that does not exist is made, empty.

    `close()` ends the sandbox for everybody who has it, a `with` block only if nobody else has it;
    sandboxes that are still open are closed when the process ends. Nothing is lost in any case: the
    next one who gets the session goes on with its files and variables.

    Args:
        session_id: Letters, digits and hyphens.
        runtime: The guest's language, or its name.
        policy: The limits; by default those of the open sandbox, or limits that fit a notebook.
        workspace_root: The folder that holds the sessions' folders.
        logger: Gets the events, each with the session's id; by default that of the open sandbox, or
            nobody.
        private_root: The folder that holds private folders; one of the user's by default.
        pip: Whether cells may install packages, as `offer_pip` says. An open sandbox where they
            may goes on allowing it.

    Raises:
        SessionIdError: `session_id` is not a session id (a `ValueError`).
        ValueError, TypeError: as `create_sandbox`; nothing was opened or made.
        SessionInUse: another process is deleting the session.
        WorkspaceError: the session's folder can't be made or opened.
    """
    asked = ids.checked(session_id)
    log = check(runtime, policy, logger)
    root = SessionsRoot(workspace_root, private_root)
    name = root.target_of(asked)
    mounts = policy.mounts if policy is not None else ()

    def make() -> BaseSandbox:
        make_room(policy)
        session = Session(root, name, log, mounts=mounts)
        return _sandbox_in(session, runtime, policy, log, pip=pip)

    def found(sandbox: BaseSandbox) -> None:
        sandbox.folders.mounted(mounts)
        sandbox.adopt(policy, None if logger is None else log)
        if pip:
            offer_pip(sandbox)
        log.log_event(
            events.SESSION_RETRIEVED, session_id=name, workspace_path=sandbox.folders.real
        )

    return OPEN_SANDBOXES.get(root.path / name, make, found)


def _sandbox_in(
    session: Session,
    runtime: RuntimeType | str,
    policy: ExecutionPolicy | None,
    logger: SandboxLogger | None,
    *,
    pip: bool,
) -> BaseSandbox:
    try:
        return create_sandbox(
            runtime,
            session.workspace,
            policy,
            logger,
            session_id=session.id,
            resume=Resume.ALWAYS,
            hooks=session,
            quiet=True,
            folders=session.folders,
            pip=pip,
        )
    except BaseException:
        session.closed()
        raise


def delete_session_workspace(
    session_id: str,
    workspace_root: Path | str = WORKSPACE_ROOT,
    logger: SandboxLogger | None = None,
    *,
    private_root: Path | str | None = None,
) -> None:
    """Deletes a session: its files, its variables, its folder. Does nothing if there is none.

    A sandbox of this process that is open in the session is closed first. Links in the session are
    deleted, and what they lead to is not touched. If the id is that of a link to a session in the
    same root, that session is deleted with all links to it.

    Args:
        session_id: Letters, digits and hyphens.
        workspace_root: The folder that holds the sessions' folders.
        logger: Gets the events; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.

    Raises:
        SessionIdError: `session_id` is not a session id (a `ValueError`).
        SessionInUse: another process uses the session; nothing was deleted.
        OverlapError: the root is one of the host's own folders.
        WorkspaceError: something else than a session's folder has its name, or something in the
            folder can't be deleted.
    """
    asked, log = ids.checked(session_id), SandboxLogger.of(logger)
    root = SessionsRoot(workspace_root, private_root)
    name = root.target_of(asked)
    root.check(name)
    OPEN_SANDBOXES.close(root.path / name, _DELETED)
    try:
        with open_named(workspace_root) as top:
            removal.finish_removals(top)
            orphans.sweep_now_and_then()
            links = root.aliases().get(name, [])
            removal.remove(top, name, root.privates)
            remove_links(top, links)
    except FileNotFoundError:
        return
    except OSError as problem:
        raise WorkspaceError(
            f"Session {name} can't be deleted ({os.strerror(problem.errno or 0)}). What was "
            "deleted before is gone. Look at the permissions of its folder, and try again."
        ) from problem
    log.log_event(events.SESSION_DELETED, session_id=name)
