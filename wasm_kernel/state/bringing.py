"""Bringing the workspace's files back to what they were at a commit, one by one.

Each file is the old one or the new one at every moment: it is made aside and renamed. Nothing is
followed out of the workspace; what is replaced is kept like anything that changes, so that going
back again is possible.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from wasm_kernel.linux.files import file_identity
from wasm_kernel.linux.walks import Lookup
from wasm_kernel.state.store import Changed, checksum_of
from wasm_kernel.state.versions import Versions
from wasm_kernel.state.was import File, Link, Nothing, Unkept, Was, WasFolder
from wasm_kernel.wasi_files.file_history import Change

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

Changing = Callable[[str, os.stat_result | None], None]
"""Hears of each path that is about to hold another file or none, and what is there."""


@dataclass
class Brought:
    """What came of it, as paths in the workspace: files and links that are there again or hold
    what they held, those that are gone, and those that could not be brought back.
    """

    back: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    missed: list[tuple[str, Unkept]] = field(default_factory=list)


def bring(versions: Versions, one: int, changing: Changing, opened: Collection[str]) -> Brought:
    """Bring all files back to commit `one`.

    Args:
        versions: What was kept.
        one: The commit; everything about it is known (`Versions.complete`).
        changing: Hears what changes.
        opened: The identities of files that are open at any commit.
    """
    state = versions.state(one)
    work = _Work(versions, changing, frozenset(map(versions.record.first_twin, opened)))
    kept = (was.kept for was in state.values() if isinstance(was, File))
    with versions.hold(kept), versions.lookup() as lookup:
        work.bring(state, lookup)
    return work.brought


def bring_loose(versions: Versions, called: str, one: int) -> bool:
    """Have a file without a name be what it was at commit `one`; False where it can't be."""
    if not versions.record.complete(one):
        return False
    was = versions.record.at(called, one)
    if was is None:
        return _is_there(versions, called)
    if not isinstance(was, File):
        return False
    work = _Work(versions, lambda path, found: None, (versions.record.first_twin(was.identity),))
    try:
        with versions.hold([was.kept]), versions.place_of(called) as (folder, name):
            work.put(called, was, name, folder)
    except (Changed, OSError):
        return False
    return True


def _is_there(versions: Versions, called: str) -> bool:
    try:
        with versions.place_of(called) as (folder, name):
            return _found(name, folder) is not None
    except OSError:
        return False


class _Work:
    """The steps; each is undone by none, and repeated without harm."""

    def __init__(self, versions: Versions, changing: Changing, opened: Collection[str]) -> None:
        self._versions = versions
        self._changing = changing
        self._opened = opened
        self._missed: set[str] = set()
        self.brought = Brought()

    def bring(self, state: dict[str, Was], lookup: Lookup) -> None:
        """Bring every path to what it held."""
        deepest_first = sorted(state, key=lambda path: (-path.count("/"), path))
        for path in deepest_first:
            self.attempt(path, state[path], self.clear, lookup)
        for path in reversed(deepest_first):
            if isinstance(state[path], WasFolder):
                self.attempt(path, state[path], self.make_folder, lookup)
        for path in sorted(state):
            if isinstance(state[path], File | Link):
                self.attempt(path, state[path], self.put, lookup)

    def attempt(
        self,
        path: str,
        was: Was,
        step: Callable[[str, Was, str, int], None],
        lookup: Lookup,
    ) -> None:
        """Do a step for a path; what goes wrong is noted."""
        if path in self._missed:
            return
        try:
            folder, name = lookup.parent(path, make=step == self.put)
            step(path, was, name, folder)
        except Changed:
            self._miss(path, Unkept("changed"))
        except OSError as problem:
            if step == self.clear and (problem.errno in _NOWHERE or not isinstance(was, Nothing)):
                return  # nothing is there, or another step will find out
            self._miss(path, Unkept("unwritable"))

    def _miss(self, path: str, why: Unkept) -> None:
        self._missed.add(path)
        self.brought.missed.append((path, why))

    def clear(self, path: str, was: Was, name: str, folder: int) -> None:
        """Remove what can't stay."""
        if isinstance(was, Unkept):
            self._miss(path, was)
            return
        found = os.lstat(name, dir_fd=folder)
        is_folder = stat.S_ISDIR(found.st_mode)
        if isinstance(was, WasFolder) and is_folder:
            return
        if isinstance(was, File | Link) and not is_folder:
            return  # it is replaced when the other is ready
        if isinstance(was, File):
            self._versions.store.check(was)
        self._change(path, name, folder, found)
        if is_folder:
            os.rmdir(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
            if isinstance(was, Nothing):
                self.brought.removed.append(path)

    def make_folder(self, path: str, was: Was, name: str, folder: int) -> None:
        """Make a folder that was there."""
        if _found(name, folder) is None:
            self._versions.before_creation(path)
            os.mkdir(name, dir_fd=folder)

    def put(self, path: str, was: Was, name: str, folder: int) -> None:
        """Put a file or a link in its place."""
        found = _found(name, folder)
        if isinstance(was, Link):
            if found is None or not stat.S_ISLNK(found.st_mode) or _text(name, folder) != was.text:
                self._change(path, name, folder, found)
                self._versions.store.put_link(was.text, name, folder)
                self.brought.back.append(path)
            return
        assert isinstance(was, File)
        if found is not None and self._is_there(was, name, folder, found):
            return
        self._versions.store.check(was)
        self._change(path, name, folder, found)
        self._versions.store.put(was, name, folder)
        self.brought.back.append(path)
        if self._versions.record.first_twin(was.identity) in self._opened:
            self._versions.record.pair(was.identity, file_identity(name, folder))

    def _is_there(self, was: File, name: str, folder: int, found: os.stat_result) -> bool:
        """Whether a file is the very one that was there, or holds the same."""
        if self._versions.store.is_at(was, found):
            return True
        if (found.st_size, found.st_mtime_ns) != (was.size, was.mtime):
            return False
        if file_identity(name, folder) == was.identity:
            return True
        if was.checksum is None:
            return False
        source = os.open(name, _READ, dir_fd=folder)
        try:
            return checksum_of(source, was.size) == was.checksum
        finally:
            os.close(source)

    def _change(self, path: str, name: str, folder: int, found: os.stat_result | None) -> None:
        if found is None or not stat.S_ISDIR(found.st_mode):
            self._changing(path, found)
        self._versions.before_change(path, folder, name, found, Change.END)


def _found(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return None


def _text(name: str, folder: int) -> str:
    return os.readlink(name, dir_fd=folder)
