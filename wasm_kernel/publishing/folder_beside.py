"""A folder of the user's into which files of a session are copied: whole, or not at all.

The source is one open regular file. The copy first gets a temporary name in the folder, and its
final name in one step when it is complete; it is never executable. A file that has the final name
is checked before, and put back if another one took its place before the step.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from wasm_kernel.linux import walks
from wasm_kernel.linux.files import FileCopier, FileMark, swap_names, take_name
from wasm_kernel.linux.folders import Folder, closing_fd
from wasm_kernel.linux.locks import FileLock
from wasm_kernel.linux.task import Cancelled, Task
from wasm_kernel.linux.walks import FolderWalk, is_plain_name
from wasm_kernel.publishing.names import PublishError
from wasm_kernel.wasi_files.preopens import NOTHING_HIDDEN, Hidden, is_hidden_folder

T = TypeVar("T", bound=Struct)

_BLOCK = 4 * 1024 * 1024
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_ALL_MAY_READ = 0o666  # less the user's umask
_RECORD_BYTES = 64 * 1024 * 1024
_LOCK_SECONDS = 10.0
_BUSY = "Another kernel writes into this folder. Nothing was written there. Try again."
_CHANGED = "it changed while it was copied. Try again."


class NameTaken(PublishError):
    """Something else has the name by now; it was left as it is."""


class CopiedFile(Struct, frozen=True):
    """A file that was copied into the folder.

    Attributes:
        mark: The file's identity.
        size: Its bytes.
        digest: The digest of its content.
    """

    mark: FileMark
    size: int
    digest: str


class FolderBeside:
    """A folder beside the notebook, or that of the notebook itself. One thread uses it.

    The folder stays the caller's; sessions don't see the names that are `hidden` in it.
    """

    def __init__(self, folder: Folder, hidden: Hidden, task: Task) -> None:
        self._folder, self._hidden, self._task = folder, hidden, task

    @contextmanager
    def entered(self, path: str, *, make: bool = False) -> Iterator[tuple[Folder, str]]:
        """The folder that holds a path's last name, and that name, as the function `entered`."""
        with entered(self._folder.fd, path, self._hidden, make=make) as found:
            yield found

    def remove_folders(self, path: str) -> None:
        """Removes a folder and its subfolders; `OSError` if they hold files or hidden names."""
        hidden, depth = self._hidden, path.count("/") + 1

        def is_hidden(folder: int, name: str, below: int) -> bool:
            known = hidden.hides_name(depth + below, name)
            return known or is_hidden_folder(hidden, folder, name, depth + below)

        with self.entered(f"{path}/") as (folder, _):
            for entry in walks.entries(folder.fd, hidden=is_hidden):
                if not entry.is_folder:
                    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
                os.rmdir(entry.name, dir_fd=entry.folder)
        with self.entered(path) as (above, name):
            os.rmdir(name, dir_fd=above.fd)

    @contextmanager
    def draft(
        self, here: Folder, source: int, mode: int | None = None
    ) -> Iterator[tuple[str, CopiedFile]]:
        """A copy of an open file under a temporary name; removed unless the block renames it.

        It is never executable; without `mode`, it has the permissions that the umask allows.
        `PublishError` if the file changed during the copy.
        """
        before, name = os.fstat(source), own_name()
        fd = here.open_regular(name, _NEW, _ALL_MAY_READ)
        try:
            FileCopier(self._task).copy(source, fd, before.st_size)
            # a clone has the size that the file had at that moment
            if os.fstat(fd).st_size != before.st_size or not _is_same(os.fstat(source), before):
                raise PublishError(_CHANGED)
            if mode is not None:
                os.fchmod(fd, mode & _ALL_MAY_READ)
            yield name, self._read(fd)
        finally:
            if here.has(name, fd):
                here.remove(name)
            os.close(fd)

    def is_that(self, here: Folder, name: str, known: CopiedFile | None) -> bool:
        """Returns whether a name still leads to the file that was copied there, unchanged."""
        there = None if known is None else self.read(here, name, known.size)
        if known is None or there is None or there.digest != known.digest:
            return False
        return known.mark.same(there.mark)

    def read(self, here: Folder, name: str, size: int) -> CopiedFile | None:
        """Returns the regular file at a name; None if there is none of `size` bytes."""
        with suppress(OSError), closing_fd(here.open_regular(name)) as fd:
            return self._read(fd) if os.fstat(fd).st_size == size else None
        return None

    def _read(self, fd: int) -> CopiedFile:
        return CopiedFile(FileMark.of(fd), os.fstat(fd).st_size, self._digest(fd))

    def _digest(self, fd: int) -> str:
        digest, at = hashlib.blake2b(digest_size=32), 0
        while block := os.pread(fd, _BLOCK, at):
            if self._task.cancelled:
                raise Cancelled
            digest.update(block)
            at += len(block)
        return digest.hexdigest()


class _Known(Struct, Generic[T]):
    """The facts known of the files in a folder, by their paths."""

    folder: FileMark
    files: dict[str, T]


