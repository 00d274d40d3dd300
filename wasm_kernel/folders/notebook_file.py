"""`NotebookFile`: the file of a notebook, and what tells it from every other one."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Self

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.linux.files import FileMark
from wasm_kernel.linux.folders import Folder, OpenDescriptor, plain_name

_NAMED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_SHORTEST = 1024  # bytes; new notebooks are shorter, and all alike
_LONGEST = 32 * 1024 * 1024
_DELETED = " (deleted)"  # what the system writes behind the path of a file that has none any more

_LINK = "is a link. Name the file that it leads to"
_KIND = "is not a regular file"
_OTHERS = "belongs to another user, who could put other cells into it. Copy it"


class NotebookRefused(WasmKernelError):
    """A file that no session is kept for; the text says why."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(f"No session can be kept for this notebook, as its file {why}.")


class NotebookFile(OpenDescriptor):
    """A notebook's file, which is held, so that it is still known when it has another name.

    Jupyter's servers write into the file that is there (jupyter_server's `atomic_writing` copies
    the old content aside first), and rename it, so it stays the same file. The descriptor `fd` only
    names the file; `path` is the real one at which it was found; `names` is how many it has.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self.fd = path, fd
        self.mark, self.names = FileMark.of(fd), os.fstat(fd).st_nlink

    @classmethod
    def at(cls, path: Path) -> Self:
        """Returns the file at a path, without opening it for anything; close it.

        The folders on the way may be links: a kernel runs in the folder that they lead to. The file
        may not: beside a link that a stranger made lie other files than beside the notebook itself.
        Nor may it be another user's: `NotebookRefused`.
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
        """Returns what the file holds now; nothing if that can't be read, or is too long."""
        with suppress(OSError), open(f"/proc/self/fd/{self.fd}", "rb", opener=_opened) as file:
            data = file.read(_LONGEST + 1)
            return data if len(data) <= _LONGEST else b""
        return b""

    def digest(self) -> str:
        """Names what the file holds now; empty if that tells nothing, or can't be read."""
        data = self.content()
        return hashlib.sha256(data).hexdigest() if len(data) >= _SHORTEST else ""

    def moved(self) -> Path:
        """Returns the path that the file has now, or had when its last name was taken from it."""
        try:
            now = Path(f"/proc/self/fd/{self.fd}").readlink()
            gone = os.fstat(self.fd).st_nlink == 0
        except OSError:
            return self.path
        return now.with_name(now.name.removesuffix(_DELETED)) if gone else now


def _opened(path: str, _: int) -> int:
    return os.open(path, _READ)
