"""Session ids: their shape, new ones, and the links that are other names of sessions."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import uuid
from contextlib import suppress
from pathlib import Path

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.linux.folders import Folder
from wasm_kernel.sessions import metadata
from wasm_kernel.sessions.paths import SessionPathError, resolve

ID_LENGTH = 64
_SHAPE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9-]{{0,{ID_LENGTH - 1}}}", re.ASCII)


class SessionIdError(WasmKernelError, ValueError):
    """A text that is not a session id."""

    def __init__(self) -> None:
        super().__init__(
            f"A session id is 1 to {ID_LENGTH} letters, digits and hyphens, and starts with a "
            "letter or a digit. Nothing was opened. Choose another id, or leave it out."
        )


def checked(text: str) -> str:
    """Returns `text` if it is a session id: safe as a folder's name on every file system.

    Raises:
        SessionIdError: it is not.
    """
    if not isinstance(text, str) or not is_id(text):
        raise SessionIdError
    return text


def is_id(text: str) -> bool:
    """Returns whether a text is a session id."""
    return _SHAPE.fullmatch(text) is not None


def new() -> str:
    """Returns a new random id."""
    return str(uuid.uuid4())


def uuid_in(text: str) -> str | None:
    """Returns `text` as a UUID in its usual spelling; None if it is not a UUID."""
    try:
        found = str(uuid.UUID(text))
    except ValueError:
        return None
    return found if found == text.lower() else None


def derived(*parts: bytes) -> str:
    """Returns an id, shaped like a UUID, that depends on `parts` alone."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return str(uuid.UUID(bytes=digest.digest()[:16], version=4))


# -- links in the sessions' folder: other names of sessions in it
#
# A link that is named by a UUID is followed if it stays inside the sessions' folder and leads to a
# session directly in it. The session's id, its lock and its private folder are those of the
# target. Other links are not sessions: the guest of a sandbox whose workspace is the sessions'
# folder can make links there, though none named by a UUID, and could give somebody another one's
# session. The link is walked by `resolve`, which never leaves the sessions' folder; the session is
# then opened by its own name, without following any link.


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
            if is_id(name) and (target := _target_in(folder, root, name)) != name:
                found.setdefault(target, []).append(name)
    return found


def remove_links(root: Folder, names: list[str]) -> None:
    """Removes links whose session was deleted; a name that is not a link any more is left."""
    for name in names:
        with suppress(OSError):
            os.readlink(name, dir_fd=root.fd)
            os.unlink(name, dir_fd=root.fd)


def _target_in(folder: Folder, root: Path, name: str) -> str:
    here = folder.status(name) if uuid_in(name) else None
    if here is None or not stat.S_ISLNK(here.st_mode):
        return name
    try:
        names = resolve(root, [name], name)
    except (OSError, SessionPathError):
        return name  # it leads out of the root, or in a circle
    target = names[0] if len(names) == 1 else ""
    return target if is_id(target) and _is_session(folder, target) else name


def _is_session(root: Folder, name: str) -> bool:
    """Returns whether there is a session's folder of that name."""
    there = root.status(name)
    if there is None or not stat.S_ISDIR(there.st_mode):
        return False
    if uuid_in(name):
        return True
    try:
        with root.enter(name) as folder:
            return folder.status(metadata.NAME) is not None
    except OSError:
        return False
