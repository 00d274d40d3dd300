"""Catching what stands in the workspace before a cell changes it.

The guest's own calls tell what is about to change (`files.py`); the first time that a path changes
after a commit, what it held is written down here. A cell that changes no file costs nothing. What
happens between a call's look and its act is never lost: an entry is on disk before the change.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator

from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.walks import Lookup
from wasm_kernel.state.loose import Loose
from wasm_kernel.state.record import Record
from wasm_kernel.state.store import Key, Store, TooLarge
from wasm_kernel.state.was import (
    File,
    Link,
    Nothing,
    Unkept,
    Was,
    WasFolder,
)
from wasm_kernel.wasi_files.file_history import Change, is_unlinked_name

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FOLD_AFTER = 20  # commits
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
KEPT, LOOSE = "files", "loose"
"""The folders in the private folder that hold earlier contents, and files without a name."""


class Versions:
    """The earlier versions of one workspace's files. The guest's thread owns them.

    Args:
        root: The workspace; None if nothing is kept.
        private: The session's private folder, where they are kept; None if nothing is kept.
        most_bytes: The most they may take; 0 to keep none.
        copy_bytes: The largest file that is copied where it can't be cloned.

    Attributes:
        store: The contents.
        record: What is known.
        loose: Files without a name.
        unkept: Paths that could not be kept, and why; whoever tells the user takes them away.
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
        self.record = Record(private, KEPT)
        self.store = Store(private, KEPT, copy_bytes, root)
        self.loose = Loose(private, LOOSE)
        self._files: dict[int, File] = {}
        self._own: dict[int, int] = {}  # the bytes of contents that lie nowhere else, oldest first
        self._commits = 0
        self._held: frozenset[int] = frozenset()
        self.unkept: list[tuple[str, Unkept]] = []

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._most_bytes > 0

    def limit(self, *, most_bytes: int, copy_bytes: int) -> None:
        """Keep so much from now on; call `clear` if nothing was kept before, or will be."""
        self._most_bytes = most_bytes
        self.store.copy_bytes = copy_bytes

    def clear(self, last: int = 0) -> None:
        """Begin anew: all files are as they were at commit `last`."""
        self.record.begin(last)
        self._begin()

    def load(self, last: int) -> bool:
        """Go on with what an earlier process kept, up to commit `last`.

        False where there is nothing, or it is damaged: only what changes after the next commit can
        be brought back.
        """
        whole = self.record.load(last)
        self._begin()
        return whole

    def _begin(self) -> None:
        self._files, self._own, self._commits = {}, {}, 0
        if not self.keeps:
            self.record.remove()
            self.store.clear()
            return
        try:
            for number in self.store.open(self.record.contents):
                self.record.lose(number, "changed")
        except OSError as problem:
            self.record.trouble = problem
            return
        self._write()

    def _write(self) -> None:
        self.record.write()
        self._files = self.record.contents
        alone = (n for n in self._files if not self.store.has_a_name_elsewhere(n))
        self._own = {number: self._files[number].size for number in alone}

    def begin(self, last: int, commits: Collection[int]) -> bool:
        """Commit `last` was taken; all that are kept are `commits`.

        True where what none of them needs was let go, as is done now and then.
        """
        self.record.since = last
        self.loose.fresh.clear()
        self._commits += 1
        due = self.keeps and (
            (self._commits >= _FOLD_AFTER and len(self.record) > 0)
            or self.record.trouble is not None
        )
        if due:
            self.fold(commits)
        return due

    def fold(self, commits: Collection[int]) -> None:
        """Let go of what no commit needs, and of the oldest where all is too much."""
        before, self._commits = self._files, 0
        self.record.fold(commits)
        self._write()
        self._make_room(0)
        if self.record.trouble is None:
            for number in before.keys() - self._files.keys():
                self.store.remove(number)

    def sweep(self, needed: Collection[str]) -> None:
        """Let go of files without a name, but for those that are needed."""
        for called in self.loose.sweep(needed):
            self.record.forget(called)

    def trim(self, opened: Collection[str]) -> None:
        """Let the oldest files without a name go, where those that only commits know are too much.

        They take as much as all else that is kept may, at most: a file that is deleted while it is
        open, cell for cell, would fill the disk.
        """
        for called in self.loose.trim(opened, self._most_bytes):
            self.record.forget(called)

    @contextlib.contextmanager
    def hold(self, contents: Iterable[int]) -> Iterator[None]:
        """These contents are needed, and do not make room for others."""
        self._held = frozenset(contents)
        try:
            yield
        finally:
            self._held = frozenset()

    def _make_room(self, size: int) -> bool:
        """Let the oldest go, until so many bytes can come; False where they can't."""
        while sum(self._own.values()) + size > self._most_bytes:
            oldest = next((number for number in self._own if number not in self._held), 0)
            if not oldest:
                return False
            self._lose(oldest, "room")
        return True

    def _lose(self, number: int, why: str) -> None:
        self.record.lose(number, why)
        self.store.remove(number)
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
        """What stands at a path is about to change; never raises.

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
        new = path is not None and name != "." and not self.record.knows(path)
        if new and path is not None:
            self._add(path, self._was(folder, name, found, change))
        if change is Change.WRITE and found is not None:
            self.part((found.st_dev, found.st_ino))
        return new

    def before_creation(self, path: str | None) -> bool:
        """Something is about to come to a path where there is nothing; as `before_change`."""
        new = self.keeps and path is not None and not self.record.knows(path)
        if new and path is not None:
            self._add(path, Nothing())
        return new

    def after_removal(self, path: str | None) -> None:
        """A path holds nothing any more; what came after the last commit is forgotten."""
        if self.keeps and path is not None:
            self.record.vanished(path)

    def before_write(self, path: str | None, key: Key, file: int) -> None:
        """A file that is open is about to be written to or cut; never raises.

        Args:
            path: Its path as for `before_change`, or what `Loose` calls it.
            key: What tells it from others.
            file: Its descriptor, which need not be open for reading.
        """
        if not self.keeps:
            return
        unknown = path is not None and path not in self.loose.fresh and not self.record.knows(path)
        if unknown and path is not None and self._is_at(path, key):
            self._add(path, self._was_open(file))
        if key in self.store.shared:
            self.part(key)

    def _is_at(self, path: str, key: Key) -> bool:
        """Whether a path still leads to a file."""
        try:
            with self.place_of(path) as (folder, name):
                found = _status(folder, name)
        except (OSError, ValueError):
            return False
        return found is not None and (found.st_dev, found.st_ino) == key

    @contextlib.contextmanager
    def place_of(self, path: str) -> Iterator[tuple[int, str]]:
        """The folder that a path of the workspace lies in, or what has none, and its name there.

        Args:
            path: Relative to the workspace, or what `Loose` calls it. No link is followed.

        Raises:
            OSError: there is no such folder.
        """
        if is_unlinked_name(path):
            yield self.loose.at(path)
            return
        with self.lookup() as lookup:
            yield lookup.parent(path)

    def lookup(self) -> Lookup:
        """What leads to the workspace's paths; close it.

        Raises:
            OSError: no files are kept.
        """
        if self._root is None:
            raise FileNotFoundError(errno.ENOENT, "no files are kept")
        return Lookup(self._root.fd)

    def close(self) -> None:
        """Closes the folders and the journal. Safe to call twice."""
        self.record.close()
        self.store.close()
        self.loose.close()

    def part(self, key: Key) -> None:
        """A file is about to be written to; what is kept of it may be the file itself."""
        number = self.store.shared.pop(key, 0)
        if not number:
            return
        try:
            self.store.part(number)
            self._own[number] = self._files[number].size
        except (OSError, TooLarge) as problem:
            self._lose(number, _why(problem))

    def _add(self, path: str, was: Was) -> None:
        self.record.add(path, was)
        if isinstance(was, File):
            self._files[was.kept] = was
        elif isinstance(was, Unkept):
            self.unkept.append((path, was))

    def _was(self, folder: int, name: str, found: os.stat_result | None, change: Change) -> Was:
        if found is None:
            return Nothing()
        if stat.S_ISDIR(found.st_mode):
            return WasFolder()
        try:
            if stat.S_ISLNK(found.st_mode):
                return Link(os.readlink(name, dir_fd=folder))
            if stat.S_ISREG(found.st_mode):
                return self._content(folder, name, found, change)
        except (OSError, TooLarge) as problem:
            return Unkept(_why(problem), found.st_size)
        return Unkept("unreadable")

    def _content(self, folder: int, name: str, found: os.stat_result, change: Change) -> Was:
        shared = self._shared(found)
        if shared is not None:
            return shared
        if found.st_size > self._most_bytes and change is not Change.MOVE:
            return Unkept("large", found.st_size)
        if change is Change.MOVE:
            with contextlib.suppress(OSError):  # no hard links here
                return self.store.refer(folder, name, found)
        if not self._make_room(found.st_size):
            return Unkept("room", found.st_size)
        if change is Change.END:
            with contextlib.suppress(OSError):
                return self._owned(self.store.refer(folder, name, found))
        source = os.open(name, _READ, dir_fd=folder)
        try:
            if not os.path.samestat(os.fstat(source), found):
                raise OSError(errno.ESTALE, "another file took its name")
            return self._owned(self.store.copy(source))
        finally:
            os.close(source)

    def _was_open(self, file: int) -> Was:
        """What an open file holds, by a descriptor that need not be open for reading."""
        found = os.fstat(file)
        shared = self._shared(found)
        if shared is not None:
            return shared
        if found.st_size > self._most_bytes:
            return Unkept("large", found.st_size)
        if not self._make_room(found.st_size):
            return Unkept("room", found.st_size)
        try:
            source = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return self._owned(self.store.copy(source))
            finally:
                os.close(source)
        except (OSError, TooLarge) as problem:
            return Unkept(_why(problem), found.st_size)

    def _shared(self, found: os.stat_result) -> File | None:
        """The content that is a file itself, if it is kept so."""
        return self._files.get(self.store.shared.get((found.st_dev, found.st_ino), 0))

    def _owned(self, was: File) -> File:
        self._own[was.kept] = was.size
        return was

    def keep_unlinked(self, folder: int, name: str, found: os.stat_result) -> str:
        """Keeps a file that loses its last name; see `FileHistory`."""
        return self.loose.catch(folder, name, found) if self.keeps else ""

    def drop_unlinked(self, name: str) -> None:
        """Lets an unlinked file go that nobody has open, unless a commit knows it."""
        if name in self.loose.fresh:
            self.loose.remove(name)

    def open_unlinked(self, name: str, flags: int) -> int:
        """Opens an unlinked file; the caller closes the descriptor.

        Raises:
            OSError: it does not exist.
        """
        return self.loose.open_again(name, flags)

    def same_file(self, one: str, other: str) -> bool:
        """Whether two identities name one file to the guest."""
        return self.record.first_twin(one) == self.record.first_twin(other)

    def state(self, one: int) -> dict[str, Was]:
        """The paths that may hold something else now than at a commit, and what they held."""
        state = self.record.state(one)
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


def nothing_kept() -> Versions:
    """For a guest whose files nobody will bring back."""
    return Versions(None, None, most_bytes=0, copy_bytes=0)
