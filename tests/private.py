"""Finds the private folders of workspaces, for tests that inspect them, or keeps them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from wasm_kernel import ExecutionPolicy, RuntimeType, Sandbox, SandboxLogger
from wasm_kernel.folders import places
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.locks import PresenceLock, Resume
from wasm_kernel.folders.private import Owner, PrivateFolders
from wasm_kernel.linux.files import FileMark
from wasm_kernel.linux.folders import Folder
from wasm_kernel.service.program_home import ProgramHome, opened_in
from wasm_kernel.service.workspace import NoSession


def private_of(workspace: Path) -> Path:
    """The private folder of a session, or of an open sandbox outside of sessions."""
    real = workspace.resolve()
    with Folder.open(real) as folder:
        found = PrivateFolders(real.parent).find(real.name, folder)
        if found is not None:
            found.close()
            return found.path
        mark = FileMark.of(folder.fd)
    for place in places.places():
        with place:
            for name in filter(lambda name: name.startswith(".sandbox-"), place.names()):
                with place.enter(name) as private:
                    owner = Owner.of(private)
                if owner is not None and owner.mark.same(mark):
                    return place.path / name
    raise FileNotFoundError(f"{workspace} has no private folder")


def folders_of(workspace: Path, *, outside_sessions: bool = False) -> SandboxFolders:
    """The folders of a session, made if they are missing; the caller closes them.

    Args:
        workspace: The workspace.
        outside_sessions: Whether its guest is one of a sandbox outside of sessions.
    """
    real = workspace.resolve()
    real.mkdir(parents=True, exist_ok=True)
    folder = Folder.open(real)
    privates = PrivateFolders(real.parent)
    if outside_sessions:  # such a sandbox does not make the folder above a root of sessions
        found = privates.find(real.name, folder) or privates._make(real.name, folder)
    else:
        found = privates.open(real.name, folder)
    presence = PresenceLock(found) if outside_sessions else None
    return SandboxFolders(
        workspace, real, folder, found, outside_sessions=outside_sessions, presence=presence
    )


def kept_sandbox(
    runtime: RuntimeType | str = "python",
    workspace: Path | str = "workspace",
    policy: ExecutionPolicy | None = None,
    logger: SandboxLogger | None = None,
    *,
    resume: Resume | str = Resume.ALWAYS,
) -> Sandbox:
    """A sandbox outside of sessions whose private state is kept; `resume` as in a kernel."""
    policy, folders = (
        policy or ExecutionPolicy(),
        folders_of(Path(workspace), outside_sessions=True),
    )
    new, mode = NoSession(folders), Resume(resume)
    opened = opened_in(new, runtime, policy, resume=mode, pip=False, quiet=False)
    return ProgramHome(new).sandbox(opened, policy, SandboxLogger.of(logger))


def opening(
    ending: ExitStack, folder: Path, runtime: str = "python", resume: Resume = Resume.NEVER
) -> Callable[..., Sandbox]:
    """Opens sandboxes in a folder, whose private state is kept; they are closed after the test."""

    def opened(name: str = "app", resume: Resume = resume, **limits: Any) -> Sandbox:
        policy = ExecutionPolicy(**limits)
        return ending.enter_context(
            closing(kept_sandbox(runtime, folder / name, policy, resume=resume))
        )

    return opened


def private_folders() -> list[Path]:
    """All private folders in the user's state folder."""
    place = Path(os.environ["XDG_STATE_HOME"], "wasm-kernel", "private")
    return sorted(place.iterdir()) if place.exists() else []


def far(*folders: Path) -> Callable[[Folder, Folder], bool]:
    """Stands in for `can_link`: these folders seem to lie on another disk than all others."""

    def linked(one: Folder, other: Folder) -> bool:
        ways = [Path(f"/proc/self/fd/{each.fd}").readlink() for each in (one, other)]
        return len({any(way.is_relative_to(each) for each in folders) for way in ways}) == 1

    return linked
