"""`MountedFiles`: the host's folders that cells see beside `/app`, for the file tools."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from itertools import islice

from wasm_kernel.folders.hiding import PlacesHidden
from wasm_kernel.linux.folders import open_named
from wasm_kernel.policy import Mount
from wasm_kernel.sessions.files import Pattern
from wasm_kernel.wasi_files.access import files_in
from wasm_kernel.wasi_files.preopens import Preopen, visible
from wasm_kernel.wasi_files.quota import Quota

_LOOKED_AT = 100_000  # names in one folder
_UNREADABLE = {stat.S_IFDIR: errno.EISDIR, stat.S_IFREG: errno.EFBIG}


class MountedFiles:
    """The mounts of a policy. Tools see only the files in them that a guest would see.

    Paths are absolute, in the guest's form. Any thread may use it: each call opens a folder anew.
    """

    def __init__(self, mounts: Sequence[Mount]) -> None:
        self._mounts = sorted(mounts, key=lambda each: -len(each.guest))

    def __str__(self) -> str:
        words = {False: "read-only", True: "writable"}
        rows = sorted((each.guest, words[each.writable]) for each in self._mounts)
        return ", ".join(f"{guest} ({how})" for guest, how in rows)

    def holds(self, path: str) -> bool:
        """Returns whether a path leads into one of the folders."""
        return self._of(path) is not None

    def read(self, path: str, most: int) -> bytes:
        """Returns the content of a file; `OSError` if it can't be read or exceeds `most` bytes."""
        with self._open(path) as preopen, files_in([preopen], Quota((), 0, 0)) as files:
            try:
                status = files.operations.status(files.at(path))
                kind = stat.S_IFMT(status.st_mode)
                if kind == stat.S_IFREG and status.st_size <= most:
                    return files.read(path, 0, most)
            except OSError as problem:
                raise _error(problem.errno or errno.EIO, path) from None
        raise _error(_UNREADABLE.get(kind, errno.EINVAL), path)

    def list(self, path: str) -> list[str]:
        """Returns the sorted paths of the files in a folder, or of those that match a glob."""
        with self._open(path) as preopen:
            rest = posixpath.relpath(posixpath.normpath(path), preopen.guest)
            globs = ["**"] if rest == "." else [rest, f"{rest}/**"]
            patterns = [Pattern(each) for each in globs]
            return sorted(
                f"{preopen.guest}/{'/'.join(names)}"
                for names in _files_in(preopen)
                if any(each.matches(names) for each in patterns)
            )

    def _of(self, path: str) -> Mount | None:
        plain = posixpath.normpath(path)
        inside = (each for each in self._mounts if f"{plain}/".startswith(f"{each.guest}/"))
        return next(inside, None)

    @contextlib.contextmanager
    def _open(self, path: str) -> Iterator[Preopen]:
        mount = self._of(path)
        if mount is None:
            raise _error(errno.ENOENT, path)
        with open_named(mount.host) as folder:
            yield Preopen(folder, mount.guest, hidden=PlacesHidden(folder))


def _files_in(preopen: Preopen) -> Iterator[tuple[str, ...]]:
    for entry in islice(visible(preopen), _LOOKED_AT):
        if entry.is_folder or entry.is_deep:
            continue
        with contextlib.suppress(OSError):  # the file is gone
            found = os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                yield (*entry.path, entry.name)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), posixpath.basename(path))
