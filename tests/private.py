"""Finds the private folders of workspaces, for tests that inspect them."""

from __future__ import annotations

import os
from pathlib import Path

from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.private import PrivateFolders
from wasm_kernel.linux.folders import Folder


def private_of(workspace: Path) -> Path:
    """The private folder of a session, or of a workspace outside of sessions."""
    real = workspace.resolve()
    with Folder.open(real) as folder:
        found = PrivateFolders(real.parent, lone=real.name).find(real.name, folder)
    if found is None:
        raise FileNotFoundError(f"{workspace} has no private folder")
    found.close()
    return found.path


def folders_of(workspace: Path) -> SandboxFolders:
    """The folders of a session, made if they are missing; the caller closes them."""
    real = workspace.resolve()
    real.mkdir(parents=True, exist_ok=True)
    folder = Folder.open(real)
    found = PrivateFolders(real.parent).open(real.name, folder)
    return SandboxFolders(workspace, real, folder, found)


def private_folders() -> list[Path]:
    """All private folders in the user's state folder."""
    place = Path(os.environ["XDG_STATE_HOME"], "wasm-kernel", "private")
    return sorted(place.iterdir()) if place.exists() else []
