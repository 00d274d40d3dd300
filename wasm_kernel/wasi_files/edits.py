"""The operations that make, move and remove names, and set the times of named files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from wasm_kernel.linux import walks
from wasm_kernel.linux.folders import READ, Folder, closing_fd, inode_of
from wasm_kernel.linux.trees import TreeSummary, summarize
from wasm_kernel.wasi_files.bookkeeping import status_at
from wasm_kernel.wasi_files.content import times_of
from wasm_kernel.wasi_files.context import FileContext, PathAt
from wasm_kernel.wasi_files.file_history import Change
from wasm_kernel.wasi_files.path_walk import Follow, GuestPath, check_length
from wasm_kernel.wasi_files.preopens import GuestOSError, is_hidden_folder

_Status = os.stat_result | None


class EditOperations(FileContext):
    """The operations that make, move and remove names."""

    def set_times(
        self, at: PathAt, follow: Follow, accessed: int, changed: int, flags: int
    ) -> None:
        """Sets the times of a named file; see `times_of`."""
        with self._find(at, follow, looks=True) as place:
            place.lift(self)
            status = place.required_status()
            new = times_of(status, accessed, changed, flags)
            if stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFDIR):
                with closing_fd(os.open(place.name, READ, dir_fd=place.folder)) as opened:
                    os.utime(opened, ns=new)
            else:  # refused in a confined process
                os.utime(place.name, ns=new, dir_fd=place.folder, follow_symlinks=False)

    def make_folder(self, at: PathAt) -> None:
        """Makes a folder."""
        with self._find(at) as place:
            place.make_way(self)
            self.make(place, lambda: os.mkdir(place.name, dir_fd=place.folder))

    def remove_folder(self, at: PathAt) -> None:
        """Removes an empty folder."""
        self._remove(at, os.rmdir, folder=True)

    def remove(self, at: PathAt) -> None:
        """Removes a file or a link."""
        self._remove(at, os.unlink, folder=False)

    def _remove(self, at: PathAt, act: Callable[..., None], *, folder: bool) -> None:
        with self._find(at) as place:
            before = place.required_status()
            if not place.hide_lower(self, before, folder=folder):
                self._lose(place, before, lambda: act(place.name, dir_fd=place.folder))
                self.vanished(place.path)

    def link(self, at: PathAt, target: PathAt) -> None:
        """Gives a file another name."""
        with self._find(at) as old, self._find(target) as new:
            if new.is_folder:
                raise GuestOSError(errno.ENOENT)
            old.required_status()
            old.lift(self)
            new.make_way(self)
            status = old.required_status()
            size = 0 if old.preopen.counted else _length(status)
            self.make(new, lambda: _link(old, new), size)
            self.changes.linked(inode_of(status))
            self.changes.touch(new.path, None)

    def make_link(self, text: str, at: PathAt) -> None:
        """Makes a symbolic link that holds a relative path."""
        if text.startswith("/"):
            raise GuestOSError(errno.EPERM)
        with self._find(at) as place:
            hidden = place.preopen.hidden
            if any(hidden.hides_name(0, part) for part in text.split("/") if part):
                raise GuestOSError(errno.ENOENT)
            if place.status() is None and place.is_folder:
                raise GuestOSError(errno.ENOENT)
            place.make_way(self)
            self.make(place, lambda: os.symlink(text, place.name, dir_fd=place.folder))
            if (status := place.status()) is not None:
                self.changes.created(place.path, inode_of(status))

    def rename(self, at: PathAt, target: PathAt) -> None:
        """Renames a file or a folder; a file that has the new name is replaced."""
        with self._find(at) as old, self._find(target) as new:
            moved, replaced = old.status(), new.status()
            if moved is None:
                raise GuestOSError(errno.ENOENT)
            if new.is_folder and not stat.S_ISDIR(moved.st_mode):
                raise GuestOSError(errno.ENOTDIR)
            if replaced is not None and inode_of(replaced) == inode_of(moved):
                return  # both are names of one file: nothing happens
            old.check_movable(moved)
            if is_hidden_folder(new.preopen.hidden, old.folder, old.name, len(new.parts) - 1):
                raise GuestOSError(errno.EACCES)  # as that name, it would be a session's folder
            inside = self._outline(old, new, moved)
            if not old.preopen.counted:
                self.reserve(new, inside.count, inside.size)
            replaced = new.give_way(self, moved, replaced)
            old.lift_to_move(self)
            noted = self._before_moves(old, new, moved)
            try:
                self._lose(new, replaced, lambda: _rename(old, new))
            except OSError:
                for path in noted:
                    self.history.after_removal(path)
                raise
            if old.preopen.counted is not new.preopen.counted:
                self.added(old, -inside.count, -inside.size)
                self.added(new, inside.count, inside.size)
            self._moved(old, new, moved, inside)

    def _find(self, at: PathAt, follow: Follow = Follow.NEVER, *, looks: bool = False) -> GuestPath:
        """Resolves a path. Raises `GuestOSError` if the guest may not change files there."""
        place = self.find(at, follow, looks=looks)
        if place.overlay.writable:
            return place
        place.close()
        raise GuestOSError(errno.EPERM)

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
        except GuestOSError:
            raise
        except OSError:
            raise GuestOSError(errno.EACCES) from None
        if inside.longest:
            check_length(new.parts, inside.longest + 1)
        return inside

    def _before_moves(
        self, old: GuestPath, new: GuestPath, moved: os.stat_result
    ) -> list[str | None]:
        """Notes that files are about to get another path: the file at a place, and those below.

        Returns the new paths below the place that were noted to have no file before.
        """
        noted = list[str | None]()
        if not self.history.keeps:
            return noted
        is_kept = old.path is not None or new.path is not None
        if is_kept and stat.S_ISDIR(moved.st_mode):
            with Folder(old.folder).enter(old.name) as folder:
                for entry in self.until_stopped(walks.entries(folder.fd)):
                    name = "/".join([*entry.path, entry.name])
                    self._before_move(_below(old, name), entry.folder, entry.name)
                    if self.history.before_creation(path := _below(new, name)):
                        noted.append(path)
        self._before_move(old.path, old.folder, old.name)
        return noted

    def _before_move(self, path: str | None, folder: int, name: str) -> None:
        self.history.before_change(path, folder, name, status_at(folder, name), Change.MOVE)

    def _moved(
        self, old: GuestPath, new: GuestPath, moved: os.stat_result, inside: TreeSummary
    ) -> None:
        """Notes the new path of each renamed file."""
        files = inside.names if stat.S_ISDIR(moved.st_mode) else {"": inode_of(moved)}
        for name, key in files.items():
            self.changes.touch(_below(old, name), key)
            self.changes.touch(_below(new, name), None)
        self.open_files.moved(old, new)
        for name in ("", *inside.names, *inside.folders):
            self.vanished(_below(old, name))

    def _lose(self, place: GuestPath, before: _Status, act: Callable[[], None]) -> None:
        """Keeps a file that loses its name by `act`, and notes that it is gone.

        A file that is open gets an unlinked name.
        """
        where = (place.path, place.folder, place.name)
        is_noted = self.history.before_change(*where, before, Change.END)
        unlinked = self._keep_open(place, before) if self.history.keeps else ""
        try:
            act()
        except OSError:
            if is_noted and before is None:
                self.history.after_removal(place.path)
            if unlinked:
                self.history.drop_unlinked(unlinked)
            raise
        if before is None:
            return
        if stat.S_ISDIR(before.st_mode):
            self.added(place, -1)
        else:
            self.changes.touch(place.path, inode_of(before))
            if place.preopen.counted:
                self.quota.removed(before)
        for opened in self.open_files.descriptors_at(place, before):
            opened.gone, opened.unlinked = True, unlinked

    def _keep_open(self, place: GuestPath, found: _Status) -> str:
        """Gives the file at a place an unlinked name if it is open; returns that name, if any."""
        if found is None or not (stat.S_ISREG(found.st_mode) and place.preopen.writable):
            return ""
        if not self.open_files.descriptors_at(place, found):
            return ""
        return self.history.keep_unlinked(place.folder, place.name, found)


def _link(old: GuestPath, new: GuestPath) -> None:
    folders = {"src_dir_fd": old.folder, "dst_dir_fd": new.folder}
    os.link(old.name, new.name, **folders, follow_symlinks=False)


def _rename(old: GuestPath, new: GuestPath) -> None:
    os.rename(old.name, new.name, src_dir_fd=old.folder, dst_dir_fd=new.folder)


def _below(place: GuestPath, name: str) -> str | None:
    """Returns the workspace path of a name below a place, or of the place itself."""
    return None if place.path is None else f"{place.path}/{name}".rstrip("/")


def _length(status: os.stat_result) -> int:
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
