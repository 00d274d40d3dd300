"""Keeping what the workspace holds before a cell changes it.

The guest's own calls tell what is about to change (`FileHistory`); the first time that a path
changes after a commit, what it held is noted here. A cell that changes no file costs nothing. What
happens between a call's look and its act is never lost: a record is on disk before the change.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator

from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.walks import Lookup
from wasm_kernel.state.file_contents import FileContents, TooLarge, UnlinkedFiles
from wasm_kernel.state.file_journal import Absent, KeptFile, KeptFolder, KeptLink, NotKept, PreImage
from wasm_kernel.state.file_ledger import FileLedger
from wasm_kernel.wasi_files.file_history import Change, is_unlinked_name
from wasm_kernel.wasi_files.quota import Key, key_of

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FOLD_AFTER = 20  # commits
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
KEPT, UNLINKED = "files", "loose"
"""The folders in the private folder that hold earlier contents, and unlinked files."""


class FileVersions:
    """The earlier versions of one workspace's files. The guest's thread owns them.

    Args:
        root: The workspace; None if nothing is kept.
        private: The session's private folder, where they are kept; None if nothing is kept.
        most_bytes: The most they may take; 0 to keep none.
        copy_bytes: The largest file that is copied if it can't be cloned.

    Attributes:
        contents: What files held.
        ledger: What is known.
        unlinked: Files without a name.
        not_kept: Paths that could not be kept, and why; whoever tells the user takes them away.
    """

    def __init__(
        self,
        root: Folder | None,
        private: Folder | None,
        *,
        most_bytes: int,
        copy_bytes: int,
    ) -> None:
        self._root = root
        self._most_bytes = most_bytes
        self.ledger = FileLedger(private, KEPT)
        self.contents = FileContents(private, KEPT, copy_bytes, root)
        self.unlinked = UnlinkedFiles(private, UNLINKED)
        self._files: dict[int, KeptFile] = {}
        self._own: dict[int, int] = {}  # the bytes of contents that lie nowhere else, oldest first
        self._commits = 0
        self._held: frozenset[int] = frozenset()
        self.not_kept: list[tuple[str, NotKept]] = []

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._most_bytes > 0

    def limit(self, *, most_bytes: int, copy_bytes: int) -> None:
        """Changes how much is kept; call `clear` if nothing was kept before, or will be."""
        self._most_bytes = most_bytes
        self.contents.copy_bytes = copy_bytes

    def clear(self, last: int = 0) -> None:
        """Begins anew: all files are as they were at commit `last`."""
        self.ledger.begin(last)
        self._begin()

    def load(self, last: int, *, crashed: bool = True) -> bool:
        """Goes on with what an earlier process kept.

        Args:
            last: The last commit.
            crashed: Whether that process did not end well.

        Returns:
            Whether it is whole. If it is not, only what changes after the next commit can be
            brought back.
        """
        whole = self.ledger.load(last, crashed=crashed)
        if whole and self.contents.has_later(self.ledger.last_content):
            whole = False
            self.ledger.begin(last, known=False)
        self._begin()
        return whole

    def _begin(self) -> None:
        self._files, self._own, self._commits = {}, {}, 0
        if not self.keeps:
            self.ledger.remove()
            self.contents.clear()
            return
        try:
            for number in self.contents.prepare(self.ledger.contents):
                self.ledger.lose(number, "changed")
        except OSError as problem:
            self.ledger.trouble = problem
            return
        self._write()

    def _write(self) -> None:
        self.ledger.write()
        self._files = self.ledger.contents
        alone = (n for n in self._files if not self.contents.has_a_name_elsewhere(n))
        self._own = {number: self._files[number].size for number in alone}

    def begin(self, last: int, commits: Collection[int]) -> bool:
        """Notes that commit `last` was taken; all that are kept are `commits`.

        Returns:
            Whether what none of them needs was let go, as is done now and then.
        """
        self.ledger.at_commit = last
        self.unlinked.fresh.clear()
        self._commits += 1
        due = self.keeps and (
            (self._commits >= _FOLD_AFTER and len(self.ledger) > 0)
            or self.ledger.trouble is not None
        )
        if due:
            self.fold(commits)
        return due

    def fold(self, commits: Collection[int]) -> None:
        """Lets go of what no commit needs, and of the oldest if all is too much."""
        before, self._commits = self._files, 0
        self.ledger.fold(commits)
        self._write()
        self._make_room(0)
        if self.ledger.trouble is None:
            for number in before.keys() - self._files.keys():
                self.contents.remove(number)

    def sweep(self, needed: Collection[str]) -> None:
        """Removes unlinked files, but for those that are needed."""
        for name in self.unlinked.sweep(needed):
            self.ledger.forget(name)

    def trim(self, opened: Collection[str]) -> None:
        """Removes the oldest unlinked files if those that only commits know are too much.

        They take as much as all else that is kept may, at most: a file that is deleted while it is
        open, cell for cell, would fill the disk.
        """
        for name in self.unlinked.trim(opened, self._most_bytes):
            self.ledger.forget(name)

    @contextlib.contextmanager
    def hold(self, contents: Iterable[int]) -> Iterator[None]:
        """Keeps these contents from making room for others."""
        self._held = frozenset(contents)
        try:
            yield
        finally:
            self._held = frozenset()

    def _make_room(self, size: int) -> bool:
        """Removes the oldest until there is room for so many bytes; False if there can not be."""
        while sum(self._own.values()) + size > self._most_bytes:
            oldest = next((number for number in self._own if number not in self._held), 0)
            if not oldest:
                return False
            self._lose(oldest, "room")
        return True

    def _lose(self, number: int, why: str) -> None:
        self.ledger.lose(number, why)
        self.contents.remove(number)
        self._files.pop(number, None)
        self._own.pop(number, None)

    def before_change(
        self,
        path: str | None,
        folder: int,
        name: str,
        found: os.stat_result | None,
        change: Change,
    ) -> bool:
        """Keeps what stands at a path that is about to change; never raises.

        Args:
            path: Relative to the workspace; None for one outside of it.
            folder: A descriptor of the folder that it is in.
            name: Its name there.
            found: What stands there, links not followed; None for nothing.
            change: What is to happen to a file.

        Returns:
            Whether it was not known before. If nothing was there and the change fails, call
            `after_removal`.
        """
        if not self.keeps:
            return False
        new = path is not None and name != "." and not self.ledger.knows(path)
        if new and path is not None:
            self._add(path, self._pre_image(folder, name, found, change))
        if change is Change.WRITE and found is not None:
            self.unshare(key_of(found))
        return new

    def before_creation(self, path: str | None) -> bool:
        """Notes that an empty path is about to hold something; returns as `before_change`."""
        new = self.keeps and path is not None and not self.ledger.knows(path)
        if new and path is not None:
            self._add(path, Absent())
        return new

    def after_removal(self, path: str | None) -> None:
        """Notes that a path holds nothing now; what came and went since a commit is forgotten."""
        if self.keeps and path is not None:
            self.ledger.forget_absence(path)

    def before_write(self, path: str | None, key: Key, file: int) -> None:
        """Keeps an open file's content before it is written to or cut; never raises.

        Args:
            path: Its path as for `before_change`, or its unlinked name.
            key: What tells it from others.
            file: Its descriptor, which need not be open for reading.
        """
        if not self.keeps:
            return
        known = path is None or path in self.unlinked.fresh or self.ledger.knows(path)
        if path is not None and not known and self._is_at(path, key):
            self._add(path, self._pre_image_of_open(file))
        if key in self.contents.shared:
            self.unshare(key)

    def _is_at(self, path: str, key: Key) -> bool:
        """Whether a path still leads to a file."""
        try:
            with self.place_of(path) as (folder, name):
                found = _status(folder, name)
        except (OSError, ValueError):
            return False
        return found is not None and key_of(found) == key

    @contextlib.contextmanager
    def place_of(self, path: str) -> Iterator[tuple[int, str]]:
        """The folder that a path of the workspace or an unlinked file lies in, and its name there.

        Args:
            path: Relative to the workspace, or its unlinked name. No link is followed.

        Raises:
            OSError: there is no such folder.
        """
        if is_unlinked_name(path):
            folder, name = self.unlinked.at(path)
            yield folder.fd, name
            return
        with self.lookup() as lookup:
            yield lookup.parent(path)

    def lookup(self) -> Lookup:
        """Returns a walk to the workspace's paths; close it.

        Raises:
            OSError: no files are kept.
        """
        if self._root is None:
            raise FileNotFoundError(errno.ENOENT, "no files are kept")
        return Lookup(self._root.fd)

    def close(self) -> bool:
        """Closes the folders and the journal; returns as `FileLedger.close`. Safe to call twice."""
        ended = self.ledger.close()
        self.contents.close()
        self.unlinked.close()
        return ended

    def unshare(self, key: Key) -> None:
        """Parts a content from a file that is about to be written to, if they are one file."""
        number = self.contents.shared.pop(key, 0)
        if not number:
            return
        try:
            self.contents.unshare(number)
            self._own[number] = self._files[number].size
        except (OSError, TooLarge) as problem:
            self._lose(number, _why(problem))

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
                return self._content(folder, name, found, change)
        except (OSError, TooLarge) as problem:
            return NotKept(_why(problem), found.st_size)
        return NotKept("unreadable")

    def _content(self, folder: int, name: str, found: os.stat_result, change: Change) -> PreImage:
        shared = self._shared(found)
        if shared is not None:
            return shared
        if found.st_size > self._most_bytes and change is not Change.MOVE:
            return NotKept("large", found.st_size)
        if change is Change.MOVE:
            with contextlib.suppress(OSError):  # no hard links here
                return self.contents.keep_by_link(folder, name, found)
        if not self._make_room(found.st_size):
            return NotKept("room", found.st_size)
        if change is Change.END:
            with contextlib.suppress(OSError):
                return self._owned(self.contents.keep_by_link(folder, name, found))
        source = os.open(name, _READ, dir_fd=folder)
        try:
            if not os.path.samestat(os.fstat(source), found):
                raise OSError(errno.ESTALE, "another file took its name")
            return self._owned(self.contents.copy(source))
        finally:
            os.close(source)

    def _pre_image_of_open(self, file: int) -> PreImage:
        """Keeps what an open file holds, by a descriptor that need not be open for reading."""
        found = os.fstat(file)
        shared = self._shared(found)
        if shared is not None:
            return shared
        if found.st_size > self._most_bytes:
            return NotKept("large", found.st_size)
        if not self._make_room(found.st_size):
            return NotKept("room", found.st_size)
        try:
            source = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return self._owned(self.contents.copy(source))
            finally:
                os.close(source)
        except (OSError, TooLarge) as problem:
            return NotKept(_why(problem), found.st_size)

    def _shared(self, found: os.stat_result) -> KeptFile | None:
        """The content that is a file itself, if it is kept so."""
        return self._files.get(self.contents.shared.get(key_of(found), 0))

    def _owned(self, was: KeptFile) -> KeptFile:
        self._own[was.kept] = was.size
        return was

    def keep_unlinked(self, folder: int, name: str, found: os.stat_result) -> str:
        """Keeps a file that loses its last name; see `FileHistory`."""
        return self.unlinked.keep(folder, name, found) if self.keeps else ""

    def drop_unlinked(self, name: str) -> None:
        """Lets an unlinked file go that nobody has open, unless a commit knows it."""
        if name in self.unlinked.fresh:
            self.unlinked.remove(name)

    def open_unlinked(self, name: str, flags: int) -> int:
        """Opens an unlinked file; the caller closes the descriptor.

        Raises:
            OSError: it does not exist.
        """
        folder, number = self.unlinked.at(name)
        return folder.open_regular(number, flags)

    def same_file(self, one: str, other: str) -> bool:
        """Whether two identities name one file to the guest."""
        return self.ledger.first_identity(one) == self.ledger.first_identity(other)

    def state(self, commit: int) -> dict[str, PreImage]:
        """Returns what paths held at a commit that may hold something else now."""
        state = self.ledger.state(commit)
        return {path: was for path, was in state.items() if not is_unlinked_name(path)}


def _why(problem: OSError | TooLarge) -> str:
    if isinstance(problem, TooLarge):
        return "large"
    return "room" if problem.errno in _NO_ROOM else "unreadable"


def _status(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return None


def nothing_kept() -> FileVersions:
    """For a guest whose files nobody will bring back."""
    return FileVersions(None, None, most_bytes=0, copy_bytes=0)
