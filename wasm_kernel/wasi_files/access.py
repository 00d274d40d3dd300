"""`FileAccess`: whole files by absolute paths, for guests without file calls, and for the host."""

from __future__ import annotations

import contextlib
import errno
import posixpath
from collections.abc import Iterator, Sequence

from wasm_kernel.engine import abi
from wasm_kernel.wasi_files.changes import FileChanges
from wasm_kernel.wasi_files.context import PathAt
from wasm_kernel.wasi_files.file_history import NO_FILE_HISTORY
from wasm_kernel.wasi_files.operations import FileOperations
from wasm_kernel.wasi_files.preopens import GuestOSError, Preopen, Preopens
from wasm_kernel.wasi_files.quota import Quota

_PIECE_BYTES = 1024 * 1024
_OPEN_FILES = 16  # more than enough: the host opens one file at a time
_KINDS = {abi.FILE_TYPE: "file", abi.FOLDER_TYPE: "folder", abi.LINK_TYPE: "link"}


class FileAccess:
    """The files of one guest, by absolute paths as the guest sees them. Only its thread uses it.

    `operations` act on the paths that `at` returns, with the guest's quota and history.
    """

    def __init__(self, files: FileOperations) -> None:
        self.operations = files
        folders = {guest.rstrip("/"): fd for guest, fd in files.folders().items()}
        self._folders = sorted(folders.items(), key=lambda pair: -len(pair[0]))

    def at(self, path: str) -> PathAt:
        """Returns a path as the operations take it."""
        plain = posixpath.normpath(text(path))
        for guest, fd in self._folders:
            if f"{plain}/".startswith(f"{guest}/"):
                rest = plain[len(guest) + 1 :] or "."
                ends_in_slash = path.endswith("/") and rest != "."
                return fd, f"{rest}/" if ends_in_slash else rest
        raise GuestOSError(errno.ENOENT)

    def read(self, path: str, start: int, most: int) -> bytes:
        """Returns a file's bytes from offset `start` on, `most` of them at most."""
        with self._open(path, 0, abi.RIGHT_READ) as fd:
            return b"".join(self._pieces(fd, start, most))

    def _pieces(self, fd: int, start: int, most: int) -> Iterator[bytes]:
        while most > 0:
            piece = bytearray(min(_PIECE_BYTES, most))
            try:
                length = self.operations.read_at(fd, [memoryview(piece)], start)
            except GuestOSError:  # WASI has this error for folders
                raise GuestOSError(errno.EISDIR) from None
            if length == 0:
                return
            start, most = start + length, most - length
            yield bytes(piece[:length])

    def write(self, path: str, data: bytes, *, append: bool = False, new: bool = False) -> None:
        """Writes a file, or appends to it with `append`; with `new` it must not exist."""
        how = abi.O_CREAT | (abi.O_EXCL if new else 0) | (0 if append else abi.O_TRUNC)
        flags = abi.FD_APPEND if append else 0
        with self._open(path, how, abi.RIGHT_READ | abi.RIGHT_WRITE, flags) as fd:
            view = memoryview(data)
            while view:
                view = view[self.operations.write(fd, [view]) :]

    def truncate(self, path: str, size: int) -> None:
        """Cuts a file, or adds zeros to it."""
        with self._open(path, 0, abi.RIGHT_READ | abi.RIGHT_WRITE) as fd:
            self.operations.set_size(fd, size)

    def list(self, path: str) -> list[tuple[str, str]]:
        """Returns the names in a folder, in order, each with its kind.

        The kinds are `file`, `folder`, `link` and `other`.
        """
        with self._open(path, abi.O_DIRECTORY, abi.RIGHT_READ | abi.RIGHT_READDIR) as fd:
            found = self.operations.entries(fd)
            return sorted((each.name, _KINDS.get(each.kind, "other")) for each in found)

    @contextlib.contextmanager
    def _open(self, path: str, how: int, rights: int, fdflags: int = 0) -> Iterator[int]:
        fd = self.operations.open(self.at(path), how, rights, fdflags=fdflags)
        try:
            yield fd
        finally:
            self.operations.close_file(fd)


@contextlib.contextmanager
def files_in(folders: Sequence[Preopen], quota: Quota, home: str = "") -> Iterator[FileAccess]:
    """Yields the files of some folders, the workspace first, as a guest would see them."""
    preopens, changes = Preopens(tuple(folders), home=home), FileChanges(folders[0])
    files = FileOperations(
        preopens, changes, quota, NO_FILE_HISTORY, open_files=_OPEN_FILES, should_stop=lambda: False
    )
    with contextlib.closing(files):
        yield FileAccess(files)


def text(words: str) -> str:
    """Returns a path, or the text of a link, as it is; raises `GuestOSError` if it may not be used.

    It must be UTF-8, as it is for a guest with WASI calls.
    """
    try:
        length = len(words.encode("utf-8"))
    except UnicodeEncodeError:
        raise GuestOSError(errno.EILSEQ) from None
    if length > abi.PATH_MAX:
        raise GuestOSError(errno.ENAMETOOLONG)
    if "\0" in words:
        raise GuestOSError(errno.EINVAL)
    return words
