"""The user's state folder: private folders, and notes of what lies elsewhere.

The notes say which places outside of it hold private folders, and which folders are roots of
sessions, so that no guest is shown one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from pathlib import Path

from wasm_kernel.folders.private import Place
from wasm_kernel.linux.folders import Folder

_NAME = "wasm-kernel"
PRIVATE, ELSEWHERE, ROOTS = "private", "elsewhere", "roots"
"""The folders in it: private folders, notes of other places, notes of roots."""

LOOK_SECONDS = 0.005
"""How old it may be what a guest's file calls know of notes that are new."""

_SETTLE_SECONDS = 4 * LOOK_SECONDS
_PATH_BYTES = 16 * 1024
_OWN, OTHERS_WRITE = 0o700, 0o022
_NOTED: dict[str, Path] = {}
"""What was read of notes, by their names, which say what is in them."""


def state_folder() -> Path | None:
    """Returns the user's folder for state, `wasm-kernel` in XDG_STATE_HOME; None for no home."""
    named = os.environ.get("XDG_STATE_HOME", "")
    if named.startswith("/"):
        return Path(named, _NAME)
    try:
        return Path.home() / ".local" / "state" / _NAME
    except RuntimeError:
        return None


def if_own(path: Path, folder: Folder, forbidden: int) -> Place | None:
    """Returns an open folder as a place; None, with the folder closed, if others may change it.

    Args:
        path: Its path.
        folder: The folder.
        forbidden: The bits of a mode that it may not have.
    """
    found = os.fstat(folder.fd)
    if found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & forbidden:
        return Place(path, folder)
    folder.close()
    return None


def in_state(*names: str, make: bool = False) -> Place | None:
    """Returns the state folder's part for private folders, or another; None if it is missing."""
    path = state_folder()
    if path is None:
        return None
    try:
        if make:
            path.parent.mkdir(mode=_OWN, parents=True, exist_ok=True)
        above = path.parent.resolve()
        with Folder.open(above) as home, home.enter(path.name, make=make) as own:
            place = if_own(path, own.enter(), OTHERS_WRITE)
            if place is None:
                return None
            with contextlib.closing(place):
                below = names or (PRIVATE,)
                folder = place.folder.enter(*below, make=make)
                return if_own(above.joinpath(path.name, *below), folder, 0o077)
    except (OSError, RuntimeError):
        return None


def watched() -> list[Path]:
    """Returns the folders that change if another place is used; they may not be there."""
    state = state_folder()
    return [] if state is None else [state / PRIVATE, state / ELSEWHERE]


def notes() -> list[Path]:
    """Returns the folders that say where places outside of the state folder and roots of sessions
    lie.

    They change if there is another one. A confined kernel may read them, and no other part of the
    state folder but its own.
    """
    state = state_folder()
    return [] if state is None else [state / ELSEWHERE, state / ROOTS]


def remembered() -> list[Path]:
    """Returns the places outside of the state folder that were used before."""
    place = in_state(ELSEWHERE)
    if place is None:
        return []
    with contextlib.closing(place):
        return noted_in(place.folder)


def noted_in(folder: Folder) -> list[Path]:
    """Returns what is noted in one of the folders that `notes` names."""
    for name in (names := folder.names()):
        if name not in _NOTED and not name.startswith("."):
            with contextlib.suppress(OSError, ValueError):
                _NOTED[name] = Path(folder.read(name, _PATH_BYTES).decode())
    found = [_NOTED[name] for name in sorted(names) if name in _NOTED]
    return [path for path in found if path.is_absolute()]


def lists_places(noting: Path) -> bool:
    """Returns whether one of the folders that `notes` names is that of places."""
    return noting.name == ELSEWHERE


def note(what: str, path: Path) -> None:
    """Write down where something lies; nothing happens if that can't be done."""
    known = in_state(what, make=True)
    if known is None:
        return
    text = os.fsencode(path)
    with contextlib.closing(known), contextlib.suppress(OSError):
        name = hashlib.blake2b(text, digest_size=12).hexdigest()
        if known.folder.status(name) is None:
            with known.folder.replacing(name) as file:
                file.write(text)
            time.sleep(_SETTLE_SECONDS)


def known_roots() -> list[Path]:
    """Returns the roots that sessions of this user were opened in."""
    known = in_state(ROOTS)
    if known is None:
        return []
    with contextlib.closing(known):
        return noted_in(known.folder)


def forget_roots() -> None:
    """Forgets the roots of sessions that are not there. One that comes back is noted again when a
    session in it is opened.
    """
    known = in_state(ROOTS)
    if known is None:
        return
    with contextlib.closing(known):
        for name in known.folder.names():
            with contextlib.suppress(OSError, ValueError):
                root = Path(known.folder.read(name, _PATH_BYTES).decode())
                if not root.is_dir():
                    known.folder.remove(name)
