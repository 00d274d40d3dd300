"""Private folders whose workspaces are gone: found, shown, and removed when they are old enough.

`rm -rf` of a workspace leaves its private folder behind. Whether the workspace is gone, or lies on
a disk that is not mounted now, is told by what is still there: the root, or the folder that the
root lay in, must be the very one that it was. What can't be told is kept far longer.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from wasm_kernel.engine.folders import tree, walk
from wasm_kernel.engine.folders.folder import Folder
from wasm_kernel.engine.folders.identity import Mark
from wasm_kernel.errors import SessionInUse
from wasm_kernel.record import record
from wasm_kernel.result import readable
from wasm_kernel.sandbox.places import places, state_folder
from wasm_kernel.sandbox.presence import alone
from wasm_kernel.sandbox.private import Owner, Place, owner_of

_HOUR = 3600.0
GONE_SECONDS, UNSURE_SECONDS = _HOUR, 90 * 24 * _HOUR
"""How long after its last use a private folder is kept, if its workspace is gone, or may be."""

_SWEPT, _EACH_SECONDS, _MOMENT_SECONDS = "swept", 600.0, 0.2
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@record
class Orphan:
    """A private folder without a workspace.

    Attributes:
        place: The folder that it lies in.
        key: Its name there.
        workspace: Where the workspace lay; None if it does not say.
        sure: Whether the workspace is gone, and not merely out of reach.
        idle_seconds: How long ago it was last used.
    """

    place: Path
    key: str
    workspace: Path | None
    sure: bool
    idle_seconds: float

    @property
    def due(self) -> bool:
        """Whether it is to be removed."""
        return self.idle_seconds > (GONE_SECONDS if self.sure else UNSURE_SECONDS)

    def size(self) -> int:
        """Returns the bytes of its files; 0 if it is gone by now."""
        try:
            with walk.opened(self.place / self.key) as folder:
                return walk.size_of(folder, force=True)
        except OSError:
            return 0


def orphans() -> list[Orphan]:
    """Returns the private folders of this user that have no workspace now. Nothing is changed."""
    found = []
    for place in places():
        with contextlib.closing(place):
            found += [one for name in place.folder.names() if (one := _judged(place, name))]
    return found


def _judged(place: Place, name: str) -> Orphan | None:
    """A private folder, if its workspace is not there."""
    try:
        with place.folder.enter(name) as folder:
            owner = None if name.startswith(".") else owner_of(folder)
            used = os.fstat(folder.fd).st_mtime
    except OSError:
        return None
    idle = time.time() - used
    if owner is None:
        return Orphan(place.path, name, None, name.startswith("."), idle)
    if _is(owner.path, owner.mark):
        return None
    return Orphan(place.path, name, owner.path, is_gone(owner), idle)


def is_gone(owner: Owner) -> bool:
    """Whether a workspace is gone for certain, if it is not where it was."""
    root = Path(owner.root)
    if _is(root, owner.root_mark):
        return True
    if not _is(root.parent, owner.above) or owner.root_mark.device != owner.above.device:
        return False  # the disk may not be mounted
    there = _mark(root)
    above = _mark(root.parent)
    return there is None or (above is not None and there.device == above.device)


def _is(path: Path, mark: Mark) -> bool:
    there = _mark(path)
    return there is not None and there.same(mark)


def _mark(path: Path) -> Mark | None:
    try:
        fd = os.open(path, _LOOK)
    except OSError:
        return None
    try:
        return Mark.of(fd)
    finally:
        os.close(fd)


def sweep(seconds: float | None = None) -> list[Orphan]:
    """Removes the private folders that are due, if nobody uses them.

    Args:
        seconds: How long that may take; the next sweep goes on. As long as it takes by default.

    Returns:
        What was removed.
    """
    until = None if seconds is None else time.monotonic() + seconds
    removed = []
    for one in orphans():
        if until is not None and time.monotonic() > until:
            break
        if one.due and _removed(one):
            removed.append(one)
    return removed


def sweep_now_and_then() -> None:
    """Sweeps for a moment, if nobody has for a while: a service never prunes its sandboxes."""
    state = state_folder()
    if state is None:
        return
    mark = state / _SWEPT
    with contextlib.suppress(OSError):
        if mark.exists() and time.time() - mark.lstat().st_mtime < _EACH_SECONDS:
            return
        mark.touch(mode=0o600)
        os.utime(mark)
        sweep(_MOMENT_SECONDS)


def _removed(one: Orphan) -> bool:
    try:
        with contextlib.closing(Place(one.place, Folder.open(one.place))) as place:
            if one.key.startswith("."):  # of a process that was killed while it made or removed it
                tree.remove(one.place / one.key)
                return True
            with place.folder.enter(one.key) as folder, alone(folder):
                aside = place.set_aside(one.key)
            if aside:
                place.remove(aside)
            return True
    except (OSError, SessionInUse):
        return False


def described() -> Iterator[str]:
    """Sentences on what is left of workspaces, for people."""
    found = orphans()
    for sure, words in (
        (True, "that are gone takes {size}; it is removed an hour after its last use"),
        (False, "that can't be reached now takes {size}; it is kept for 90 days"),
    ):
        some = [one for one in found if one.sure is sure]
        if some:
            size = readable(sum(one.size() for one in some))
            yield f"private state of {len(some)} workspaces {words.format(size=size)}"
