"""A folder that other programs change, too: its files are found, copied and replaced by descriptor.

No link is followed. A copy first gets a temporary name in the folder, and its final name in one
step when it is complete; it is never executable. A file that has the final name is checked before,
and put back if another one took its place before the step.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from msgspec import Struct

from wasm_kernel.linux import walks
from wasm_kernel.linux.files import FileCopier, FileMark, swap_names, take_name
from wasm_kernel.linux.folders import Folder, closing_fd, is_plain_name
from wasm_kernel.linux.task import QUIET, Cancelled, Task
from wasm_kernel.linux.walks import FolderWalk
from wasm_kernel.publishing.names import PublishError
from wasm_kernel.wasi_files.preopens import NOTHING_HIDDEN, Hidden, is_hidden_folder

_BLOCK = 4 * 1024 * 1024
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL
_ALL_MAY_READ = 0o666  # less the user's umask


class NameTaken(PublishError):
    """Another file has the name; it was left as it is."""

    def __init__(self) -> None:
        super().__init__("the file beside the notebook was changed since, and was left as it is.")


class CopiedFile(Struct, frozen=True):
    """A file that was copied into a folder: its identity, its bytes, its content's digest."""

    mark: FileMark
    size: int
    digest: str


class FileTree:
    """The files below a folder, by paths of plain names. One thread uses it.

    The folder stays the caller's. The names that are `hidden` in it are not found.
    """

    def __init__(self, folder: Folder, hidden: Hidden = NOTHING_HIDDEN, task: Task = QUIET) -> None:
        self.folder = folder
        self._hidden, self._task = hidden, task

    @contextmanager
    def entered(self, path: str, *, make: bool = False) -> Iterator[tuple[Folder, str]]:
        """The folder that holds a path's last name, and that name, which may be empty.

        `OSError` if a folder on the way is missing or hidden, or a name is not plain, and could
        lead out. `make` makes missing folders.
        """
        hidden = self._hidden
        *above, name = parts = path.split("/")
        if not all(map(is_plain_name, above)) or (name and not is_plain_name(name)):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        if any(part and hidden.hides_name(depth, part) for depth, part in enumerate(parts)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        with FolderWalk(self.folder.fd, to_list=False) as walk:
            for part in above:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=walk.fd)
                walk.enter(part)
                if hidden.hides_folders and hidden.hides_folder(walk.fd, walk.depth - 1):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            yield Folder(walk.fd), name

    def status(self, path: str) -> os.stat_result | None:
        """Returns the status of the entry at a path; None if there is none, or it can't be read."""
        try:
            with self.entered(path) as (here, name):
                return here.status(name)
        except OSError:
            return None

    def open_regular(self, path: str) -> int:
        """Returns a descriptor of the regular file at a path; the caller closes it."""
        with self.entered(path) as (here, name):
            return here.open_regular(name)

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
        with closing_fd(here.open_regular(name, _NEW, _ALL_MAY_READ)) as fd, discarding(here, name):
            FileCopier(self._task).copy(source, fd, before.st_size)
            # a clone has the size that the file had at that moment
            if os.fstat(fd).st_size != before.st_size or not _is_same(os.fstat(source), before):
                raise PublishError("it changed while it was copied. Try again.")
            if mode is not None:
                os.fchmod(fd, mode & _ALL_MAY_READ)
            yield name, self._read(fd)

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
        digest, at = hashlib.blake2b(digest_size=32), 0
        while block := os.pread(fd, _BLOCK, at):
            if self._task.cancelled:
                raise Cancelled
            digest.update(block)
            at += len(block)
        return CopiedFile(FileMark.of(fd), os.fstat(fd).st_size, digest.hexdigest())


def give_name(here: Folder, draft: str, name: str, there: os.stat_result | None) -> None:
    """Gives a draft the name of a file, which is removed; `there` is that file's known status.

    Raises `NameTaken` if another file has the name by now, or the file's content changed. `there`
    is None if the name was free.
    """
    if there is None:
        if take_name(here.fd, draft, name):
            return
        if here.status(name) is not None:
            raise NameTaken
        here.rename(draft, name)  # the file system can't take a name at once
    elif not swap_names(here.fd, draft, here.fd, name):
        here.rename(draft, name)  # the file system can't swap names
    elif not _has_content(here, draft, there):
        swap_names(here.fd, draft, here.fd, name)
        raise NameTaken
    else:
        here.remove(draft)


def remove(here: Folder, name: str, there: os.stat_result) -> None:
    """Removes the file whose known status is `there`; `NameTaken` as in `give_name`."""
    aside = own_name()
    if not take_name(here.fd, name, aside):
        here.rename(name, aside)  # the file system can't take a name at once
    if not _has_content(here, aside, there):
        take_name(here.fd, aside, name)
        raise NameTaken
    here.remove(aside)


@contextmanager
def discarding(here: Folder, draft: str) -> Iterator[None]:
    """Removes a draft at the end of a block, unless another file has its name by then."""
    own = here.status(draft)
    try:
        yield
    finally:
        now = here.status(draft)
        if own is not None and now is not None and os.path.samestat(own, now):
            here.remove(draft)


def own_name() -> str:
    """Returns an unused, hidden name."""
    return f".{secrets.token_hex(12)}.part"


def _has_content(here: Folder, name: str, known: os.stat_result) -> bool:
    now = here.status(name)
    return now is not None and content_of(now) == content_of(known)


def content_of(status: os.stat_result) -> tuple[int, ...]:
    """Returns the fields that change if another file has the name or the content changes."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_same(now: os.stat_result, before: os.stat_result) -> bool:
    """Returns whether an open file is unchanged; also compares ctime, which can't be set back."""
    return (*content_of(now), now.st_ctime_ns) == (*content_of(before), before.st_ctime_ns)
