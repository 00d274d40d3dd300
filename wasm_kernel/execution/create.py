"""`create_local_sandbox`: a sandbox in this process, on a workspace folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.interfaces import SessionHooks
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.hiding import check_opening
from wasm_kernel.folders.locks import Resume
from wasm_kernel.guests.base import GuestLanguage, load, switched_off
from wasm_kernel.linux.broker import Broker
from wasm_kernel.linux.folders import real_path
from wasm_kernel.policy import ExecutionPolicy, RuntimeType

if TYPE_CHECKING:
    from wasm_kernel.execution.sandbox import LocalSandbox

_NOT_ALLOWED = (
    "%{name} is not allowed in this sandbox. The program that makes it can allow it, with pip=True."
)


def open_workspace(
    workspace: Path | str, policy: ExecutionPolicy, private_root: Path | str | None = None
) -> SandboxFolders:
    """Opens a workspace outside of sessions; makes it if it does not exist.

    Raises:
        PolicyError: a mount overlaps the workspace, another one, or a folder of the host's own.
        PlantedLinkError: `workspace` is a relative path that leads through a link.
        OverlapError: the workspace is, contains or lies in a folder that no cell may reach.
        PrivateFolderError: there is no place for private state.
        OSError: the workspace can't be made.
    """
    from wasm_kernel.folders.orphans import remove_due_daily

    guards = check_opening(real_path(workspace), None, policy.mounts, private_root)
    folders = SandboxFolders.of_workspace(Path(workspace), private_root, guards)
    try:
        folders.mounted(policy.mounts)
    except BaseException:
        folders.close()
        raise
    remove_due_daily()
    return folders


def create_local_sandbox(
    folders: SandboxFolders,
    runtime: RuntimeType | str = RuntimeType.PYTHON,
    policy: ExecutionPolicy | None = None,
    logger: SandboxLogger | None = None,
    *,
    session_id: str | None = None,
    resume: Resume | str = Resume.NEVER,
    hooks: SessionHooks | None = None,
    language: GuestLanguage | None = None,
    broker: Broker | None = None,
    quiet: bool = False,
    pip: bool = False,
) -> LocalSandbox:
    """Makes a sandbox whose guest lives in this process; its first cell or `start` begins it.

    Args:
        folders: The sandbox's folders, which it closes.
        runtime: The guest's language, or its name.
        policy: The limits; the defaults fit a notebook.
        logger: Gets events; silent by default.
        session_id: The session that the folders belong to.
        resume: When to go on with the variables that an earlier process left there, also as
            text: `never`, `crash` or `always`.
        hooks: The session's hooks, if there is a session.
        language: The guest's language; by default, the instance that this process shares.
        broker: Does the work of host commands beyond this process's confinement; by default, this
            process does it.
        quiet: Whether the first cell gives no notice if the session goes on as it was left.
        pip: Whether cells may install pure-Python packages with `%pip`.

    Raises:
        ValueError: there is no guest for `runtime`.
        TypeError: `policy` is not a policy, or `logger` not a logger.
        PolicyError: a mount overlaps another folder.
    """
    from wasm_kernel.execution.sandbox import LocalSandbox  # only a guest in this process needs it

    bound = check(runtime, policy, logger)
    resume = Resume.checked(resume)
    if language is None:
        language = load(RuntimeType.checked(runtime))
    if session_id is not None:
        bound = bound.bind(session_id=session_id)
    limits = policy or ExecutionPolicy()
    try:
        folders.mounted(limits.mounts)
    except BaseException:
        folders.close()
        raise
    sandbox = LocalSandbox(
        language,
        folders,
        limits,
        bound,
        session_id,
        resume=resume,
        hooks=hooks,
        broker=broker,
        quiet=quiet,
    )
    if pip:
        sandbox.offer_pip()
    else:
        _say_not_allowed(sandbox)
    return sandbox


def _say_not_allowed(sandbox: LocalSandbox) -> None:
    for name in sandbox.language_commands:
        sandbox.commands.add(name, switched_off(_NOT_ALLOWED.format(name=name)))


def check(
    runtime: RuntimeType | str, policy: ExecutionPolicy | None, logger: SandboxLogger | None
) -> SandboxLogger:
    """Checks a sandbox's arguments before anything is made for it.

    Returns the logger for its events. Raises `ValueError` or `TypeError` like
    `create_local_sandbox`.
    """
    RuntimeType.checked(runtime)
    if policy is not None and not isinstance(policy, ExecutionPolicy):
        raise TypeError(f"policy is an ExecutionPolicy, not {type(policy).__name__}")
    return SandboxLogger.of(logger)
