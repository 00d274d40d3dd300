"""The path arguments of a guest's calls, and where they lead: see `path_walk.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator

from wasm_kernel.engine import abi
from wasm_kernel.engine.host_calls import GuestMemory
from wasm_kernel.wasi_files.listing import FolderEntry
from wasm_kernel.wasi_files.open_files import OpenDescriptor, OpenFiles
from wasm_kernel.wasi_files.overlay import OverlayWalk
from wasm_kernel.wasi_files.path_walk import Follow, GuestPath, PathWalk
from wasm_kernel.wasi_files.preopens import Preopen, Preopens, Refused


class GuestPaths:
    """The path arguments of one guest's calls. Only the guest's thread uses it."""

    def __init__(self, preopens: Preopens, memory: GuestMemory, files: OpenFiles) -> None:
        self._preopens = preopens
        self._memory = memory
        self._files = files
        self._root = preopens.root

    def find(self, fd: int, at: int, length: int, follow: Follow = Follow.NEVER) -> GuestPath:
        """Reads the path argument at `at`, and resolves it in its mount or folder."""
        path = self.text(at, length)
        if not path:
            raise Refused(abi.ENOENT)
        if fd == self._root:
            found = self._preopens.mount_of(path)
            if found is not None:
                mount, used = found
                return resolve(mount, path[used:] or ".", follow=follow)
        opened = self._files.get(fd)
        if opened is None:
            raise Refused(abi.EBADF)
        if not opened.is_folder:
            raise Refused(abi.ENOTDIR)
        if opened.gone or opened.fd < 0 or is_hidden_now(opened):
            raise Refused(abi.ENOENT)
        return resolve(opened.preopen, path, start=opened, follow=follow)

    def mounts_in(self, opened: OpenDescriptor) -> Iterator[FolderEntry]:
        """Yields the mounts in an open folder; only the guest's `/` has any."""
        if opened.parts or opened.preopen.guest != "/":
            return
        for mount in self._preopens.mounts:
            name = mount.guest[1:]
            if "/" not in name:
                yield FolderEntry(name, os.fstat(mount.folder.fd).st_ino, abi.FOLDER_TYPE)

    def text(self, at: int, length: int) -> str:
        """Reads a path, or the text of a new link."""
        if length > abi.PATH_MAX:
            raise Refused(abi.ENAMETOOLONG)
        try:
            text = self._memory.read(at, length).decode("utf-8")
        except UnicodeDecodeError:
            raise Refused(abi.EILSEQ) from None
        if "\0" in text:
            raise Refused(abi.EINVAL)
        return text


def resolve(
    preopen: Preopen,
    path: str,
    *,
    start: OpenDescriptor | None = None,
    follow: Follow = Follow.NEVER,
) -> GuestPath:
    """Returns the place that a path leads to, links on the way followed; the caller closes it.

    The path begins at `start`, by default at the preopen, and can't leave the preopen. Raises
    `Refused` if the path does not exist for the guest, `OSError` if a folder on the way can't be
    entered.
    """
    walk = _walk_from(preopen, start)
    try:
        return walk.to(path, follow=follow)
    except BaseException:
        walk.close()
        raise


def _walk_from(preopen: Preopen, start: OpenDescriptor | None) -> PathWalk:
    if preopen.beneath is not None:
        return OverlayWalk(preopen, () if start is None else start.parts)
    if start is not None and start.in_lower:
        raise Refused(abi.ENOENT)  # from a lower folder, a walk could lead to changes in it
    return PathWalk(preopen) if start is None else PathWalk(preopen, start.fd, start.parts)


def is_hidden_now(opened: OpenDescriptor) -> bool:
    """Returns whether an open folder has become one that does not exist for the guest."""
    hidden = opened.preopen.hidden
    if not (opened.parts and hidden.hides_folders):
        return False
    return hidden.hides_folder(opened.fd, len(opened.parts) - 1)
