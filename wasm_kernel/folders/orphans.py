"""Private folders whose workspaces are gone: found, shown, and removed when they are old enough.

`rm -rf` of a workspace leaves its private folder behind. The workspace may also lie on a disk that
is not mounted now. It counts as gone if its root, or the folder that the root lay in, is still the
same folder. Otherwise its private folder is kept far longer. Either time begins when a sweep first
misses the workspace, and ends if a sweep finds it again: it may have been moved for a moment.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from wasm_kernel.errors import SessionInUse
from wasm_kernel.folders.folders import MISSED
from wasm_kernel.folders.locks import exclusively
from wasm_kernel.folders.places import ROOTS, Place, places, state_folder
from wasm_kernel.folders.private import Owner, discard
from wasm_kernel.linux import trees, walks
from wasm_kernel.linux.files import FileMark
from wasm_kernel.linux.folders import Folder
from wasm_kernel.result import readable

_DAY = 24 * 3600.0
GONE_SECONDS, UNSURE_SECONDS = 7 * _DAY, 90 * _DAY
"""Seconds that a private folder is kept after its workspace is gone, or may be gone."""

_SWEPT, _MOMENT_SECONDS, _SOON_SECONDS = "swept", 0.2, 600.0


class Orphan(Struct, frozen=True):
    """A private folder without a workspace: `key` in `place`.

    `workspace` is the workspace's last path, None if it is unknown. `sure` is true if the workspace
    is gone, and not merely out of reach. It was first missed `missed_seconds` ago.
    """

    place: Path
    key: str
    workspace: Path | None
    sure: bool
    missed_seconds: float

    @property
    def due(self) -> bool:
        """True if it is old enough to be removed."""
        if self.unfinished:
            return self.missed_seconds > _DAY
        return self.missed_seconds > (GONE_SECONDS if self.sure else UNSURE_SECONDS)

    @property
    def unfinished(self) -> bool:
        """True if it belongs to no workspace: a process was killed while it made or removed it."""
        return self.key.startswith(".")

    def size(self) -> int:
        """Returns the bytes of its files; 0 if it is gone."""
        try:
            with Folder.open(self.place) as place, place.enter(self.key) as folder:
                return walks.size_of(folder.fd, force=True)
        except OSError:
            return 0


def orphans() -> list[Orphan]:
    """Returns the private folders of this user that have no workspace now. Nothing is changed."""
    found = []
    for place in places():
        with place:
            found += [one for name in place.names() if (one := _judged(place, name))]
    return found


def _judged(place: Place, name: str) -> Orphan | None:
    """Returns a private folder as an orphan; None if its workspace is there."""
    try:
        with place.enter(name) as folder:
            owner, noted = Owner.of(folder), folder.status(MISSED)
            changed = os.fstat(folder.fd).st_mtime
    except OSError:
        return None
    now = time.time()
    if name.startswith("."):
        return Orphan(place.path, name, None, True, now - changed)
    missed = 0.0 if noted is None else now - noted.st_mtime
    if owner is None:
        return Orphan(place.path, name, None, False, missed)
    if _is(owner.path, owner.mark):
        return None
    return Orphan(place.path, name, owner.path, is_gone(owner), missed)


def is_gone(owner: Owner) -> bool:
    """Returns whether a workspace that is not at its path is certainly gone."""
    root = Path(owner.root)
    if _is(root, owner.root_mark):
        return True
    if not _is(root.parent, owner.above) or owner.root_mark.device != owner.above.device:
        return False  # the disk may not be mounted
    there, above = FileMark.at(root), FileMark.at(root.parent)
    return there is None or (above is not None and there.device == above.device)


def _is(path: Path, mark: FileMark) -> bool:
    there = FileMark.at(path)
    return there is not None and there.same(mark)


def sweep(seconds: float | None = None) -> list[Orphan]:
    """Removes private folders that are due and not in use; returns them.

    It stops after `seconds`, if they are not None.
    """
    until = None if seconds is None else time.monotonic() + seconds
    removed = []
    for place in places():
        with place:
            names = place.names()
            # in another order each time, as a sweep may have little time
            names.sort(key=lambda _: os.urandom(4))
            for name in names:
                if until is not None and time.monotonic() > until:
                    break
                one = _judged(place, name)
                if one is not None and one.due and _removed(place, one):
                    removed.append(one)
                else:
                    _note(place, name, missed=one is not None)
    return removed


def sweep_now_and_then() -> None:
    """Sweeps for a moment, once a day: a service never prunes its sandboxes.

    A sweep checks all workspaces of this user, on any disk, which may take long.
    """
    state = state_folder()
    if state is None:
        return
    mark = state / _SWEPT
    with contextlib.suppress(OSError):
        if mark.exists() and 0 <= time.time() - mark.lstat().st_mtime < _DAY:
            return
        mark.touch(mode=0o600)
        os.utime(mark)
        begun = time.monotonic()
        sweep(_MOMENT_SECONDS)
        ROOTS.forget_missing()
        if time.monotonic() - begun > _MOMENT_SECONDS:  # some folders are left
            os.utime(mark, (time.time() - _DAY + _SOON_SECONDS,) * 2)


def _note(place: Place, name: str, *, missed: bool) -> None:
    """Notes that a workspace is missed, if that is new, or that it is there again."""
    if name.startswith("."):
        return
    with contextlib.suppress(OSError), place.enter(name) as folder:
        if not missed:
            folder.remove(MISSED)
        elif folder.status(MISSED) is None:
            os.close(folder.open_regular(MISSED, os.O_WRONLY | os.O_CREAT | os.O_EXCL))


def _removed(place: Place, one: Orphan) -> bool:
    try:
        if one.unfinished:
            trees.remove_tree(one.place / one.key)
            return True
        with place.enter(one.key) as folder, exclusively(folder):
            again = _judged(place, one.key)  # no process can begin to use it from here on
            if again is None or not again.due:
                return False
            discard(place.path / one.key)
        return True
    except (OSError, SessionInUse):
        return False


def describe() -> Iterator[str]:
    """Yields sentences on the orphans, for people."""
    found = orphans()
    for sure, words in (
        (True, "that are gone takes {size}; it is removed a week after it was first missed"),
        (False, "that can't be reached now takes {size}; it is kept for 90 days"),
    ):
        some = [one for one in found if one.sure is sure]
        if some:
            size = readable(sum(one.size() for one in some))
            yield f"private state of {len(some)} workspaces {words.format(size=size)}"