class FolderRecord(Generic[T]):
    """The record of the files in one folder, locked for other processes; close it.

    It lies in the folder `place`, which no guest sees and which stays the caller's. `kind` is the
    type of a file's entry. `PublishError` if another process has the record.
    """

    def __init__(self, place: Folder, folder: Folder, kind: type[T]) -> None:
        with suppress(OSError):
            # an overlay gives a folder another identity with its first change, which is this one
            os.fchmod(folder.fd, stat.S_IMODE(os.fstat(folder.fd).st_mode))
        self._place, self._mark = place, FileMark.of(folder.fd)
        name = f"{self._mark.number} {self._mark.born}"
        self._name = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        self._journal = f"{self._name}.journal"
        self._lock = FileLock(f"{self._name}.lock", place)
        if not self._lock.acquire(_LOCK_SECONDS):
            raise PublishError(_BUSY)
        self.files = self._read(kind)
        self._saved = dict(self.files)

    def _read(self, kind: type[T]) -> dict[str, T]:
        wanted: Any = _Known
        known: _Known[T] = _Known(self._mark, {})
        # a record that can't be read is left out: its files then count as the user's
        for name in (self._name, self._journal):
            with suppress(OSError, ValueError):
                for line in self._place.read(name, _RECORD_BYTES).splitlines():
                    part: _Known[T] = msgspec.json.decode(line, type=wanted[kind])
                    if part.folder.same(self._mark):
                        known.files.update(part.files)
        return known.files

    def note(self, path: str, known: T) -> None:
        """Writes down a coming change to a file at once, in case this process is killed."""
        line = msgspec.json.encode(_Known(self._mark, {path: known})) + b"\n"
        with os.fdopen(self._place.open_regular(self._journal, _APPEND), "ab") as file:
            file.write(line)
        self.files[path] = known

    def close(self) -> None:
        """Saves the record, and releases its lock."""
        try:
            if self.files != self._saved:
                with self._place.replacing(self._name) as file:
                    file.write(msgspec.json.encode(_Known(self._mark, self.files)))
            self._place.remove(self._journal)
        finally:
            self._lock.release()


@contextmanager
def entered(
    root: int, path: str, hidden: Hidden, *, make: bool = False
) -> Iterator[tuple[Folder, str]]:
    """The folder that holds a path's last name, and that name; no link is followed.

    The last name may be empty. `OSError` if a folder on the way is missing or hidden, or a name is
    not plain, and could lead out. `make` makes missing folders.
    """
    *above, name = parts = path.split("/")
    if not all(map(is_plain_name, above)) or (name and not is_plain_name(name)):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    if any(part and hidden.hides_name(depth, part) for depth, part in enumerate(parts)):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    with FolderWalk(root, to_list=False) as walk:
        for part in above:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=walk.fd)
            walk.enter(part)
            if hidden.hides_folders and hidden.hides_folder(walk.fd, walk.depth - 1):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        yield Folder(walk.fd), name


def status_of(root: Folder, path: str) -> os.stat_result | None:
    """Returns the status of the file at a path, no link followed; None if it can't be read."""
    try:
        with entered(root.fd, path, NOTHING_HIDDEN) as (folder, name):
            return folder.status(name)
    except OSError:
        return None


def take(here: Folder, draft: str, name: str) -> None:
    """Gives a draft a free name; `NameTaken` if the name is taken by now."""
    if take_name(here.fd, draft, name):
        return
    if here.status(name) is not None:
        raise NameTaken
    here.rename(draft, name)  # the file system can't take a name at once


def replace(here: Folder, draft: str, name: str, there: os.stat_result) -> None:
    """Gives a draft the name of a file, which is removed; `there` is the file's known status.

    Raises `NameTaken` if another file has the name by now, or the file's content changed.
    """
    if not swap_names(here.fd, draft, here.fd, name):
        here.rename(draft, name)  # the file system can't swap names
        return
    old = here.status(draft)
    if old is None or _content(old) != _content(there):
        swap_names(here.fd, draft, here.fd, name)
        raise NameTaken
    here.remove(draft)


def remove(here: Folder, name: str, there: os.stat_result) -> None:
    """Removes the file whose known status is `there`; `NameTaken` as in `replace`."""
    aside = own_name()
    if not take_name(here.fd, name, aside):
        here.rename(name, aside)  # the file system can't take a name at once
    old = here.status(aside)
    if old is None or _content(old) != _content(there):
        take_name(here.fd, aside, name)
        raise NameTaken
    here.remove(aside)


@contextmanager
def discarding(here: Folder, draft: str) -> Iterator[None]:
    """Removes a draft if the block fails, unless another file has its name by then."""
    own = here.status(draft)
    try:
        yield
    except BaseException:
        now = here.status(draft)
        if own is not None and now is not None and os.path.samestat(own, now):
            here.remove(draft)
        raise


def own_name() -> str:
    """Returns an unused, hidden name."""
    return f".{secrets.token_hex(12)}.part"


def _content(status: os.stat_result) -> tuple[int, ...]:
    """Returns the fields that change if another file has the name or the content changes."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_same(now: os.stat_result, before: os.stat_result) -> bool:
    """Returns whether an open file is unchanged; also compares ctime, which can't be set back."""
    return (*_content(now), now.st_ctime_ns) == (*_content(before), before.st_ctime_ns)
