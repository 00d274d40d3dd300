"""The changes that a cell made to the files of the workspace."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from msgspec import Struct

from wasm_kernel.linux.folders import Inode, inode_of
from wasm_kernel.linux.walks import Lookup
from wasm_kernel.wasi_files.preopens import Preopen, visible

_NOTHING: frozenset[str] = frozenset()
_UNKNOWN: Inode = (-1, -1)


class Comparison(Struct, frozen=True):
    """The workspace before a cell and after it, by paths relative to it.

    Files and links count, folders don't. A path exists if any file or link has it, not only the
    same file.

    Attributes:
        created: The paths that exist now and did not before.
        modified: The paths that exist and whose file was written to or cut (also through another
            name, also to the same content), or is another file now. A `created` path is among them
            if it has a file that is neither empty nor a link.
        deleted: The paths that existed before and do not now.
    """

    created: frozenset[str] = _NOTHING
    modified: frozenset[str] = _NOTHING
    deleted: frozenset[str] = _NOTHING


class FileChanges:
    """The paths that the guest's calls touch, each with its file before the cell.

    A comparison looks at those paths alone, so it takes no longer for a large workspace. Only the
    guest's thread uses it.
    """

    def __init__(self, workspace: Preopen) -> None:
        self._workspace = workspace
        self._before: dict[str, Inode | None] = {}
        self._written: set[Inode] = set()
        self._new: set[Inode] = set()
        self._linked: set[Inode] = set()
        self._covered: set[str] = set()

    def clear(self) -> None:
        """Begins a new cell; keeps the files with several names, which may still be open."""
        self._before, self._written, self._new, self._covered = {}, set(), set(), set()

    def touch(self, path: str | None, before: Inode | None) -> None:
        """Notes that a path (None: outside the workspace) gets another file instead of `before`."""
        if path is not None:
            self._before.setdefault(path, before)

    def vanished(self, path: str | None) -> None:
        """Notes that a path has no file now; forgets it if it had none before the cell either."""
        if path is not None and self._before.get(path, _UNKNOWN) is None:
            del self._before[path]

    def created(self, path: str | None, key: Inode) -> None:
        """Notes that a path that had no file has a new one."""
        self.touch(path, None)
        self._new.add(key)

    def wrote(self, path: str | None, key: Inode) -> None:
        """Notes that a file's content changed; `path` is None if it is not in the workspace."""
        self._written.add(key)
        self.touch(path, key)

    def linked(self, key: Inode) -> None:
        """Notes that a file has more than one name."""
        self._linked.add(key)

    def covered(self, path: str) -> None:
        """Notes that the guest no longer sees the file that the folder beneath has at a path."""
        self._covered.add(path)

    def paths(self) -> set[str]:
        """Returns the paths at which files were made, changed, deleted or covered."""
        found = self.compare()
        return {*found.created, *found.modified, *found.deleted, *self._covered}

    @property
    def any(self) -> bool:
        """Returns whether a path was touched at all."""
        return bool(self._before)

    def compare(self) -> Comparison:
        """Compares the workspace before the cell and now."""
        created, modified, deleted = set(), set(), set()
        for path, before, now in self._all():
            if now is not None and now.st_nlink > 1:
                self._linked.add(inode_of(now))
            if now is None:
                if before is not None:
                    deleted.add(path)
            elif before is None:
                created.add(path)
                if stat.S_ISREG(now.st_mode) and now.st_size:
                    modified.add(path)
            elif inode_of(now) != before or before in self._written or before in self._new:
                modified.add(path)
        return Comparison(frozenset(created), frozenset(modified), frozenset(deleted))

    def _all(self) -> Iterator[tuple[str, Inode | None, os.stat_result | None]]:
        """Yields the touched paths and the further names of written files, with the file's key
        before the cell and its status now, which is None for a folder or no file.
        """
        before = self._before
        if not (before or self._written):
            return
        with Lookup(self._workspace.folder.fd) as lookup:
            for path in sorted(before, key=lambda path: path.split("/")):
                yield path, before[path], _file_at(lookup, path)
            written = self._written & self._linked
            for path, key in self._names_of(written) if written else []:
                yield path, key, _file_at(lookup, path)

    def _names_of(self, keys: set[Inode]) -> list[tuple[str, Inode]]:
        found = []
        with contextlib.suppress(OSError):
            for entry in visible(self._workspace):
                path = "/".join([*entry.path, entry.name])
                if entry.is_folder or path in self._before:
                    continue
                if (status := entry.status) is not None and inode_of(status) in keys:
                    found.append((path, inode_of(status)))
        return found


def _file_at(lookup: Lookup, path: str) -> os.stat_result | None:
    try:
        folder, name = lookup.parent(path)
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return None
    return None if stat.S_ISDIR(found.st_mode) else found
