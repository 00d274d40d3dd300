"""`FileContext`: the folders and the open files of one guest, and where its paths lead."""

from __future__ import annotations

import errno
from collections.abc import Callable

from wasm_kernel.wasi_files.bookkeeping import Bookkeeping
from wasm_kernel.wasi_files.changes import FileChanges
from wasm_kernel.wasi_files.file_history import FileHistory
from wasm_kernel.wasi_files.open_files import OpenDescriptor, OpenFiles
from wasm_kernel.wasi_files.overlay import OverlayWalk
from wasm_kernel.wasi_files.path_walk import Follow, GuestPath, Outside, PathWalk
from wasm_kernel.wasi_files.preopens import GuestOSError, Parts, Preopen, Preopens
from wasm_kernel.wasi_files.quota import Quota

PathAt = tuple[int, str]
"""A path as openat(2) takes it: the descriptor of an open folder, and a path that begins there."""


class FileContext(Bookkeeping):
    """The folders and open files of one guest. Only the guest's thread uses it."""

    def __init__(
        self,
        preopens: Preopens,
        changes: FileChanges,
        quota: Quota,
        history: FileHistory,
        *,
        open_files: int,
        should_stop: Callable[[], bool],
    ) -> None:
        super().__init__(changes, quota, history, should_stop)
        self.preopens = preopens
        self.open_files = OpenFiles(preopens, open_files, quota, changes)
        self._root = preopens.root

    def find(self, at: PathAt, follow: Follow = Follow.NEVER, *, looks: bool = False) -> GuestPath:
        """Resolves a path in its mount or folder; the caller closes the place.

        Above a preopened folder, the path leads on below the guest's `/`: `../data` in `/app` is
        `/data`. With `looks`, a path outside of the guest's folders is missing, as programs expect.
        """
        while True:
            try:
                return self._walk(*at, follow)
            except Outside as left:
                if self._root is None or left.path is None:
                    if looks:
                        raise GuestOSError(errno.ENOENT) from None
                    raise
                at = self._root, left.path  # with fewer `..` each time

    def _walk(self, fd: int, path: str, follow: Follow) -> GuestPath:
        if not path:
            raise GuestOSError(errno.ENOENT)
        if fd == self._root and (found := self.preopens.below_root(path)) is not None:
            preopen, used = found
            return resolve(preopen, path[used:] or ".", follow=follow)
        opened = self.open_files.get(fd)
        if not opened.is_folder:
            raise GuestOSError(errno.ENOTDIR)
        if opened.gone or opened.fd < 0 or opened.is_hidden_now:
            raise GuestOSError(errno.ENOENT)
        return resolve(opened.preopen, path, start=opened, follow=follow)


def resolve(
    preopen: Preopen,
    path: str,
    *,
    start: OpenDescriptor | None = None,
    follow: Follow = Follow.NEVER,
) -> GuestPath:
    """Returns the place that a path leads to, links on the way followed; the caller closes it.

    The path begins at `start`, by default at the preopen, and can't leave the preopen. Raises
    `GuestOSError` if the path does not exist for the guest, `OSError` if a folder on the way can't
    be entered.
    """
    if start is None:
        walk = walk_from(preopen)
    elif start.in_lower and preopen.beneath is None:
        raise GuestOSError(errno.ENOENT)  # from a lower folder, a walk could lead to changes in it
    else:
        walk = walk_from(preopen, start.fd, start.parts)
    try:
        return walk.to(path, follow=follow)
    except BaseException:
        walk.close()
        raise


def walk_from(preopen: Preopen, fd: int | None = None, parts: Parts = ()) -> PathWalk:
    """Returns a walk from the open folder `fd`, to which `parts` lead; the caller closes it."""
    if preopen.beneath is not None:
        return OverlayWalk(preopen, parts)
    return PathWalk(preopen, fd, parts)
