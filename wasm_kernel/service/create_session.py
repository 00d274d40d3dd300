"""The session functions that make sandboxes.

A session has a folder, `workspace_root/<session_id>/`, and a private one elsewhere. With its id,
its files and variables can be had again, in this process or in a later one. In one process a
session has one sandbox (`sessions/open_sandboxes.py` says who closes it).
"""

from __future__ import annotations

from pathlib import Path

from wasm_kernel import events
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.base_sandbox import BaseSandbox
from wasm_kernel.execution.interfaces import NewSession
from wasm_kernel.folders import orphans
from wasm_kernel.folders.locks import Resume
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.service.making import Isolation, Making
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.open_sandboxes import OPEN_SANDBOXES
from wasm_kernel.sessions.paths import WORKSPACE_ROOT
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session


def create_session_sandbox(
    runtime: RuntimeType | str = RuntimeType.PYTHON,
    policy: ExecutionPolicy | None = None,
    workspace_root: Path | str = WORKSPACE_ROOT,
    logger: SandboxLogger | None = None,
    *,
    private_root: Path | str | None = None,
    pip: bool = False,
    isolation: Isolation = "worker",
) -> tuple[str, BaseSandbox]:
    """Makes a new session and its sandbox.

    Args:
        runtime: The guest's language, or its name.
        policy: The limits; the defaults fit a notebook.
        workspace_root: The folder that holds the sessions' folders, made if it is not there.
        logger: Gets the events, each with the session's id; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.
        pip: Whether cells may install packages, as `offer_pip` says.
        isolation: Where the guest lives, as `create_sandbox`.

    Returns:
        The session's id, a random UUID, and the sandbox. The guest starts with the first cell
        or with `start`.

    Raises:
        WorkspaceError: the session's folder can't be made.
        ValueError, TypeError: as `create_sandbox`; no session is made.
    """
    making = Making(runtime, policy, logger, pip, isolation)
    root = SessionsRoot(workspace_root, private_root)
    session = Session(root, ids.new(), making.logger, new=True, mounts=making.policy.mounts)
    orphans.sweep_now_and_then()
    try:
        return session.id, _sandbox_of(session, making)
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
    isolation: Isolation = "worker",
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
        isolation: Where the guest lives, as `create_sandbox`. An open sandbox stays where it is.

    Raises:
        SessionIdError: `session_id` is not a session id (a `ValueError`).
        ValueError, TypeError: as `create_sandbox`; nothing was opened or made.
        SessionInUse: another process is deleting the session.
        WorkspaceError: the session's folder can't be made or opened.
    """
    asked = ids.checked(session_id)
    making = Making(runtime, policy, logger, pip, isolation)
    root = SessionsRoot(workspace_root, private_root)
    name = root.target_of(asked)

    def make() -> BaseSandbox:
        session = Session(root, name, making.logger, mounts=making.policy.mounts)
        return _sandbox_of(session, making)

    def found(sandbox: BaseSandbox) -> None:
        sandbox.adopt(policy, None if logger is None else making.logger)
        if pip:
            sandbox.offer_pip()
        path = root.path / name
        making.logger.log_event(events.SESSION_RETRIEVED, session_id=name, workspace_path=path)

    return OPEN_SANDBOXES.get(root.path / name, make, found)


def _sandbox_of(session: Session, making: Making) -> BaseSandbox:
    """Returns the sandbox of a session, which is closed if there can't be one."""
    try:
        new = NewSession(session.folders, session.id, session)
        return making.sandbox_in(new, Resume.ALWAYS)
    except BaseException:
        session.closed()
        raise
