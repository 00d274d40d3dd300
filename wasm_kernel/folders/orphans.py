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
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from wasm_kernel.errors import SessionInUse
from wasm_kernel.folders.folders import MISSED
from wasm_kernel.folders.locks import exclusively, is_used
from wasm_kernel.folders.places import ELSEWHERE, ROOTS, Place, places, state_folder
from wasm_kernel.folders.private import Owner, removing
from wasm_kernel.linux import trees, walks
from wasm_kernel.linux.files import FileMark
from wasm_kernel.result import readable

_DAY = 24 * 3600.0
_SWEPT, _MOMENT_SECONDS, _SOON_SECONDS = "swept", 0.2, 600.0


class _Rule(Struct, frozen=True):
    """The days for which a kind of orphans is kept, and the words for people."""

    days: float
    words: str


_GONE = _Rule(7, "that are gone takes {size}; it is removed a week after it was first missed")
_AWAY = _Rule(90, "that can't be reached now takes {size}; it is kept for 90 days")
_UNFINISHED = _Rule(1, _GONE.words)  # a killed process made, removed or used the folder


class _Orphan(Struct, frozen=True):
    """A private folder without a workspace; `missed` is when that was first seen."""

    rule: _Rule
    missed: float

    @property
    def is_due(self) -> bool:
        """True if the private folder is old enough to be removed."""
        return time.time() - self.missed > self.rule.days * _DAY


def _judged(place: Place, name: str) -> _Orphan | None:
    """Returns a private folder as an orphan; None if its workspace is there."""
    try:
        with place.enter(name) as folder:
            owner, noted = Owner.of(folder), folder.status(MISSED)
            changed = os.fstat(folder.fd).st_mtime
            if name.startswith("."):
                return None if is_used(folder) else _Orphan(_UNFINISHED, changed)
    except OSError:
        return None
    if owner is not None and _is(owner.path, owner.mark):
        return None
    rule = _GONE if owner is not None and _is_gone(owner) else _AWAY
    return _Orphan(rule, time.time() if noted is None else noted.st_mtime)


def _is_gone(owner: Owner) -> bool:
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


def _private_folders() -> Iterator[tuple[Place, str]]:
    """Yields the names of all private folders of this user, with their open places.

    Their order differs each time, as a sweep may have little time.
    """
    for place in places():
        with place:
            for name in sorted(place.names(), key=lambda _: os.urandom(4)):
                yield place, name


def remove_due(seconds: float | None = None) -> None:
    """Removes private folders that are due and not in use, for `seconds` at most; None for all."""
    begun = time.monotonic()
    for place, name in _private_folders():
        if seconds is not None and time.monotonic() - begun > seconds:
            return
        one = _judged(place, name)
        if one is None or not one.is_due or not _removed(place, name):
            _note(place, name, missed=one is not None)


def remove_due_daily() -> None:
    """Removes due folders for a moment, once a day, since a service never prunes its sandboxes.

    A sweep checks all workspaces of this user, on any disk, which may take long.
    """
    if (state := state_folder()) is None:
        return
    mark = state / _SWEPT
    with contextlib.suppress(OSError):
        if mark.exists() and 0 <= time.time() - mark.lstat().st_mtime < _DAY:
            return
        mark.touch(mode=0o600)
        os.utime(mark)
        begun = time.monotonic()
        remove_due(_MOMENT_SECONDS)
        for notes in (ELSEWHERE, ROOTS):
            notes.forget_gone()
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


def _removed(place: Place, name: str) -> bool:
    try:
        if name.startswith("."):
            trees.remove_tree(place.path / name)
            return True
        with place.enter(name) as folder, exclusively(folder):
            again = _judged(place, name)  # no process can begin to use it from here on
            if again is None or not again.is_due:
                return False
            with removing(place.path / name):
                pass
        return True
    except (OSError, SessionInUse):
        return False


def describe() -> Iterator[str]:
    """Yields sentences on the orphans, for people."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for place, name in _private_folders():
        if (one := _judged(place, name)) is not None:
            with contextlib.suppress(OSError), place.enter(name) as folder:
                sizes[one.rule.words].append(walks.size_of(folder.fd, force=True))
    for words, found in sizes.items():
        size = readable(sum(found))
        yield f"private state of {len(found)} workspaces {words.format(size=size)}"
