"""The session functions that make sandboxes.

A session has a folder, `workspace_root/<session_id>/`, and a private one elsewhere. Its id gives
access to its files and variables, in this process or in a later one. In one process a session has
one sandbox (`sessions/open_sandboxes.py` says when it is closed).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from wasm_kernel import events
from wasm_kernel.events import SandboxLogger
from wasm_kernel.folders import orphans
from wasm_kernel.linux.folders import undoing
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.service.functions import Functions
from wasm_kernel.service.host_function import Function, HostFunction
from wasm_kernel.service.program_home import create_in, get_ready
from wasm_kernel.service.sandbox import Sandbox
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
    functions: Iterable[Function | HostFunction] = (),
) -> tuple[str, Sandbox]:
    """Makes a new session and its sandbox.

    Args:
        runtime: The guest's language, or its name.
        policy: The limits; the defaults fit a notebook.
        workspace_root: The folder that holds the sessions' folders, made if it is not there; `~`
            is the user's home.
        logger: Gets the events, each with the session's id; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.
        pip: Whether cells may install packages, as `Sandbox.offer_pip` says.
        functions: Functions that cells may call, as `Sandbox.offer_functions` says.

    Returns:
        The session's id, a random UUID, and the sandbox. The guest starts with the first cell
        or with `start`.

    Raises:
        WorkspaceError: the session's folder can't be made.
        ValueError, TypeError: as `create_sandbox`; no session is made.
    """
    bound, limits = get_ready(runtime, policy, logger, pip=pip), policy or ExecutionPolicy()
    checked = Functions(functions)
    root = SessionsRoot(workspace_root, private_root)
    session = Session(root, ids.new(), bound, new=True, mounts=limits.mounts)
    orphans.remove_due_daily()
    with undoing(session.folders.discard), undoing(session.closed):
        sandbox = create_in(session, runtime, limits, session.logger, pip=pip, functions=checked)
    return session.id, sandbox


def get_session_sandbox(
    session_id: str,
    runtime: RuntimeType | str = RuntimeType.PYTHON,
    policy: ExecutionPolicy | None = None,
    workspace_root: Path | str = WORKSPACE_ROOT,
    logger: SandboxLogger | None = None,
    *,
    private_root: Path | str | None = None,
    pip: bool = False,
    functions: Iterable[Function | HostFunction] = (),
) -> Sandbox:
    """Returns the sandbox of a session, with the session's files and variables.

    If the session is open in this process, its open sandbox is returned. `policy` and `logger` then
    apply to it from the next cell on, for all its users; its variables stay. A session that does
    not exist is made, empty.

    `close()` ends the sandbox for all its users; a `with` block ends it only if there is no other
    user. Sandboxes that are still open are closed when the process ends. Nothing is lost in any
    case: the session's next sandbox goes on with its files and variables.

    Args:
        session_id: Letters, digits and hyphens.
        runtime: The guest's language, or its name.
        policy: The limits; by default those of the open sandbox, or limits that fit a notebook.
        workspace_root: The folder that holds the sessions' folders.
        logger: Gets the events, each with the session's id; by default that of the open sandbox, or
            none.
        private_root: The folder that holds private folders; one of the user's by default.
        pip: Whether cells may install packages, as `Sandbox.offer_pip` says. An open sandbox that
            allows it goes on allowing it.
        functions: Functions that cells may call, as `Sandbox.offer_functions` says. An open sandbox
            keeps its own if there are none.

    Raises:
        SessionIdError: `session_id` is not a session id (a `ValueError`).
        ValueError, TypeError: as `create_sandbox`; nothing was opened or made.
        SessionInUse: another process is deleting the session.
        WorkspaceError: the session's folder can't be made or opened.
    """
    asked = ids.checked(session_id)
    bound, limits = get_ready(runtime, policy, logger, pip=pip), policy or ExecutionPolicy()
    checked = Functions(functions)
    root = SessionsRoot(workspace_root, private_root)
    name = root.target_of(asked)

    def make() -> Sandbox:
        session = Session(root, name, bound, mounts=limits.mounts)
        with undoing(session.closed):
            return create_in(session, runtime, limits, session.logger, pip=pip, functions=checked)

    def found(sandbox: Sandbox) -> None:
        sandbox.reconfigure(policy, None if logger is None else bound)
        if pip:
            sandbox.offer_pip()
        if checked.offered:
            sandbox.take_functions(checked)
        path = root.path / name
        bound.log_event(events.SESSION_RETRIEVED, session_id=name, workspace_path=path)

    return OPEN_SANDBOXES.get(root.path / name, make, found)
