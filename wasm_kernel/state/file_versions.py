"""Keeping earlier versions of the workspace's files before a cell changes them.

The guest's own calls announce each change (`FileHistory`). When a path first changes after a
commit, its content is kept here. A cell that changes no file costs nothing. A crash in the middle
of a change loses nothing: the record is on disk before the change.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator

from wasm_kernel.folders.folders import KEPT, UNLINKED
from wasm_kernel.linux.folders import Folder, Inode, closing_fd, inode_of
from wasm_kernel.linux.walks import Lookup
from wasm_kernel.state.file_contents import ContentTooLarge, FileContents, UnlinkedFiles
from wasm_kernel.state.file_journal import (
    Absent,
    KeptFile,
    KeptFolder,
    KeptLink,
    NotKept,
    PreImage,
    Reason,
)
from wasm_kernel.state.file_ledger import FileLedger
from wasm_kernel.wasi_files.file_history import Change, FileHistory, is_unlinked_name

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FOLD_AFTER = 20  # commits
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class FileVersions(FileHistory):
    """The earlier versions of one workspace's files. The guest's thread owns them; close them.

    Nothing is kept before `begin_anew` or `load`, nor if `most_bytes` is 0. Files of more than
    `copy_bytes` are cloned or not kept. `not_kept` has the paths that could not be kept, and why,
    until a caller takes them for a notice.
    """

    def __init__(
        self, workspace: Folder, private: Folder, *, most_bytes: int, copy_bytes: int
    ) -> None:
        self._workspace = workspace
        self._most_bytes = most_bytes
        self._is_begun = False
        self.ledger = FileLedger(private, KEPT)
        self.contents = FileContents(private, KEPT, workspace, copy_bytes)
        self.unlinked = UnlinkedFiles(private, UNLINKED)
        self._files: dict[int, KeptFile] = {}
        self._own: dict[int, int] = {}  # the bytes of contents that lie nowhere else, oldest first
        self._own_bytes = 0
        self._commits = 0
        self._held: frozenset[int] = frozenset()
        self.not_kept: list[tuple[str, NotKept]] = []

    @property
    def keeps(self) -> bool:
        """True if earlier versions are kept."""
        return self._is_begun and self._most_bytes > 0

    def begin_anew(self, last: int = 0, *, known: bool = True) -> None:
        """Begins with nothing; if `known`, all files are as they were at the last commit."""
        self.ledger.begin(last, known=known)
        self._begin()

    def load(self, last: int, *, crashed: bool = True) -> bool:
        """Loads the versions that an earlier process kept; returns whether they are whole.

        If they are not, files can be brought back only to the next commit and later ones.
        """
        whole = self.ledger.load(last, crashed=crashed)
        if whole and self.contents.has_later(self.ledger.last_content):
            whole = False
            self.ledger.begin(last, known=False)
        self._begin()
        return whole

    def _begin(self) -> None:
        self._is_begun, self._commits = True, 0
        self._files, self._own, self._own_bytes = {}, {}, 0
        if not self.keeps:
            self.ledger.remove()
            self.contents.clear()
            return
        try:
            for number in self.contents.prepare(self.ledger.contents):
                self.ledger.drop_content(number, "changed")
        except OSError as problem:
            self.ledger.trouble = problem
            return
        self.ledger.write()
        self._weigh()

    def _weigh(self) -> None:
        self._files = self.ledger.contents
        alone = (n for n in self._files if not self.contents.has_a_name_elsewhere(n))
        self._own = {number: self._files[number].size for number in alone}
        self._own_bytes = sum(self._own.values())

    def commit(self, last: int, commits: Collection[int]) -> bool:
        """Notes that commit `last` was taken; `commits` are all that exist.

        Now and then removes versions that none of them needs; returns whether it did.
        """
        self.ledger.at_commit = last
        self.unlinked.fresh.clear()
        self._commits += 1
        has_many = self._commits >= _FOLD_AFTER and len(self.ledger) > 0
        due = self.keeps and (has_many or self.ledger.trouble is not None)
        if due:
            self.fold(commits)
        return due

    def fold(self, commits: Collection[int]) -> None:
        """Removes versions that no commit needs, and the oldest if all together are too large."""
        before, self._commits = self._files, 0
        self.ledger.fold(commits)
        self._weigh()
        self._make_room(0)
        if self.ledger.trouble is None:
            for number in before.keys() - self._files.keys():
                self.contents.remove(number)

    def remove_unneeded(self, needed: Collection[str]) -> None:
        """Removes the unlinked files that are not needed."""
        self._remove_unlinked(self.unlinked.unneeded(needed))

    def trim(self, opened: Collection[str]) -> None:
        """Removes the oldest unlinked files that no guest has open, if they exceed their room."""
        self._remove_unlinked(self.unlinked.excess(opened, self._most_bytes))

    def _remove_unlinked(self, names: Iterable[str]) -> None:
        for name in names if self._is_begun else ():  # otherwise they are another holder's
            self.unlinked.remove(name)
            self.ledger.forget(name)

    @contextlib.contextmanager
    def hold(self, contents: Iterable[int]) -> Iterator[None]:
        """Keeps these contents from being removed to make room for others."""
        self._held = frozenset(contents)
        try:
            yield
        finally:
            self._held = frozenset()

    def _make_room(self, size: int) -> None:
        """Removes the oldest contents until there is room for `size` bytes.

        Raises `ContentTooLarge` if that is more than may be kept at all, `OSError` if the contents
        on hold leave too little room.
        """
        if size > self._most_bytes:
            raise ContentTooLarge
        while self._own_bytes + size > self._most_bytes:
            oldest = next((number for number in self._own if number not in self._held), 0)
            if not oldest:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._drop(oldest, "room")

    def _drop(self, number: int, why: Reason) -> None:
        self.ledger.drop_content(number, why)
        self.contents.remove(number)
        self._files.pop(number, None)
        self._own_bytes -= self._own.pop(number, 0)

    def before_change(
        self, path: str | None, folder: int, name: str, found: os.stat_result | None, change: Change
    ) -> bool:
        """See `FileHistory`."""
        if not self.keeps:
            return False
        new = path is not None and name != "." and not self.ledger.knows(path)
        if new and path is not None:
            self._add(path, self._pre_image(folder, name, found, change))
        if change is Change.WRITE and found is not None:
            self._unshare(inode_of(found))
        return new

    def before_creation(self, path: str | None) -> bool:
        """See `FileHistory`."""
        new = self.keeps and path is not None and not self.ledger.knows(path)
        if new and path is not None:
            self._add(path, Absent())
        return new

    def after_removal(self, path: str | None) -> None:
        """See `FileHistory`."""
        if self.keeps and path is not None:
            self.ledger.forget_absence(path)

    def before_write(self, path: str | None, key: Inode, fd: int) -> None:
        """See `FileHistory`."""
        if not self.keeps:
            return
        known = path is None or path in self.unlinked.fresh or self.ledger.knows(path)
        if path is not None and not known and self._is_at(path, key):
            found = os.fstat(fd)
            try:  # the descriptor need not be open for reading
                self._add(path, self._content(f"/proc/self/fd/{fd}", None, found, Change.WRITE))
            except (OSError, ContentTooLarge) as problem:
                self._add(path, NotKept(_why(problem), found.st_size))
        self._unshare(key)

    def _is_at(self, path: str, key: Inode) -> bool:
        """Returns whether a path still leads to a file."""
        with contextlib.suppress(OSError, ValueError), self.place_of(path) as (folder, name):
            return inode_of(os.stat(name, dir_fd=folder, follow_symlinks=False)) == key
        return False

    @contextlib.contextmanager
    def place_of(self, path: str) -> Iterator[tuple[int, str]]:
        """Yields the folder of a path of the workspace or of an unlinked file, and its name there.

        No link is followed.
        """
        if is_unlinked_name(path):
            folder, name = self.unlinked.at(path)
            yield folder.fd, name
            return
        with self.lookup() as lookup:
            yield lookup.parent(path)

    def lookup(self) -> Lookup:
        """Returns a walk to the workspace's paths; close it."""
        return Lookup(self._workspace.fd)

    def _unshare(self, key: Inode) -> None:
        """Separates a content from a file that is about to be written to, if they are one file."""
        number = self.contents.shared.pop(key, 0)
        if not number:
            return
        try:
            self.contents.unshare(number)
            self._count(self._files[number])
        except (OSError, ContentTooLarge) as problem:
            self._drop(number, _why(problem))

    def _add(self, path: str, was: PreImage) -> None:
        self.ledger.add(path, was)
        if isinstance(was, KeptFile):
            self._files[was.kept] = was
        elif isinstance(was, NotKept):
            self.not_kept.append((path, was))

    def _pre_image(
        self, folder: int, name: str, found: os.stat_result | None, change: Change
    ) -> PreImage:
        if found is None:
            return Absent()
        if stat.S_ISDIR(found.st_mode):
            return KeptFolder()
        try:
            if stat.S_ISLNK(found.st_mode):
                return KeptLink(os.readlink(name, dir_fd=folder))
            if stat.S_ISREG(found.st_mode):
                return self._content(name, folder, found, change)
        except (OSError, ContentTooLarge) as problem:
            return NotKept(_why(problem), found.st_size)
        return NotKept("unreadable")

    def _content(
        self, name: str, folder: int | None, found: os.stat_result, change: Change
    ) -> KeptFile:
        """Keeps a file's content; without a folder, `name` belongs to an open file.

        Raises `ContentTooLarge` or `OSError` if it can't be kept.
        """
        itself = self._files.get(self.contents.shared.get(inode_of(found), 0))
        if itself is not None:
            return itself
        if change is Change.MOVE and folder is not None:
            with contextlib.suppress(OSError):  # no hard links here
                return self.contents.keep_by_link(folder, name, found)
        self._make_room(found.st_size)
        if change is Change.END and folder is not None:
            with contextlib.suppress(OSError):
                return self._count(self.contents.keep_by_link(folder, name, found))
        with closing_fd(
            os.open(name, _READ if folder is None else _READ | os.O_NOFOLLOW, dir_fd=folder)
        ) as source:
            if not os.path.samestat(os.fstat(source), found):
                raise OSError(errno.ESTALE, "another file took its name")
            return self._count(self.contents.keep_by_copy(source))

    def _count(self, was: KeptFile) -> KeptFile:
        """Counts the bytes of a content that lies nowhere else."""
        self._own_bytes += was.size - self._own.get(was.kept, 0)
        self._own[was.kept] = was.size
        return was

    def keep_unlinked(self, folder: int, name: str, found: os.stat_result) -> str:
        """See `FileHistory`."""
        return self.unlinked.keep(folder, name, found) if self.keeps else ""

    def drop_unlinked(self, name: str) -> None:
        """See `FileHistory`."""
        if name in self.unlinked.fresh:
            self.unlinked.remove(name)

    def open_unlinked(self, name: str, flags: int) -> int:
        """See `FileHistory`."""
        folder, number = self.unlinked.at(name)
        return folder.open_regular(number, flags)

    def same_file(self, one: str, other: str) -> bool:
        """See `FileHistory`."""
        return self.ledger.first_identity(one) == self.ledger.first_identity(other)

    def state(self, commit: int) -> dict[str, PreImage]:
        """Returns the paths that may have changed since a commit, with their files at it."""
        state = self.ledger.state(commit)
        return {path: was for path, was in state.items() if not is_unlinked_name(path)}

    def close(self) -> bool:
        """Closes folders and journal; returns what `FileLedger.close` does. Safe to call twice."""
        ended = self.ledger.close()
        self.contents.close()
        self.unlinked.close()
        return ended


def _why(problem: OSError | ContentTooLarge) -> Reason:
    if isinstance(problem, ContentTooLarge):
        return "large"
    return "room" if problem.errno in _NO_ROOM else "unreadable"
