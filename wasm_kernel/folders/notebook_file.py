"""`NotebookFile`: the file of a notebook, told from every other file."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Self

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.linux.files import FileMark
from wasm_kernel.linux.folders import DescriptorOwner, Folder, plain_name

_NAMED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_SHORTEST = 1024  # bytes; new notebooks are shorter, and all alike
_LONGEST = 32 * 1024 * 1024
_DELETED = " (deleted)"  # the system's suffix to the last path of a deleted file

_LINK = "is a link. Name the file that it leads to"
_KIND = "is not a regular file"
_OTHERS = "belongs to another user, who could put other cells into it. Copy it"


class NotebookRefused(WasmKernelError):
    """No session is kept for a notebook's file; the text says why."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"No session can be kept for this notebook, as its file {why}.")


class NotebookFile(DescriptorOwner):
    """A notebook's file, which is kept open, so that it is still known under another name.

    Jupyter's servers write into the existing file (jupyter_server's `atomic_writing` first copies
    the old content to another file), and rename it, so it stays the same file. The descriptor `fd`
    only names the file; `path` is the real path at which it was found; `names` is the number of its
    names.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self.fd = path, fd
        self.mark, self.names = FileMark.of(fd), os.fstat(fd).st_nlink

    @classmethod
    def at(cls, path: Path) -> Self:
        """Returns the file at a path, opened neither for reading nor for writing; close it.

        The folders on the way may be links: a kernel runs in the folder that they lead to. Raises
        `NotebookRefused` if the file itself is a link, since other files lie beside a stranger's
        link than beside the notebook, or if it belongs to another user.
        """
        folder = path.parent.resolve()
        with Folder.open(folder) as above:
            fd = os.open(plain_name(path.name), _NAMED, dir_fd=above.fd)
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            return cls(folder / path.name, fd)
        os.close(fd)
        if stat.S_ISREG(found.st_mode):
            raise NotebookRefused(_OTHERS)
        raise NotebookRefused(_LINK if stat.S_ISLNK(found.st_mode) else _KIND)

    def content(self) -> bytes:
        """Returns the file's content now; no bytes if it can't be read, or is too long."""
        with suppress(OSError), open(f"/proc/self/fd/{self.fd}", "rb", opener=_open) as file:
            data = file.read(_LONGEST + 1)
            return data if len(data) <= _LONGEST else b""
        return b""

    def digest(self) -> str:
        """Returns a digest of the file's content; empty if it is too short, or can't be read."""
        data = self.content()
        return hashlib.sha256(data).hexdigest() if len(data) >= _SHORTEST else ""

    def moved(self) -> Path:
        """Returns the file's current path, or its last one if it was deleted."""
        try:
            now = Path(f"/proc/self/fd/{self.fd}").readlink()
            gone = os.fstat(self.fd).st_nlink == 0
        except OSError:
            return self.path
        return now.with_name(now.name.removesuffix(_DELETED)) if gone else now


def _open(path: str, _: int) -> int:
    return os.open(path, _READ)
