"""Files that were open when memory was saved, opened again for an instance that gets that memory.

The saved memory speaks of descriptors by number. A new instance has none of them, so they are
opened anew: the same file, under the same number, at the same position. If a file is gone, or
another has taken its name (deleted and made again, replaced by an editor that saves aside), its
number stays taken, and using it fails.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from wasm_kernel.engine import abi
from wasm_kernel.linux.files import open_file_identity
from wasm_kernel.record import record
from wasm_kernel.wasi_files.calls import WasiFiles, look_before_opening, open_file, open_flags
from wasm_kernel.wasi_files.file_history import is_unlinked_name
from wasm_kernel.wasi_files.open_files import Opened
from wasm_kernel.wasi_files.paths import resolve
from wasm_kernel.wasi_files.refused import Refused

_ONCE = abi.O_CREAT | abi.O_EXCL | abi.O_TRUNC  # what opening did the first time


@record
class OpenFile:
    """An open file, in a form that can be written down.

    `guest` is the guest path of the preopened folder it lies in, `path` its path below that. A file
    that has lost its last name belongs to the workspace, by its unlinked name (`FileHistory`). The
    rest are the arguments of `path_open`. `identity` names the file itself, and is empty if that
    does not matter. A `path` of None stands for a file that was lost before.
    """

    fd: int
    guest: str
    path: str | None
    offset: int
    flags: int
    rights: int
    inheriting: int
    fdflags: int
    identity: str = ""

    def as_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


class Descriptors:
    """The open files of one instance. Only the guest's thread uses it, between turns."""

    def __init__(self, files: WasiFiles) -> None:
        self._files = files

    def save(self) -> tuple[OpenFile, ...]:
        """What is open now."""
        table = self._files.table
        return tuple(self._saved(fd, opened) for fd, opened in sorted(table.opened().items()))

    def _saved(self, fd: int, opened: Opened) -> OpenFile:
        guest, path, name = opened.preopen.guest, "/".join(opened.parts), opened.identify()
        if opened.fd < 0:
            return OpenFile(fd, guest, None, 0, 0, 0, 0, 0)
        if opened.loose:
            workspace = next(preopen for preopen in self._files.preopens.all if preopen.tracked)
            guest, path, name = workspace.guest, opened.loose, open_file_identity(opened.fd)
        offset = 0 if opened.is_folder else os.lseek(opened.fd, 0, os.SEEK_CUR)
        how = (opened.flags, opened.rights, opened.inheriting, opened.fdflags)
        return OpenFile(fd, guest, path, offset, *how, name)

    def restore(self, table: Sequence[OpenFile]) -> list[OpenFile]:
        """Open the files of a table again.

        Returns:
            Those that could not be opened; their descriptors fail when they are used.
        """
        lost = []
        for wanted in table:
            if not self._files.has_room_for(wanted.fd):
                lost.append(wanted)
                continue
            opened = self._open(wanted)
            if opened is None:
                if wanted.path is not None:
                    lost.append(wanted)
                opened = Opened(self._files.preopens.fixed[0], (), -1, gone=True)
            self._files.table.put(wanted.fd, opened)
        return lost

    def _open(self, wanted: OpenFile) -> Opened | None:
        try:
            opened = self._found(wanted)
        except (OSError, ValueError, Refused):
            return None
        if opened is None:
            return None
        try:
            self._check(opened, wanted)
        except (OSError, ValueError, OverflowError):
            os.close(opened.fd)
            return None
        self._adopt(opened)
        return opened

    def _check(self, opened: Opened, wanted: OpenFile) -> None:
        """Sees that it is the same file, and goes to its position.

        Raises:
            OSError, OverflowError: it is another file, or has no such position.
        """
        name = open_file_identity(opened.fd)
        if wanted.identity and not self._files.history.same_file(wanted.identity, name):
            raise OSError(errno.ESTALE, "another file took its name")
        opened.identity = name if opened.preopen.writable else ""
        opened.is_folder = not stat.S_ISREG(os.fstat(opened.fd).st_mode)
        if wanted.offset and not opened.is_folder:
            os.lseek(opened.fd, wanted.offset, os.SEEK_SET)

    def _adopt(self, opened: Opened) -> None:
        self._files.know(opened, os.fstat(opened.fd))
        opened.gone = bool(opened.loose)
        if opened.held is not None:
            opened.held.nameless = opened.gone

    def _found(self, wanted: OpenFile) -> Opened | None:
        """The file under the name that it had, whoever has that name now."""
        preopen = self._files.preopens.at(wanted.guest)
        if preopen is None or wanted.path is None:
            return None
        # what was a writable mount may be one to read from now, and an archive says what it likes
        rights = wanted.rights if preopen.writable else wanted.rights & ~abi.RIGHT_WRITE
        flags = wanted.flags & ~_ONCE
        how = (flags, rights, wanted.inheriting, wanted.fdflags)
        if preopen.tracked and is_unlinked_name(wanted.path):
            fd = self._files.history.open_unlinked(wanted.path, open_flags(rights, wanted.fdflags))
            return Opened(preopen, (), fd, *how, loose=wanted.path)
        with resolve(preopen, wanted.path or ".") as place:
            if "/".join(place.parts) != wanted.path:
                return None  # a link is on the way, where none was
            look_before_opening(place, flags, rights)
            fd = open_file(place, flags, rights, wanted.fdflags)
            return Opened(preopen, place.parts, fd, *how)
