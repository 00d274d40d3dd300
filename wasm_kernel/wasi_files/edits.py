"""The calls that make, move and remove names, and set the times of named files."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping

from wasm_kernel.engine import abi
from wasm_kernel.engine.host_calls import Handler
from wasm_kernel.linux import walks
from wasm_kernel.linux.folders import READ, Folder, closing_fd
from wasm_kernel.linux.trees import TreeSummary, summarize
from wasm_kernel.wasi_files.content import times_of
from wasm_kernel.wasi_files.copy_up import clear_covers, cover, lift, make_way
from wasm_kernel.wasi_files.file_calls import FileCalls
from wasm_kernel.wasi_files.file_history import Change
from wasm_kernel.wasi_files.overlay import OverlayPath
from wasm_kernel.wasi_files.path_walk import Follow, GuestPath, check_length, following
from wasm_kernel.wasi_files.preopens import Refused, is_hidden_folder
from wasm_kernel.wasi_files.quota import key_of

_Status = os.stat_result | None


class EditCalls(FileCalls, frozen=True):
    """The calls that make, move and remove names."""

    def handlers(self) -> Mapping[str, Handler]:
        """Returns the handlers, by WASI's name."""
        return {
            "path_filestat_set_times": self._set_times,
            "path_create_directory": self._create_folder,
            "path_remove_directory": self._remove_folder,
            "path_unlink_file": self._unlink,
            "path_link": self._link,
            "path_symlink": self._symlink,
            "path_rename": self._rename,
        }

    def _set_times(self, fd: int, flags: int, path: int, length: int, *times: int) -> int:
        with self._find(fd, path, length, follow=following(flags)) as place:
            lift(self, place)
            status = place.required_status()
            new = times_of(status, *times)
            if stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFDIR):
                with closing_fd(os.open(place.name, READ, dir_fd=place.folder)) as opened:
                    os.utime(opened, ns=new)
            else:  # refused in a confined process
                os.utime(place.name, ns=new, dir_fd=place.folder, follow_symlinks=False)
        return abi.SUCCESS

    def _create_folder(self, fd: int, path: int, length: int) -> int:
        with self._find(fd, path, length) as place:
            make_way(self, place)
            self._reserve(place)
            with self._making(place):
                os.mkdir(place.name, dir_fd=place.folder)
            self._added(place, 1)
        return abi.SUCCESS

    def _remove_folder(self, fd: int, path: int, length: int) -> int:
        with self._find(fd, path, length) as place:
            before = place.required_status()
            if self._only_covered(place, before, folder=True):
                return abi.SUCCESS
            self.history.before_change(place.path, place.folder, place.name, before, Change.END)
            os.rmdir(place.name, dir_fd=place.folder)
            self._added(place, -1)
            self.files.lost_name(place, before)
            self._vanished(place.path)
        return abi.SUCCESS

    def _unlink(self, fd: int, path: int, length: int) -> int:
        with self._find(fd, path, length) as place:
            before = place.required_status()
            if self._only_covered(place, before, folder=False):
                return abi.SUCCESS
            unlinked = self._keep(place, before)
            try:
                os.unlink(place.name, dir_fd=place.folder)
            except OSError:
                self._drop(unlinked)
                raise
            self._gone(place, before, unlinked)
            self._vanished(place.path)
        return abi.SUCCESS

    def _link(self, fd: int, flags: int, path: int, length: int, *target: int) -> int:
        if flags & abi.LOOKUP_FOLLOW:
            return abi.EINVAL
        with self._find(fd, path, length) as old, self._find(*target) as new:
            if new.is_folder:
                return abi.ENOENT
            old.required_status()
            lift(self, old)
            make_way(self, new)
            status = old.required_status()
            size = 0 if old.preopen.counted else _length(status)
            self._reserve(new, size)
            folders = {"src_dir_fd": old.folder, "dst_dir_fd": new.folder}
            with self._making(new):
                os.link(old.name, new.name, **folders, follow_symlinks=False)
            self._added(new, 1, size)
            self.changes.linked(key_of(status))
            self.changes.touch(new.path, None)
        return abi.SUCCESS

    def _symlink(self, text: int, size: int, fd: int, path: int, length: int) -> int:
        target = self.paths.text(text, size)
        if target.startswith("/"):
            return abi.EPERM
        with self._find(fd, path, length) as place:
            hidden = place.preopen.hidden
            if any(hidden.hides_name(0, part) for part in target.split("/") if part):
                return abi.ENOENT
            if place.status() is None and place.is_folder:
                return abi.ENOENT
            make_way(self, place)
            self._reserve(place)
            with self._making(place):
                os.symlink(target, place.name, dir_fd=place.folder)
            self._added(place, 1)
            status = place.status()
            if status is not None:
                self.changes.created(place.path, key_of(status))
        return abi.SUCCESS

    def _rename(self, fd: int, path: int, length: int, *target: int) -> int:
        with self._find(fd, path, length) as old, self._find(*target) as new:
            moved, replaced = old.status(), new.status()
            if moved is None:
                return abi.ENOENT
            if new.is_folder and not stat.S_ISDIR(moved.st_mode):
                return abi.ENOTDIR
            if replaced is not None and key_of(replaced) == key_of(moved):
                return abi.SUCCESS  # both are names of one file: nothing happens
            if _is_merged(old, moved):
                return abi.EXDEV  # as in other overlays; programs copy it then
            if is_hidden_folder(new.preopen.hidden, old.folder, old.name, len(new.parts) - 1):
                return abi.EACCES  # there, it would be a session's folder
            inside = self._outline(old, new, moved)
            if not old.preopen.counted:
                self._reserve(new, inside.size, inside.count)
            replaced = self._lift_both(old, new, moved, replaced)
            unlinked = self._keep_moved(old, new, moved, replaced)
            try:
                os.rename(old.name, new.name, src_dir_fd=old.folder, dst_dir_fd=new.folder)
            except OSError:
                self._drop(unlinked)
                raise
            if replaced is not None:
                self._gone(new, replaced, unlinked)
            if old.preopen.counted is not new.preopen.counted:
                self._added(old, -inside.count, -inside.size)
                self._added(new, inside.count, inside.size)
            self._tell(old, new, moved, inside)
            self.files.moved(old, new)
            for name in ("", *inside.names, *inside.folders):
                self._vanished(None if old.path is None else f"{old.path}/{name}".rstrip("/"))
        return abi.SUCCESS

    def _only_covered(self, place: GuestPath, found: os.stat_result, *, folder: bool) -> bool:
        """Covers the lower folder's file of a name to remove; returns whether only that existed."""
        if not isinstance(place, OverlayPath):
            return False
        if stat.S_ISDIR(found.st_mode) is not folder:
            raise Refused(abi.ENOTDIR if folder else abi.EISDIR)
        if place.name == ".":
            raise Refused(abi.EINVAL)
        place.check_cover()
        only_lower = place.in_lower
        if folder:
            clear_covers(self, place)
        cover(self, place)
        return only_lower

    def _lift_both(
        self, old: GuestPath, new: GuestPath, moved: os.stat_result, replaced: _Status
    ) -> _Status:
        """Prepares places in overlays for a rename; returns the status of the file it replaces."""
        is_folder = stat.S_ISDIR(moved.st_mode)
        if isinstance(old, OverlayPath):
            old.check_cover()
        if isinstance(new, OverlayPath) and replaced is not None:
            if is_folder is not stat.S_ISDIR(replaced.st_mode):
                raise Refused(abi.ENOTDIR if is_folder else abi.EISDIR)
            replaced = None if new.in_lower else replaced
            if is_folder:
                new.check_cover()
                clear_covers(self, new)
                cover(self, new)
            new.in_lower = False
        lift(self, old)
        make_way(self, new)
        cover(self, old)
        return replaced

    def _find(self, fd: int, at: int, length: int, *, follow: Follow = Follow.NEVER) -> GuestPath:
        """Resolves a path. Raises `Refused` if the guest may not change files there."""
        place = self.paths.find(fd, at, length, follow)
        if place.preopen.writable or isinstance(place, OverlayPath):
            return place
        place.close()
        raise Refused(abi.EPERM)

    def _outline(self, old: GuestPath, new: GuestPath, moved: os.stat_result) -> TreeSummary:
        """Summarizes a file or folder to be renamed; refuses paths that would become too long."""
        if not stat.S_ISDIR(moved.st_mode):
            return TreeSummary(size=_length(moved))
        hidden, depth = old.preopen.hidden, len(old.parts)

        def is_not_movable(folder: int, name: str, way: int) -> bool:
            return is_hidden_folder(hidden, folder, name, depth + way)

        try:
            with Folder(old.folder).enter(old.name) as folder:
                inside = summarize(self.until_stopped(walks.entries(folder.fd)), is_not_movable)
        except OSError:
            raise Refused(abi.EACCES) from None
        if inside.longest:
            check_length(new.parts, inside.longest + 1)
        return inside

    def _tell(
        self, old: GuestPath, new: GuestPath, moved: os.stat_result, inside: TreeSummary
    ) -> None:
        """Notes the new path of each renamed file."""
        if not stat.S_ISDIR(moved.st_mode):
            self.changes.touch(old.path, key_of(moved))
            self.changes.touch(new.path, None)
            return
        for name, key in inside.names.items():
            if old.path is not None:
                self.changes.touch(f"{old.path}/{name}", key)
            if new.path is not None:
                self.changes.touch(f"{new.path}/{name}", None)

    def _keep(self, place: GuestPath, before: _Status) -> str:
        """Keeps a file that is about to lose its name; returns its unlinked name if it is open."""
        self.history.before_change(place.path, place.folder, place.name, before, Change.END)
        if before is None or not stat.S_ISREG(before.st_mode) or not self.history.keeps:
            return ""
        opened = place.preopen.writable and self.files.descriptors_at(place, before)
        return self.history.keep_unlinked(place.folder, place.name, before) if opened else ""

    def _keep_moved(
        self, old: GuestPath, new: GuestPath, moved: os.stat_result, replaced: _Status
    ) -> str:
        """Does `_keep` for the file that a rename will replace, and notes all that it moves."""
        if not self.history.keeps:
            return ""
        is_kept = old.path is not None or new.path is not None
        if is_kept and stat.S_ISDIR(moved.st_mode):
            with Folder(old.folder).enter(old.name) as folder:
                for entry in self.until_stopped(walks.entries(folder.fd)):
                    below = "/".join([*entry.path, entry.name])
                    here = None if old.path is None else f"{old.path}/{below}"
                    self._before_move(here, entry.folder, entry.name)
                    if new.path is not None:
                        self.history.before_creation(f"{new.path}/{below}")
        self._before_move(old.path, old.folder, old.name)
        return self._keep(new, replaced)

    def _before_move(self, path: str | None, folder: int, name: str) -> None:
        """Notes that the file at a path is about to get another path."""
        found = _status_at(folder, name)
        self.history.before_change(path, folder, name, found, Change.MOVE)

    def _drop(self, unlinked: str) -> None:
        if unlinked:
            self.history.drop_unlinked(unlinked)

    def _gone(self, place: GuestPath, before: _Status, unlinked: str = "") -> None:
        """Notes that a name is gone, or that another file has it."""
        if before is None:
            return
        if stat.S_ISDIR(before.st_mode):
            self._added(place, -1)
        else:
            self.changes.touch(place.path, key_of(before))
            if place.preopen.counted:
                self.quota.removed(before)
        self.files.lost_name(place, before, unlinked)

    @contextlib.contextmanager
    def _making(self, place: GuestPath) -> Iterator[None]:
        """Notes that a file is made at a place; takes the note back if that fails."""
        there = _status_at(place.folder, place.name)
        new = there is None and self.history.before_creation(place.path)
        try:
            yield
        except OSError:
            if new:
                self.history.after_removal(place.path)
            raise

    def _vanished(self, path: str | None) -> None:
        """Notes that a path has no file; one that came and went in one cell is forgotten."""
        self.changes.vanished(path)
        self.history.after_removal(path)

    def _reserve(self, place: GuestPath, size: int = 0, files: int = 1) -> None:
        if place.preopen.counted:
            self.quota.reserve(files, size)

    def _added(self, place: GuestPath, files: int, size: int = 0) -> None:
        if place.preopen.counted:
            self.quota.added(files, size)


def _is_merged(place: GuestPath, found: os.stat_result) -> bool:
    """Returns whether the folder at a place is one of the lower layer, or merged with one."""
    if not isinstance(place, OverlayPath) or place.beneath is None:
        return False
    return stat.S_ISDIR(found.st_mode) and stat.S_ISDIR(place.beneath.st_mode)


def _status_at(folder: int, name: str) -> _Status:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return None


def _length(status: os.stat_result) -> int:
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
