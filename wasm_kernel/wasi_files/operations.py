"""`FileOperations`: what one guest can do with its files, as plain functions of plain values.

A guest reaches the disk through them alone. They walk every path by descriptor (`path_walk.py`),
refuse growth beyond the quota (`quota.py`), keep earlier versions (`file_history.py`), and note
changes in the workspace (`changes.py`). `WasiFiles` calls them for the guest's WASI calls, and
`FileAccess` for whole files by absolute paths.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from wasm_kernel.engine import abi
from wasm_kernel.wasi_files.content import ContentOperations
from wasm_kernel.wasi_files.context import PathAt, resolve, walk_from
from wasm_kernel.wasi_files.edits import EditOperations
from wasm_kernel.wasi_files.listing import FolderEntry
from wasm_kernel.wasi_files.opening import OpeningOperations, ReopeningOperations
from wasm_kernel.wasi_files.path_walk import Follow
from wasm_kernel.wasi_files.preopens import FIRST_DESCRIPTOR, GuestOSError, Parts, Preopen


class FileOperations(ContentOperations, EditOperations, OpeningOperations, ReopeningOperations):
    """The file operations of one guest. Only the guest's thread uses them; close them.

    They raise `OSError` with Linux's number if they fail, and `ValueError` or `OverflowError` for a
    number or a text that system calls don't take.
    """

    def folders(self) -> dict[str, int]:
        """Returns the descriptors of the fixed folders by guest path; one folder may have two."""
        fixed = enumerate(self.preopens.fixed, FIRST_DESCRIPTOR)
        found = {preopen.guest: number for number, preopen in fixed}
        for guest, preopen in self.preopens.named.items():
            if preopen.guest in found:
                found[guest] = found[preopen.guest]
        return found

    def close(self) -> None:
        """Closes the guest's open files. Safe to call twice."""
        self.open_files.close()

    def entries(self, fd: int) -> Iterator[FolderEntry]:
        """Returns an iterator over the entries of an open folder, unordered."""
        opened = self.open_files.get(fd)
        if not opened.is_folder:
            raise GuestOSError(errno.EBADF)
        if opened.is_hidden_now:
            raise GuestOSError(errno.ENOENT)
        return self.until_stopped(self._entries(opened.preopen, opened.parts, opened.fd))

    def _entries(self, preopen: Preopen, parts: Parts, fd: int) -> Iterator[FolderEntry]:
        with walk_from(preopen, fd, parts) as walk:
            yield from walk.entries(self.check_time)
        if not parts and preopen.guest == "/":
            for mount in self.preopens.mounts:
                name = mount.guest[1:]
                if "/" not in name:
                    yield FolderEntry(name, os.fstat(mount.folder.fd).st_ino, abi.FOLDER_TYPE)

    def status(self, at: PathAt, follow: Follow = Follow.ALWAYS) -> os.stat_result:
        """Returns the status of a named file."""
        with self.find(at, follow, looks=True) as place:
            return place.required_status()

    def status_of_open(self, fd: int) -> os.stat_result:
        """Returns the status of an open file or folder."""
        opened = self.open_files.get(fd)
        if opened.is_merged and not opened.gone:
            with contextlib.suppress(OSError), resolve(opened.preopen, ".", start=opened) as place:
                return place.required_status()
        return os.fstat(opened.fd)

    def read_link(self, at: PathAt) -> str:
        """Returns the text of a symbolic link."""
        with self.find(at, Follow.BEFORE_SLASH, looks=True) as place:
            place.required_status()
            return os.readlink(place.name, dir_fd=place.folder)
