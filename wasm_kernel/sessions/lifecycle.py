"""The folder a session lives in: made at first use, found again afterwards."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.sessions import ids

PRIVATE = ".wasm_kernel"
_OWNER_ONLY = 0o700


class WorkspaceError(WasmKernelError):
    """A session's folder could not be made or opened."""


def open_workspace(root: Path, session_id: str) -> Path:
    """The session's workspace, the folder that the guest sees as `/app`.

    It and its private part are made where they are missing, for their owner alone.

    Raises:
        SessionIdError: `session_id` is none.
        WorkspaceError: the folder can't be made, or something else is in its place.
    """
    name = ids.checked(session_id)
    try:
        root.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
        workspace = root.resolve() / name
        for folder in (workspace, workspace / PRIVATE):
            _own_folder(folder)
    except OSError as problem:
        raise WorkspaceError(
            f"The folder of session {name} can't be opened ({os.strerror(problem.errno or 0)}). "
            "Nothing was changed. Set workspace_root to a folder that you can write to."
        ) from problem
    return workspace


def _own_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=_OWNER_ONLY)
    except FileExistsError:
        # lstat, as a link planted here would lead the guest out of its root
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise WorkspaceError(
                f"The session's folder holds something else named {folder.name}. "
                "Nothing was changed. Move it away, or choose another session id."
            ) from None
