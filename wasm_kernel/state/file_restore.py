"""Brings the workspace's files back to their state at a commit, one by one.

Each file is the old one or the new one at every moment: the new one gets a temporary name and is
renamed. No link is followed out of the workspace. Replaced files are kept like any that change, so
that the user can go back again.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection

from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.linux.files import file_identity
from wasm_kernel.linux.folders import READ, Folder, closing_fd, inode_of
from wasm_kernel.linux.walks import Lookup
from wasm_kernel.state.file_contents import ContentChanged, checksum_of
from wasm_kernel.state.file_journal import Absent, KeptFile, KeptFolder, KeptLink, NotKept, PreImage
from wasm_kernel.state.file_versions import FileVersions
from wasm_kernel.state.index import GONE
from wasm_kernel.wasi_files.file_history import Change, is_unlinked_name
from wasm_kernel.wasi_files.open_files import OpenFile

_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

Changing = Callable[[str, os.stat_result | None], None]
"""Called with each path that is about to hold another file or none, and its current status."""


class RestoredFiles(Struct):
    """The outcome, as paths in the workspace.

    `back` were brought back, `removed` were removed, `missed` could not be brought back. If files
    were not restored, `left` are those that differ from the commit's.
    """

    back: list[str] = []
    removed: list[str] = []
    missed: list[tuple[str, NotKept]] = []
    left: list[str] | None = None


def restore_files(
    versions: FileVersions, commit: int, changing: Changing, opened: Collection[str]
) -> RestoredFiles:
    """Brings all files back to their state at a commit; the ledger must be complete since then.

    `changing` is called before each change; `opened` are identities of files open at any commit.
    """
    state = versions.state(commit)
    kept = (was.kept for was in state.values() if isinstance(was, KeptFile))
    with versions.hold(kept), versions.lookup() as lookup:
        return _FileRestore(versions, changing, opened).run(state, lookup)


def left_files(versions: FileVersions, commit: int) -> list[str]:
    """Returns the files that are known to differ from those at a commit."""
    if not versions.keeps or commit < versions.ledger.known_from:
        return []
    state = versions.state(commit)
    with versions.lookup() as lookup:
        return [path for path in sorted(state) if _differs(path, state[path], lookup)]


def _differs(path: str, was: PreImage, lookup: Lookup) -> bool:
    """Returns whether a file changed, by its size and time; folders do not count."""
    try:
        folder, name = lookup.parent(path)
        found = Folder(folder).status(name)
        if found is None or isinstance(was, KeptFolder) or stat.S_ISDIR(found.st_mode):
            return found is None and isinstance(was, KeptFile | KeptLink)
        if isinstance(was, KeptLink):
            is_link = stat.S_ISLNK(found.st_mode)
            return not is_link or os.readlink(name, dir_fd=folder) != was.text
        now = (found.st_size, found.st_mtime_ns)
        return not isinstance(was, KeptFile) or now != (was.size, was.mtime)
    except OSError:  # its folder is gone
        return isinstance(was, KeptFile | KeptLink)


def as_at_commit(versions: FileVersions, file: OpenFile, commit: int) -> OpenFile:
    """Returns a file that was open at a commit; restores its content if it is unlinked."""
    unlinked = file.path is not None and is_unlinked_name(file.path)
    if unlinked and not _restore_unlinked(versions, file.path or "", commit):
        return replace(file, identity=GONE)
    return file


def _restore_unlinked(versions: FileVersions, name: str, commit: int) -> bool:
    """Restores an unlinked file to its content at a commit; returns False if it can't be."""
    if commit < versions.ledger.known_from:
        return False
    was = versions.ledger.at(name, commit)
    try:
        with versions.place_of(name) as (folder, number):
            if not isinstance(was, KeptFile):
                return was is None and Folder(folder).status(number) is not None
            with versions.hold([was.kept]):
                work = _FileRestore(versions, lambda path, found: None, [was.identity])
                work.put(name, was, number, folder)
    except (ContentChanged, OSError):
        return False
    return True


