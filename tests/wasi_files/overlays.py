"""A guest whose workspace lies over a folder of the host, and its calls by path."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.engine.tiny import RIGHTS, ROOT, Guest
from wasm_kernel.engine import abi
from wasm_kernel.folders.notebook import BENEATH, NotebookHidden
from wasm_kernel.linux.folders import Folder
from wasm_kernel.wasi_files.file_history import NO_FILE_HISTORY, FileHistory
from wasm_kernel.wasi_files.preopens import Preopen

READ, WRITE = abi.RIGHT_READ | abi.RIGHT_READDIR, abi.RIGHT_WRITE
NEW = abi.O_CREAT | abi.O_TRUNC
_AT = 70_000


class Overlaid:
    """The guest, with `folder/lower` beneath its workspace `folder/app`; close it."""

    def __init__(
        self,
        folder: Path,
        lower: Path | None = None,
        *,
        history: FileHistory = NO_FILE_HISTORY,
        workspace_bytes: int = 64 * 1024 * 1024,
        workspace_files: int = 100_000,
    ) -> None:
        self.lower = lower or folder / "lower"
        self.lower.mkdir(exist_ok=True)
        opened = Folder.open(self.lower)
        hidden = NotebookHidden(opened, folder / "runtime" / "kernel.json")
        self.guest = Guest(
            folder,
            beneath=Preopen(opened, BENEATH, hidden=hidden),
            history=history,
            workspace_bytes=workspace_bytes,
            workspace_files=workspace_files,
        )
        self._opened = opened
        self.app = self.guest.app

    def close(self) -> None:
        self.guest.close()
        self._opened.close()

    def call(self, name: str, path: str) -> int:
        """A call whose arguments are a descriptor and a path of the overlay."""
        return self.guest.one_path(name, f"notebook/{path}", fd=ROOT)

    def open(self, path: str, how: int = 0, rights: int = READ, follow: int = 1) -> tuple[int, int]:
        """The error number and the descriptor."""
        return self.guest.open(f"notebook/{path}", how, fd=ROOT, follow=follow, rights=rights)

    def read_open(self, fd: int) -> bytes:
        self.guest.instance.memory.write(_AT, struct.pack("<II", _AT + 64, 8192))
        assert self.guest.call("fd_read", fd, _AT, 1, _AT + 32) == abi.SUCCESS
        used = self.guest.instance.memory.read_word(_AT + 32)
        return self.guest.instance.memory.read(_AT + 64, used)

    def read(self, path: str) -> bytes | int:
        """A file's content, or the error number."""
        errno, fd = self.open(path)
        if errno:
            return errno
        try:
            return self.read_open(fd)
        finally:
            self.guest.call("fd_close", fd)

    def write(self, path: str, data: bytes, how: int = NEW) -> int:
        """Opens a file to write to and writes; the error number."""
        errno, fd = self.open(path, how, READ | WRITE)
        if errno:
            return errno
        try:
            return self.guest.write(fd, data) if data else abi.SUCCESS
        finally:
            self.guest.call("fd_close", fd)

    def names(self, path: str = ".") -> list[str] | int:
        """A folder's names, sorted, or the error number."""
        errno, fd = self.open(path, abi.O_DIRECTORY, RIGHTS & ~0x42)
        if errno:
            return errno
        try:
            return sorted(self.guest.names(fd))
        finally:
            self.guest.call("fd_close", fd)

    def stat(self, path: str, follow: int = 1) -> int:
        """The error number of a status call."""
        return self.guest.stat(f"notebook/{path}", fd=ROOT, follow=follow)

    def rename(self, old: str, new: str) -> int:
        old, new = f"notebook/{old}", f"notebook/{new}"
        return self.guest.rename(old, new, fd=ROOT, to=ROOT)

    def link(self, old: str, new: str) -> int:
        return self.guest.link(f"notebook/{old}", f"notebook/{new}", fd=ROOT, to=ROOT)

    def symlink(self, target: str, new: str) -> int:
        return self.guest.symlink(target, f"notebook/{new}", fd=ROOT)

    def tree(self) -> dict[str, bytes | None]:
        """Everything in the overlay: contents of files, None for folders."""
        found: dict[str, bytes | None] = {}
        waiting = [""]
        while waiting:
            above = waiting.pop()
            names = self.names(above or ".")
            assert isinstance(names, list), (above, names)
            for name in names:
                path = f"{above}/{name}".lstrip("/")
                if self.open(path, abi.O_DIRECTORY, RIGHTS & ~0x42)[0] == abi.SUCCESS:
                    self.guest.call("fd_close", self.guest.instance.memory.read_word(64))
                    found[path] = None
                    waiting.append(path)
                    continue
                content = self.read(path)
                assert isinstance(content, bytes), (path, content)
                found[path] = content
        return found
