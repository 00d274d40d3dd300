"""Files that hold the whole of a text that is too long to be shown."""

from __future__ import annotations

import contextlib
import os
from typing import BinaryIO

from wasm_kernel.linux.folders import Folder

_TRIES = 100


class Overflow:
    """The text of one cell, by stream, in files of the workspace. The guest's thread owns it.

    The guest may remove or rename the files while they are written; nothing that it makes in their
    place is followed.

    Args:
        workspace: The folder that the guest sees as `/app`.
        most: Bytes that the file of one stream may hold; 0 where no files are wanted.
    """

    def __init__(self, workspace: Folder, most: int) -> None:
        self._workspace = workspace
        self._most = most
        self._cell = 0
        self._files: dict[str, BinaryIO] = {}
        self._left: dict[str, int] = {}

    @property
    def wanted(self) -> bool:
        """Whether text beyond what is shown is kept."""
        return self._most > 0

    def begin(self, cell: int) -> None:
        """A cell of this number begins."""
        self.end()
        self._cell = cell

    def open(self, name: str) -> str:
        """Begin the file of a stream; its name, or nothing where that failed."""
        for number in range(1, _TRIES):
            again = f"-{number}" if number > 1 else ""
            file = f"output-{self._cell}-{name}{again}.txt"
            try:
                self._files[name] = self._created(file)
            except FileExistsError:
                continue
            except OSError:
                return ""
            self._left[name] = self._most
            return file
        return ""

    def _created(self, file: str) -> BinaryIO:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        return os.fdopen(self._workspace.open_regular(file, flags), "wb")

    def write(self, name: str, data: bytes) -> None:
        """Further text of a stream; what is over the limit or finds no space is lost."""
        file = self._files.get(name)
        if file is None:
            return
        left = self._left[name]
        self._left[name] = left - len(data)
        try:
            file.write(data[: max(0, left)])
        except OSError:
            self._close(name)
        if self._left[name] < 0:
            self._close(name)

    def takes(self, name: str) -> bool:
        """Whether a stream's text is still written down."""
        return name in self._files

    def end(self) -> None:
        """The cell has ended."""
        for name in list(self._files):
            self._close(name)

    def _close(self, name: str) -> None:
        with contextlib.suppress(OSError):  # the disk is full: what it holds is kept
            self._files.pop(name).close()
