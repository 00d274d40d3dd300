"""The calls that make, move and remove names."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator

from wasm_kernel.engine import abi
from wasm_kernel.engine.shadow import Call, Shadow
from wasm_kernel.linux import walks
from wasm_kernel.linux.trees import TreeSummary, summarize
from wasm_kernel.wasi_files.changes import Changes
from wasm_kernel.wasi_files.file_history import Change, FileHistory
from wasm_kernel.wasi_files.open_files import Table
from wasm_kernel.wasi_files.paths import Paths, Place, check_length
from wasm_kernel.wasi_files.preopens import is_hidden_folder
from wasm_kernel.wasi_files.quota import Quota, key_of
from wasm_kernel.wasi_files.refused import Refused

_Status = os.stat_result | None


class Edits:
    """The calls of one guest. Only the guest's thread uses it."""

    def __init__(
        self,
        paths: Paths,
        table: Table,
        changes: Changes,
        *,
        quota: Quota,
        history: FileHistory,
        must_end: Callable[[], bool],
    ) -> None:
        self._paths = paths
        self._table = table
        self._changes = changes
        self._quota = quota
        self._history = history
        self._must_end = must_end

    def shadows(self) -> dict[str, Shadow]:
        """The calls, by WASI's name."""
        return {
            "path_create_directory": self._create_folder,
            "path_remove_directory": self._remove_folder,
            "path_unlink_file": self._unlink,
            "path_link": self._link,
            "path_symlink": self._symlink,
            "path_rename": self._rename,
        }

    def _create_folder(self, call: Call) -> int:
        with self._place(call, 0, 1) as place:
            self._admit(place)
            with self._making(place):
                os.mkdir(place.name, dir_fd=place.folder)
            self._came(place, 1)
        return abi.SUCCESS

    def _remove_folder(self, call: Call) -> int:
        with self._place(call, 0, 1) as place:
            before = place.status()
            self._history.before_change(place.path, place.folder, place.name, before, Change.END)
            os.rmdir(place.name, dir_fd=place.folder)
            self._came(place, -1)
            self._table.unnamed(place, before)
            self._vanished(place.path)
        return abi.SUCCESS

    def _unlink(self, call: Call) -> int:
        with self._place(call, 0, 1) as place:
            before = place.status()
            loose = self._keep(place, before)
            try:
                os.unlink(place.name, dir_fd=place.folder)
            except OSError:
                self._drop(loose)
                raise
            self._gone(place, before, loose)
            self._vanished(place.path)
        return abi.SUCCESS

    def _link(self, call: Call) -> int:
        if call.args[1] & abi.LOOKUP_FOLLOW:
            return abi.EINVAL
        with self._place(call, 0, 2) as old, self._place(call, 4, 5) as new:
            status = old.status()
            if status is None:
                return abi.ENOENT
            size = 0 if old.preopen.counted else _length(status)
            if new.is_folder:
                return abi.ENOENT
            self._admit(new, size)
            folders = {"src_dir_fd": old.folder, "dst_dir_fd": new.folder}
            with self._making(new):
                os.link(old.name, new.name, **folders, follow_symlinks=False)
            self._came(new, 1, size)
            self._changes.linked(key_of(status))
            self._changes.touch(new.path, None)
        return abi.SUCCESS

    def _symlink(self, call: Call) -> int:
        target = self._paths.text(call.args[0], call.args[1])
        if target.startswith("/"):
            return abi.EPERM
        with self._place(call, 2, 3) as place:
            hidden = place.preopen.hidden
            if any(hidden.hides_name(0, part) for part in target.split("/") if part):
                return abi.ENOENT
            if place.status() is None and place.is_folder:
                return abi.ENOENT
            self._admit(place)
            with self._making(place):
                os.symlink(target, place.name, dir_fd=place.folder)
            self._came(place, 1)
            status = place.status()
            if status is not None:
                self._changes.made(place.path, key_of(status))
        return abi.SUCCESS

    def _rename(self, call: Call) -> int:
        with self._place(call, 0, 1) as old, self._place(call, 3, 4) as new:
            moved, replaced = old.status(), new.status()
            if moved is None:
                return abi.ENOENT
            if new.is_folder and not stat.S_ISDIR(moved.st_mode):
                return abi.ENOTDIR
            if is_hidden_folder(new.preopen.hidden, old.folder, old.name, len(new.parts) - 1):
                return abi.EACCES  # there, it would be a session's folder
            inside = self._outline(old, new, moved)
            if not old.preopen.counted:
                self._admit(new, inside.size, inside.count)
            if replaced is not None and key_of(replaced) == key_of(moved):
                return abi.SUCCESS  # both are names of one file: nothing happens
            loose = self._keep_moved(old, new, moved, replaced)
            try:
                os.rename(old.name, new.name, src_dir_fd=old.folder, dst_dir_fd=new.folder)
            except OSError:
                self._drop(loose)
                raise
            if replaced is not None:
                self._gone(new, replaced, loose)
            if old.preopen.counted is not new.preopen.counted:
                self._came(old, -inside.count, -inside.size)
                self._came(new, inside.count, inside.size)
            self._tell(old, new, moved, inside)
            self._table.moved(old, new)
            for name in ("", *inside.names, *inside.folders):
                self._vanished(None if old.path is None else f"{old.path}/{name}".rstrip("/"))
        return abi.SUCCESS

    def _place(self, call: Call, fd_at: int, path_at: int) -> Place:
        """Where a name is to be made, moved or removed: in a folder that the guest may change."""
        place = self._paths.place(call, fd_at, path_at)
        if place.preopen.writable:
            return place
        place.close()
        raise Refused(abi.EPERM)

    def _outline(self, old: Place, new: Place, moved: os.stat_result) -> TreeSummary:
        """What is renamed; a folder's content may not end up too deep."""
        if not stat.S_ISDIR(moved.st_mode):
            return TreeSummary(size=_length(moved))
        hidden, depth = old.preopen.hidden, len(old.parts)

        def is_not_movable(folder: int, name: str, way: int) -> bool:
            self._check_time()
            return is_hidden_folder(hidden, folder, name, depth + way)

        try:
            with walks.opened_folder(old.name, old.folder) as folder:
                inside = summarize(folder, is_not_movable)
        except OSError:
            raise Refused(abi.EACCES) from None
        if inside.longest:
            check_length(new.parts, inside.longest + 1)
        return inside

    def _tell(self, old: Place, new: Place, moved: os.stat_result, inside: TreeSummary) -> None:
        """Note each file that has another path now."""
        if not stat.S_ISDIR(moved.st_mode):
            self._changes.touch(old.path, key_of(moved))
            self._changes.touch(new.path, None)
            return
        for name, key in inside.names.items():
            if old.path is not None:
                self._changes.touch(f"{old.path}/{name}", key)
            if new.path is not None:
                self._changes.touch(f"{new.path}/{name}", None)

    def _check_time(self) -> None:
        """Sees that the cell still has time.

        Raises:
            Refused: an interrupt is asked for, or the cell's time is over.
        """
        if self._must_end():
            raise Refused(abi.EINTR)

    def _keep(self, place: Place, before: _Status) -> str:
        """What stands at a place is about to lose its name; what it is called then, if open."""
        self._history.before_change(place.path, place.folder, place.name, before, Change.END)
        if before is None or not stat.S_ISREG(before.st_mode) or not self._history.keeps:
            return ""
        opened = place.preopen.writable and self._table.of(place, before)
        return self._history.keep_unlinked(place.folder, place.name, before) if opened else ""

    def _keep_moved(self, old: Place, new: Place, moved: os.stat_result, replaced: _Status) -> str:
        """As `_keep`, of what a rename is about to replace, and of all that it moves."""
        if not self._history.keeps:
            return ""
        if stat.S_ISDIR(moved.st_mode):
            with walks.opened_folder(old.name, old.folder) as folder:
                for entry in walks.entries(folder):
                    self._check_time()
                    below = "/".join([*entry.path, entry.name])
                    here = None if old.path is None else f"{old.path}/{below}"
                    self._before_move(here, entry.folder, entry.name)
                    if new.path is not None:
                        self._history.before_creation(f"{new.path}/{below}")
        self._before_move(old.path, old.folder, old.name)
        return self._keep(new, replaced)

    def _before_move(self, path: str | None, folder: int, name: str) -> None:
        """Whatever stands at a path is about to get another."""
        found = _status_at(folder, name)
        self._history.before_change(path, folder, name, found, Change.MOVE)

    def _drop(self, loose: str) -> None:
        """A name was not lost after all."""
        if loose:
            self._history.drop_unlinked(loose)

    def _gone(self, place: Place, before: _Status, loose: str = "") -> None:
        """A name was there and is not any more, or another file has it."""
        if before is None:
            return
        if stat.S_ISDIR(before.st_mode):
            self._came(place, -1)
        else:
            self._changes.touch(place.path, key_of(before))
            if place.preopen.counted:
                self._quota.unnamed(before)
        self._table.unnamed(place, before, loose)

    @contextlib.contextmanager
    def _making(self, place: Place) -> Iterator[None]:
        """Something is made at a place; if it can't be, there is nothing to undo."""
        there = _status_at(place.folder, place.name)
        new = there is None and self._history.before_creation(place.path)
        try:
            yield
        except OSError:
            if new:
                self._history.after_removal(place.path)
            raise

    def _vanished(self, path: str | None) -> None:
        """A path holds nothing any more; what came and went within a cell need not be known."""
        self._changes.vanished(path)
        self._history.after_removal(path)

    def _admit(self, place: Place, size: int = 0, files: int = 1) -> None:
        if place.preopen.counted:
            self._quota.admit(files, size)

    def _came(self, place: Place, files: int, size: int = 0) -> None:
        if place.preopen.counted:
            self._quota.came(files, size)


def _status_at(folder: int, name: str) -> _Status:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return None


def _length(status: os.stat_result) -> int:
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
