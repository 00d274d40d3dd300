"""`open_workspace`: opens a workspace outside of sessions, beside which its forks will lie."""

from __future__ import annotations

from wasm_kernel.errors import ForkError, PolicyError, describe
from wasm_kernel.execution.interfaces import SessionHooks
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.hiding import check_opening
from wasm_kernel.folders.orphans import remove_due_daily
from wasm_kernel.linux.folders import real_path, undoing
from wasm_kernel.policy import ExecutionPolicy, NetworkMode, user_path
from wasm_kernel.sessions.root import WorkspaceError

_NEEDS_SESSION = (
    "is {mode}, which needs a session: outside of sessions, the record ends with the sandbox. "
    "Nothing was done. Use get_session_sandbox"
)
_CLOSED = (
    "The workspace {name!r} can't be made or opened ({why}). No sandbox was made. Set workspace to "
    "a folder that you can write to."
)


def open_workspace(workspace: str, policy: ExecutionPolicy, private_root: str | None) -> NoSession:
    """Opens a workspace outside of sessions; makes it if it does not exist.

    Raises the errors of `create_sandbox` that are about folders.
    """
    if workspace == "":  # often a variable that is not set; it would be the current folder
        raise ValueError("workspace is an empty text; name a folder, such as '.'")
    check_unrecorded(policy)
    folder = user_path(workspace)
    guards = check_opening(real_path(folder), None, policy.mounts, private_root)
    try:
        folders = SandboxFolders.of_workspace(folder, private_root, guards)
    except OSError as problem:
        raise WorkspaceError(_CLOSED.format(name=folder.name, why=describe(problem))) from problem
    with undoing(folders.close):
        folders.open_mounts(policy.mounts)
    remove_due_daily()
    return NoSession(folders)


def check_unrecorded(policy: ExecutionPolicy) -> None:
    """Raises `PolicyError` for a policy that records or replays requests."""
    if policy.network_mode != NetworkMode.LIVE:
        raise PolicyError("network_mode", _NEEDS_SESSION.format(mode=policy.network_mode))


class NoSession(SessionHooks):
    """The hooks of a sandbox outside of sessions, which only make places for forks."""

    def __init__(self, folders: SandboxFolders) -> None:
        self.folders = folders

    def new_session(self) -> NoSession:
        """Makes a workspace next to that of the sandbox, named after it, or raises `ForkError`."""
        workspace, number = self.folders.real, 1
        while True:
            folder = workspace.with_name(f"{workspace.name}-fork-{number}")
            try:
                folder.mkdir(mode=0o700)
                break
            except FileExistsError:
                number += 1
            except OSError as problem:
                raise ForkError(describe(problem)) from problem
        with undoing(folder.rmdir):
            folders = SandboxFolders.of_workspace(folder, self.folders.private_root)
        return NoSession(folders)