class _FileRestore:
    """The steps of a restore; each can be repeated without harm."""

    def __init__(self, versions: FileVersions, changing: Changing, opened: Collection[str]) -> None:
        self._versions = versions
        self._changing = changing
        self._opened = frozenset(map(versions.ledger.first_identity, opened))
        self._missed: set[str] = set()
        self._restored = RestoredFiles()

    def run(self, state: dict[str, PreImage], lookup: Lookup) -> RestoredFiles:
        """Restores every path."""
        deepest_first = sorted(state, key=lambda path: (-path.count("/"), path))
        folders = [path for path in deepest_first if isinstance(state[path], KeptFolder)]
        files = [path for path in sorted(state) if isinstance(state[path], KeptFile | KeptLink)]
        steps = [(self.clear, path) for path in deepest_first]
        steps += [(self.make_folder, path) for path in reversed(folders)]
        steps += [(self.put, path) for path in files]
        for step, path in steps:
            if path in self._missed:
                continue
            try:
                folder, name = lookup.parent(path, make=step == self.put)
                step(path, state[path], name, folder)
            except ContentChanged:
                self._miss(path, NotKept("changed"))
            except OSError as problem:
                is_empty = problem.errno in _NOWHERE
                if step == self.clear and (is_empty or not isinstance(state[path], Absent)):
                    continue  # nothing is there, or another step will find out
                self._miss(path, NotKept("unwritable"))
        return self._restored

    def _miss(self, path: str, why: NotKept) -> None:
        self._missed.add(path)
        self._restored.missed.append((path, why))

    def clear(self, path: str, was: PreImage, name: str, folder: int) -> None:
        """Removes a file or folder that can't stay."""
        if isinstance(was, NotKept):
            self._miss(path, was)
            return
        found = os.lstat(name, dir_fd=folder)
        is_folder = stat.S_ISDIR(found.st_mode)
        if isinstance(was, KeptFolder) and is_folder:
            return
        if isinstance(was, KeptFile | KeptLink) and not is_folder:
            return  # `put` replaces it
        if isinstance(was, KeptFile):
            self._versions.contents.check(was)
        self._change(path, name, folder, found)
        if is_folder:
            os.rmdir(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
            if isinstance(was, Absent):
                self._restored.removed.append(path)

    def make_folder(self, path: str, was: PreImage, name: str, folder: int) -> None:
        if Folder(folder).status(name) is None:
            self._versions.before_creation(path)
            os.mkdir(name, dir_fd=folder)

    def put(self, path: str, was: PreImage, name: str, folder: int) -> None:
        found = Folder(folder).status(name)
        if isinstance(was, KeptLink):
            is_link = found is not None and stat.S_ISLNK(found.st_mode)
            if not is_link or os.readlink(name, dir_fd=folder) != was.text:
                self._change(path, name, folder, found)
                self._versions.contents.put_link(was.text, name, folder)
                self._restored.back.append(path)
            return
        assert isinstance(was, KeptFile)
        if found is not None and self._is_there(was, name, folder, found):
            return
        self._versions.contents.check(was)
        self._change(path, name, folder, found)
        self._versions.contents.put(was, name, folder)
        self._restored.back.append(path)
        if self._versions.ledger.first_identity(was.identity) in self._opened:
            self._versions.ledger.note_same_file(was.identity, file_identity(name, folder))

    def _is_there(self, was: KeptFile, name: str, folder: int, found: os.stat_result) -> bool:
        """Returns whether a file is the same as at the commit, or has the same content."""
        if self._versions.contents.shared.get(inode_of(found)) == was.kept:
            return True  # it is the content itself
        if (found.st_size, found.st_mtime_ns) != (was.size, was.mtime):
            return False
        if file_identity(name, folder) == was.identity:
            return True
        if was.checksum is None:
            return False
        with closing_fd(os.open(name, READ, dir_fd=folder)) as source:
            return checksum_of(source, was.size) == was.checksum

    def _change(self, path: str, name: str, folder: int, found: os.stat_result | None) -> None:
        if found is None or not stat.S_ISDIR(found.st_mode):
            self._changing(path, found)
        self._versions.before_change(path, folder, name, found, Change.END)
