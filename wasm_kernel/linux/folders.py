"""An open folder, and the files in it: by descriptor, by one plain name, and never through a link.

Everything that the host does in a folder that a stranger may have filled goes through here; a
stranger is a guest, the author of a repository, another process. A name is checked and acted on in
the same system call, so the stranger can't swap the file in between. Source of the rules:
openat(2), `O_NOFOLLOW` and `O_NONBLOCK` in open(2).

A folder that the user names may itself be a trap: the current folder may be a repository that was
just cloned, with a link in the place of `workspace`. So a relative path is walked name by name, and
a link on it is refused. An absolute path may lead through links: the user knows them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Self, TypeVar

import msgspec

from wasm_kernel.errors import WasmKernelError

# No link is followed, no FIFO blocks the open, and no terminal becomes the process's own.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
READ, NEW = os.O_RDONLY | _FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
"""The flags for opening a file to read, and for making a new file to write."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
SEARCHED = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ASIDE = ".aside"
_OWNER = stat.S_IRWXU
Record = TypeVar("Record")
Inode = tuple[int, int]
"""A file's device and inode number, which tell it from others."""


def inode_of(status: os.stat_result) -> Inode:
    """Returns the device and inode number of a file."""
    return status.st_dev, status.st_ino


def stamp_of(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """Returns numbers that differ once a file has changed, or another one has its name.

    A program can set the time of a file's last write back, but not that of its last change.
    """
    return (*inode_of(status), status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class NotRegular(OSError):
    """A link, FIFO, device or other special file lies in the place of a regular file."""


class TooLong(OSError):
    """A file holds more bytes than may be read at once."""


class DamagedRecord(OSError):
    """A file does not hold a record of the expected type."""


class Closing:
    """A base class for objects with `close`, which the end of a `with` block calls, too."""

    def close(self) -> None:
        """Frees what the object holds. Safe to call twice."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class DescriptorOwner(Closing):
    """An object that owns a descriptor, `fd`; -1 once it is closed."""

    fd: int

    def close(self) -> None:
        """Closes the descriptor. Safe to call twice."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)


@contextlib.contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """Closes a descriptor at the end of a block."""
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def undoing(undo: Callable[[], object]) -> Iterator[None]:
    """Calls a function if a block fails; drops an `OSError` of the function's own."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            undo()
        raise


class Folder(DescriptorOwner):
    """An open folder; it owns its descriptor: close it. Many threads may use it, one closes it.

    A name is one plain name: no slash, and neither `.` nor `..`.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Opens a folder by a path that the user chose: links on the way are followed."""
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def enter(self, *names: str, make: bool = False, force: bool = False) -> Folder:
        """Opens a folder below this one, name by name; without names, this one once more.

        With `make`, missing folders are made, for their owner alone. With `force`, a folder without
        its owner's permissions gets them, for good. A link is refused.
        """
        fd = os.open(".", FOLDER, dir_fd=self.fd)
        try:
            for name in names:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(plain_name(name), 0o700, dir_fd=fd)
                below = open_folder(plain_name(name), fd, force=force)
                os.close(fd)
                fd = below
        except BaseException:
            os.close(fd)
            raise
        return Folder(fd)

    def names(self, most: int | None = None) -> list[str]:
        """Returns the names in the folder, unordered, `most` of them at most."""
        if self.fd < 0:  # scandir would list the current folder
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        with os.scandir(self.fd) as entries:
            return [entry.name for entry in islice(entries, most)]

    @property
    def inode(self) -> Inode:
        """The device and inode number of this folder."""
        return inode_of(os.fstat(self.fd))

    def status(self, name: str) -> os.stat_result | None:
        """Returns the status of an entry, or None if there is none. A link is not followed."""
        try:
            return os.stat(plain_name(name), dir_fd=self.fd, follow_symlinks=False)
        except (FileNotFoundError, ValueError):
            return None

    def has(self, name: str, fd: int) -> bool:
        """Returns whether a name still stands for the open file `fd`, and not for another file."""
        there = self.status(name)
        return there is not None and os.path.samestat(there, os.fstat(fd))

    def open_regular(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
        """Returns a descriptor of a regular file; the caller closes it.

        Raises `NotRegular` for anything else, which is neither read nor written.
        """
        try:
            fd = os.open(plain_name(name), flags | _FILE, mode, dir_fd=self.fd)
        except OSError as problem:
            if problem.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise NotRegular(problem.errno, f"{name} is not a regular file") from None
            raise
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise NotRegular(errno.EINVAL, f"{name} is not a regular file")

    def read(self, name: str, most: int) -> bytes:
        """Returns a regular file's content. Raises `NotRegular`; `TooLong` above `most` bytes."""
        with os.fdopen(self.open_regular(name), "rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise TooLong(errno.EFBIG, f"it is longer than {most:,} bytes")
        return data

    def read_record(self, name: str, kind: type[Record], most: int) -> Record:
        """Returns the record of a type in a regular file, whose JSON has at most `most` bytes.

        Raises `FileNotFoundError` without such a file, `DamagedRecord` if it can't be read as one.
        """
        try:
            # msgspec's own reader and writer refuse names of files that are not UTF-8
            return msgspec.convert(json.loads(self.read(name, most)), kind)
        except FileNotFoundError:
            raise
        except (OSError, ValueError, RecursionError) as problem:
            raise DamagedRecord(f"it holds no such record ({problem})") from problem

    def write_record(self, name: str, record: object, *, sync: bool = False) -> None:
        """Writes a record in place of an earlier one, whole or not at all; with `sync`, to disk."""
        with self.replacing(name, sync=sync) as file:
            file.write(json.dumps(msgspec.to_builtins(record)).encode())

    @contextlib.contextmanager
    def replacing(self, name: str, *, sync: bool = False) -> Iterator[BinaryIO]:
        """Yields a new file to write, which gets the name at the end, whole or not at all.

        With `sync`, the file's content is on the disk before it gets the name.
        """
        aside = f".{plain_name(name)}{_ASIDE}"
        with undoing(lambda: self.remove(aside)):
            self.remove(aside)
            fd = self.open_regular(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(fd, "wb") as file:
                yield file
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            os.rename(aside, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def abandoned(self) -> list[str]:
        """Returns the names of files that killed writers left. Call it when no writer is active."""
        return [name for name in self.names() if name.startswith(".") and name.endswith(_ASIDE)]

    def remove(self, name: str) -> None:
        """Removes a file, a link or anything else but a folder, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(plain_name(name), dir_fd=self.fd)

    def rename(self, name: str, new: str, to: Folder | None = None) -> None:
        """Gives a file another name, here or in another folder of the same file system."""
        there = self.fd if to is None else to.fd
        os.rename(plain_name(name), plain_name(new), src_dir_fd=self.fd, dst_dir_fd=there)


def open_folder(
    name: str | os.PathLike[str], parent: int | None = None, *, force: bool = False
) -> int:
    """Returns a descriptor of a folder, which the caller closes. A link is refused.

    With `force`, a folder without its owner's permissions gets them, for good.
    """
    try:
        fd = os.open(name, FOLDER, dir_fd=parent)
    except PermissionError:
        if not force:
            raise
        # Linux changes modes through links only; a descriptor of the folder is not a link
        with closing_fd(os.open(name, SEARCHED, dir_fd=parent)) as named:
            os.chmod(f"/proc/self/fd/{named}", _OWNER)  # noqa: PTH101 - a descriptor
        fd = os.open(name, FOLDER, dir_fd=parent)
    if force and os.fstat(fd).st_mode & _OWNER != _OWNER:
        os.fchmod(fd, _OWNER)
    return fd


def is_plain_name(name: str) -> bool:
    """Returns whether a name is that of an entry of a folder, not the folder or its parent."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name


def plain_name(name: str) -> str:
    """Returns a plain name as it is. Raises `ValueError` if it could lead elsewhere."""
    if not is_plain_name(name):
        raise ValueError("not a plain name")
    return name


def link_text(folder: int, name: str) -> str:
    """Returns the text of a link in an open folder; an empty one if it is not a link."""
    try:
        return os.readlink(name, dir_fd=folder)
    except (OSError, ValueError):
        return ""


@contextlib.contextmanager
def making_folder(path: Path, mode: int = 0o777) -> Iterator[None]:
    """Makes a folder, which may be there already, and those above it.

    If the block fails, the new folders are removed again, unless they hold anything.
    """
    missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    try:
        path.mkdir(mode=mode, parents=True, exist_ok=True)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for folder in missing:
                folder.rmdir()
        raise


class PlantedLinkError(WasmKernelError, ValueError):
    """A relative path leads through a link."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} leads through a link, which the maker of the current folder may have put "
            "there. Nothing was opened. If the link is yours, name the folder that it leads to by "
            "its absolute path."
        )


def real_path(path: Path | str) -> Path:
    """Returns the real path of a folder that the user named; it need not exist.

    Raises `PlantedLinkError` if a relative path leads through a link.
    """
    path = Path(path)
    if path.is_absolute():
        return Path(os.path.realpath(path))  # `resolve` has an error of its own for a loop of links
    with contextlib.suppress(OSError):  # such as a missing folder: opening it will report that
        os.close(_walk(path, SEARCHED))
    return _lexical(path)


def open_named(path: Path | str) -> Folder:
    """Returns a folder that the user named; the caller closes it.

    Raises `PlantedLinkError` if a relative path leads through a link.
    """
    path = Path(path)
    return Folder.open(path) if path.is_absolute() else Folder(_walk(path, FOLDER))


def _lexical(path: Path) -> Path:
    return Path(os.path.normpath(Path.cwd() / path))  # exact: no name on the way is a link


def _walk(path: Path, how: int) -> int:
    """Goes from the current folder to another one; returns its descriptor."""
    *above, last = Path(os.path.relpath(_lexical(path))).parts or (".",)
    fd = os.open(".", SEARCHED)
    try:
        for name in above:
            below = _entered(fd, name, SEARCHED, path)
            os.close(fd)
            fd = below
        return _entered(fd, last, how, path)
    finally:
        os.close(fd)


def _entered(fd: int, name: str, how: int, path: Path) -> int:
    try:
        return os.open(name, how, dir_fd=fd)
    except OSError as problem:
        if problem.errno in (errno.ENOTDIR, errno.ELOOP) and link_text(fd, name):
            raise PlantedLinkError(str(path)) from None
        raise
