"""An open folder, and the files in it: by descriptor, by one plain name, and never through a link.

Everything that the host does in a folder that a stranger may have filled goes through here: a
guest, the author of a repository, another process. A name is checked and acted on in the same
system call, so nobody can swap what lies there in between. Source of the rules: openat(2),
`O_NOFOLLOW` and `O_NONBLOCK` in open(2).

A folder that somebody names may itself be a trap: the current folder may be a repository that was
just cloned, with a link in the place of `workspace`. So a relative path is walked name by name, and
a link on it is refused. An absolute path may lead through links: whoever names it knows them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Self

from wasm_kernel.errors import WasmKernelError

# No link is followed, no FIFO holds whoever opens it, and no terminal becomes the process's own.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
READ, NEW = os.O_RDONLY | _FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
"""How a file is opened to be read, and how one is made to be written."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
SEARCHED = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ASIDE = ".aside"
_OWNER = stat.S_IRWXU


class NotRegular(OSError):
    """Something that is not a regular file lies in a file's place: a link, a FIFO, a device."""


class TooLong(OSError):
    """A file holds more bytes than may be read at once."""


class Closing:
    """Something that is to be closed, which the end of a `with` block does, too."""

    __slots__ = ()

    def close(self) -> None:
        """Closes it. Safe to call twice."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class OpenDescriptor(Closing):
    """Something with a descriptor of its own, `fd`, which it closes; -1 if there is none."""

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


class Folder(OpenDescriptor):
    """An open folder; it owns its descriptor: close it. Many threads may use it, one closes it.

    A name is one plain name: no slash, and neither `.` nor `..`.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Opens a folder by a path that its user chose: links on the way are followed."""
        return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def enter(self, *names: str, make: bool = False, force: bool = False) -> Folder:
        """Opens a folder below this one, name by name; without names, this one once more.

        Missing ones are made for their owner alone if `make`. One that its owner closed to himself
        is opened for him, for good, if `force`. A link is refused.
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
        """Returns the names in the folder in no order, `most` of them at most."""
        if self.fd < 0:  # which scandir takes for the current folder
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        with os.scandir(self.fd) as entries:
            return [entry.name for entry in islice(entries, most)]

    def status(self, name: str) -> os.stat_result | None:
        """Returns the status of what has a name, links not followed; None for nothing."""
        try:
            return os.stat(plain_name(name), dir_fd=self.fd, follow_symlinks=False)
        except (FileNotFoundError, ValueError):
            return None

    def has(self, name: str, fd: int) -> bool:
        """Returns whether a name here is that of what is open, and not of what took its place."""
        there = self.status(name)
        return there is not None and os.path.samestat(there, os.fstat(fd))

    def open_regular(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
        """Returns a descriptor of a regular file; the caller closes it.

        Anything else is not opened for reading or writing: `NotRegular`.
        """
        try:
            fd = os.open(plain_name(name), flags | _FILE, mode, dir_fd=self.fd)
        except OSError as problem:
            if problem.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise NotRegular(problem.errno, "it is not a regular file") from None
            raise
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise NotRegular(errno.EINVAL, "it is not a regular file")

    def read(self, name: str, most: int) -> bytes:
        """Returns what a regular file holds; raises `NotRegular`, or `TooLong` if it holds more."""
        with os.fdopen(self.open_regular(name), "rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise TooLong(errno.EFBIG, f"it is longer than {most:,} bytes")
        return data

    @contextlib.contextmanager
    def replacing(self, name: str, *, sync: bool = False) -> Iterator[BinaryIO]:
        """A file to write to that takes a name's place at the end: as a whole, or not at all.

        With `sync`, the file's content is on the disk before it gets the name.
        """
        aside = f".{plain_name(name)}{_ASIDE}"
        try:
            self.remove(aside)
            fd = self.open_regular(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(fd, "wb") as file:
                yield file
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            os.rename(aside, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(aside)
            raise

    def abandoned(self) -> list[str]:
        """Returns the names of files that killed writers left, if nobody writes here now."""
        return [name for name in self.names() if name.startswith(".") and name.endswith(_ASIDE)]

    def remove(self, name: str) -> None:
        """Removes a file, a link or whatever else is no folder; there may be nothing."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(plain_name(name), dir_fd=self.fd)

    def rename(self, name: str, new: str, to: Folder | None = None) -> None:
        """Gives a file another name, here or in another folder of the same file system."""
        there = self.fd if to is None else to.fd
        os.rename(plain_name(name), plain_name(new), src_dir_fd=self.fd, dst_dir_fd=there)


def open_folder(
    name: str | os.PathLike[str], parent: int | None = None, *, force: bool = False
) -> int:
    """A descriptor of a folder, which is not a link; close it.

    One that its owner closed to himself is opened for him, for good, if `force`.
    """
    try:
        fd = os.open(name, FOLDER, dir_fd=parent)
    except PermissionError:
        if not force:
            raise
        _permit(name, parent)
        fd = os.open(name, FOLDER, dir_fd=parent)
    if force and os.fstat(fd).st_mode & _OWNER != _OWNER:
        os.fchmod(fd, _OWNER)
    return fd


def _permit(name: str | os.PathLike[str], parent: int | None) -> None:
    """Lets the owner into a folder; a link in its place is not followed."""
    # Linux changes modes through links only; a descriptor that only names the folder is not a link
    with closing_fd(os.open(name, SEARCHED, dir_fd=parent)) as fd:
        os.chmod(f"/proc/self/fd/{fd}", _OWNER)  # noqa: PTH101 - a descriptor


def plain_name(name: str) -> str:
    """Returns a name that is one; `ValueError` if it could lead elsewhere."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError("not a plain name")
    return name


@contextlib.contextmanager
def making_folder(path: Path, mode: int = 0o777) -> Iterator[None]:
    """Makes a folder that may be there already, with those above it.

    If the block fails, what was made is removed again, as far as nobody put anything there.
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
            f"{path} leads through a link, which whoever made the current folder may have put "
            "there. Nothing was opened. If the link is yours, name the folder that it leads to by "
            "its absolute path."
        )


def real_path(path: Path | str) -> Path:
    """Returns the real path of a folder that somebody named; it need not be there.

    A relative path that leads through a link is refused: `PlantedLinkError`.
    """
    path = Path(path)
    if path.is_absolute():
        return path.resolve()
    with contextlib.suppress(OSError):  # missing, say: whoever opens it tells
        os.close(_walked(path, SEARCHED))
    return _lexical(path)


def open_named(path: Path | str) -> Folder:
    """Returns a folder that somebody named, as `real_path` lets it be; the caller closes it."""
    path = Path(path)
    return Folder.open(path) if path.is_absolute() else Folder(_walked(path, FOLDER))


def _lexical(path: Path) -> Path:
    return Path(os.path.normpath(Path.cwd() / path))  # exact: no name on the way is a link


def _walked(path: Path, how: int) -> int:
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
        if problem.errno in (errno.ENOTDIR, errno.ELOOP) and _is_link(fd, name):
            raise PlantedLinkError(str(path)) from None
        raise


def _is_link(fd: int, name: str) -> bool:
    try:
        os.readlink(name, dir_fd=fd)
    except OSError:
        return False
    return True
