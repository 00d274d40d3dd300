"""Links in the sessions' folder: other names of sessions that lie there, too.

A link that is named by a UUID is followed as long as it stays inside the sessions' folder and leads
to a session directly in it. The session's id, its lock and its private folder are those of the
target. All other links are no sessions: the guest of a sandbox that has the sessions' folder as its
workspace can make links there, though none named by a UUID, and could give somebody another one's
session. The way is walked by `paths.resolve`, which never leaves the sessions' folder, and what is
found is opened by its own name, without following any link.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from wasm_kernel.linux.folders import Folder
from wasm_kernel.sessions import ids, metadata
from wasm_kernel.sessions.paths import SessionPathError, resolve


def target_of(root: Path, session_id: str) -> str:
    """Returns the id of the session that an id names: another one if it is a link to that.

    Args:
        root: The real path of the sessions' folder, which may not be there.
        session_id: An id that was checked.
    """
    try:
        with Folder.open(root) as folder:
            return _target_in(folder, root, session_id)
    except OSError:
        return session_id


def aliases_in(root: Path) -> dict[str, list[str]]:
    """Returns the links that lead to sessions, by the sessions' ids."""
    found: dict[str, list[str]] = {}
    with Folder.open(root) as folder, os.scandir(folder.fd) as listing:
        for name in sorted(entry.name for entry in listing if entry.is_symlink()):
            if ids.is_id(name) and (target := _target_in(folder, root, name)) != name:
                found.setdefault(target, []).append(name)
    return found


def forget(root: int, names: list[str]) -> None:
    """Remove links whose session was deleted; what is no link any more is left."""
    for name in names:
        try:
            os.readlink(name, dir_fd=root)
            os.unlink(name, dir_fd=root)
        except OSError:
            continue


def _target_in(folder: Folder, root: Path, name: str) -> str:
    here = folder.status(name) if ids.uuid_in(name) else None
    if here is None or not stat.S_ISLNK(here.st_mode):
        return name
    try:
        names = resolve(root, [name], name)
    except (OSError, SessionPathError):
        return name  # it leads out of the root, or in a circle
    target = names[0] if len(names) == 1 else ""
    return target if ids.is_id(target) and _is_session(folder, target) else name


def _is_session(root: Folder, name: str) -> bool:
    """Whether there is a folder of that name that a session lies in."""
    there = root.status(name)
    if there is None or not stat.S_ISDIR(there.st_mode):
        return False
    if ids.uuid_in(name):
        return True
    try:
        with root.enter(name) as folder:
            return folder.status(metadata.NAME) is not None
    except OSError:
        return False
