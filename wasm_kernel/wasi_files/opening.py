"""Opening and closing files, and opening them again for restored memory.

Saved memory holds descriptors by number. A new instance has none of them, so they are opened again:
the same file, under the same number, at the same position. If a file is gone, or another has taken
its name (deleted and made again, replaced by an editor that saves under another name first), its
number stays taken, and using it fails.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

from wasm_kernel.engine import abi
from wasm_kernel.linux.files import open_file_identity
from wasm_kernel.linux.folders import inode_of
from wasm_kernel.wasi_files.context import FileContext, PathAt, resolve
from wasm_kernel.wasi_files.file_history import Change, is_unlinked_name
from wasm_kernel.wasi_files.open_files import OpenDescriptor, OpenFile
from wasm_kernel.wasi_files.path_walk import Follow, GuestPath, HiddenName
from wasm_kernel.wasi_files.preopens import NULL_DEVICE, GuestOSError, Preopen

_WRITES = abi.O_CREAT | abi.O_TRUNC  # either opens for writing, whatever the rights say
_ONCE = abi.O_CREAT | abi.O_EXCL | abi.O_TRUNC  # flags for a file's first opening only
_SYNCHRONOUS = ~(abi.FD_APPEND | abi.FD_NONBLOCK)
_KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_RUNNABLE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
_AS_ANOTHER = stat.S_ISUID | stat.S_ISGID


class OpeningOperations(FileContext):
    """The operations that open and close files."""

    def open(
        self, at: PathAt, how: int, rights: int, *, fdflags: int = 0, follow: bool = True
    ) -> int:
        """Opens or makes a file, or opens a folder; returns the guest's descriptor.

        The arguments are those of WASI's `path_open`; `how` are its `oflags`. Its inheriting rights
        are not among them: no descriptor passes rights on.
        """
        if self.open_files.is_full:
            raise GuestOSError(errno.EMFILE)
        if fdflags & _SYNCHRONOUS:
            raise GuestOSError(errno.ENOTSUP)
        if how & abi.O_DIRECTORY and how & _ONCE:
            raise GuestOSError(errno.EINVAL)
        creates = how & abi.O_CREAT
        follows = follow and not (creates and how & abi.O_EXCL)
        with self.find(
            at, Follow.ALWAYS if follows else Follow.BEFORE_SLASH, looks=not creates
        ) as place:
            place.lift_to_open(self, how, rights)
            opened = OpenDescriptor(place.preopen, place.parts, -1, how, rights, fdflags)
            self._open_at(place, opened)
        return self.open_files.add(opened)

    def _open_at(self, place: GuestPath, opened: OpenDescriptor) -> None:
        how = opened.flags
        before = look_before_opening(place, how, opened.rights)
        if before is None and how & abi.O_CREAT:
            if place.is_folder:
                raise GuestOSError(errno.EISDIR)
            status = self.make(place, lambda: open_file(place, opened), is_free=True)
        else:
            if how & abi.O_TRUNC and before is not None:
                where = (place.path, place.folder, place.name)
                self.history.before_change(*where, before, Change.WRITE)
            status = open_file(place, opened)
        try:
            self._register(opened, place, before, status)
        except BaseException:
            os.close(opened.fd)
            raise

    def _register(
        self,
        opened: OpenDescriptor,
        place: GuestPath,
        before: os.stat_result | None,
        status: os.stat_result,
    ) -> None:
        """Registers an opened file, and notes the changes that the opening made."""
        how = opened.flags
        self.open_files.register(opened, status)
        if before is None:
            self.changes.created(place.path, inode_of(status))
            return
        bits = _forbidden_mode_bits(opened.preopen, status.st_mode)
        if bits and (how & _WRITES or opened.rights & abi.RIGHT_WRITE):
            os.fchmod(opened.fd, stat.S_IMODE(status.st_mode) & ~bits)
        if how & abi.O_TRUNC:
            if opened.size is not None:
                self.quota.resized(opened.size, 0)
            self.changes.wrote(opened.path, inode_of(status))

    def close_file(self, fd: int) -> None:
        """Closes a descriptor that the guest opened itself."""
        self._release(self.open_files.pop(fd))

    def _release(self, opened: OpenDescriptor) -> None:
        """Closes a descriptor that has no number any more."""
        if opened.fd >= 0:
            os.close(opened.fd)
        if opened.size is not None:
            self.quota.closed(opened.size)
        if opened.unlinked and not self.open_files.has_unlinked(opened.unlinked):
            self.history.drop_unlinked(opened.unlinked)

    def renumber(self, old: int, new: int) -> None:
        """Gives an open descriptor the number of another, which is closed."""
        opened, replaced = self.open_files.own(old), self.open_files.own(new)
        if opened is not replaced:
            self.open_files.put(new, self.open_files.pop(old))
            self._release(replaced)


def is_null(place: GuestPath) -> bool:
    """Returns whether a place is the guest's only device, `/dev/null`."""
    return place.preopen.guest == "/" and "/".join(place.parts) == NULL_DEVICE


def look_before_opening(place: GuestPath, how: int, rights: int) -> os.stat_result | None:
    """Returns the status of the file at a place that is about to be opened; None if there is none.

    Raises `GuestOSError` for a pipe or a device, as opening it may have effects, and for writing in
    a folder in which the guest may not write.
    """
    found = place.status()
    if found is not None and stat.S_IFMT(found.st_mode) not in _KINDS:
        raise GuestOSError(errno.ENOTSUP)
    writes = how & _WRITES or rights & abi.RIGHT_WRITE
    if writes and not (place.preopen.writable or is_null(place)):
        raise GuestOSError(errno.EPERM)
    return found


def open_file(place: GuestPath, opened: OpenDescriptor) -> os.stat_result:
    """Opens the file or folder at a place, as a descriptor's arguments say; returns its status.

    Call `look_before_opening` first. The caller closes the descriptor.
    """
    flags = _flags(place, opened)
    kinds: tuple[int, ...] = (stat.S_IFREG, stat.S_IFDIR)
    if is_null(place):  # opens the device: sessions would share a file in its place
        fd, kinds = os.open(os.devnull, flags & ~os.O_CREAT & ~os.O_TRUNC), (stat.S_IFCHR,)
    else:
        fd = os.open(place.name, flags, 0o666, dir_fd=place.folder)
    try:
        status = os.fstat(fd)
        kind = stat.S_IFMT(status.st_mode)
        if kind not in kinds:
            raise GuestOSError(errno.ENOTSUP)
        hidden, depth = place.preopen.hidden, len(place.parts) - 1
        below = place.parts and kind == stat.S_IFDIR  # the preopened folder itself is the guest's
        if below and hidden.hides_folders and hidden.hides_folder(fd, depth):
            raise HiddenName
    except BaseException:
        os.close(fd)
        raise
    opened.fd, opened.is_folder, opened.in_lower = fd, kind == stat.S_IFDIR, place.in_lower
    if opened.is_folder:
        opened.preopen = place.overlay  # its entries lie in either layer
    return status


def _flags(place: GuestPath, opened: OpenDescriptor) -> int:
    how, flags = opened.flags, open_flags(opened.rights, opened.fdflags)
    for asked, flag in (
        (how & abi.O_CREAT, os.O_CREAT),
        (how & abi.O_EXCL and how & abi.O_CREAT, os.O_EXCL),
        (how & abi.O_TRUNC, os.O_TRUNC),
        (how & abi.O_DIRECTORY or place.is_folder, os.O_DIRECTORY),
    ):
        flags |= flag if asked else 0
    return flags | _SAFELY


def open_flags(rights: int, fdflags: int) -> int:
    """Returns the flags of `os.open` for an existing file, from WASI's rights and `fdflags`."""
    reads = bool(rights & (abi.RIGHT_READ | abi.RIGHT_READDIR))
    writes = bool(rights & abi.RIGHT_WRITE)
    flags = os.O_RDONLY if not writes else os.O_RDWR if reads else os.O_WRONLY
    return flags | os.O_APPEND if fdflags & abi.FD_APPEND else flags


def _forbidden_mode_bits(preopen: Preopen, mode: int) -> int:
    """Returns the bits of a file's mode that it may not have once the guest can write to it.

    A guest's file must not run with another user's rights. Files in a session's own folders never
    run on the host, so they lose all execute bits; a mount may hold scripts of the user's.
    """
    if not stat.S_ISREG(mode):
        return 0
    return mode & (_AS_ANOTHER | (_RUNNABLE if preopen.counted else 0))


class ReopeningOperations(FileContext):
    """The open files of one instance, between two turns."""

    def open_records(self) -> tuple[OpenFile, ...]:
        """Returns records of the open files."""
        opened = sorted(self.open_files.own_descriptors().items())
        return tuple(self._saved(fd, descriptor) for fd, descriptor in opened)

    def _saved(self, fd: int, opened: OpenDescriptor) -> OpenFile:
        guest, path, name = opened.preopen.guest, "/".join(opened.parts), opened.identify()
        if opened.fd < 0:
            return OpenFile(fd, guest, None, 0, 0, 0, 0)
        workspace = next(preopen for preopen in self.preopens.all if preopen.tracked)
        if opened.preopen.tracked and not opened.is_folder:
            guest = workspace.guest  # also of a file that was opened through an overlay
        if opened.unlinked:
            guest, path, name = workspace.guest, opened.unlinked, open_file_identity(opened.fd)
        offset = 0 if opened.is_folder else os.lseek(opened.fd, 0, os.SEEK_CUR)
        how = (opened.flags, opened.rights, opened.fdflags)
        return OpenFile(fd, guest, path, offset, *how, name)

    @property
    def has_nameless(self) -> bool:
        """True if an open file has lost its last name."""
        opened = self.open_files.own_descriptors().values()
        return any(each.gone and each.fd >= 0 for each in opened)

    def reopen(self, files: Sequence[OpenFile]) -> list[OpenFile]:
        """Opens files again for memory that has their descriptors; returns those that failed.

        The descriptors of files that failed raise an error when the guest uses them.
        """
        lost = []
        for wanted in files:
            if not self.open_files.has_room_at(wanted.fd):
                lost.append(wanted)
                continue
            try:
                opened = self._opened_again(wanted)
            except (OSError, ValueError, OverflowError):
                if wanted.path is not None:
                    lost.append(wanted)
                opened = OpenDescriptor(self.preopens.fixed[0], (), -1, gone=True)
            self.open_files.put(wanted.fd, opened)
        return lost

    def _opened_again(self, wanted: OpenFile) -> OpenDescriptor:
        opened = self._open_by_name(wanted)
        try:
            name = open_file_identity(opened.fd)
            if wanted.identity and not self.history.same_file(wanted.identity, name):
                raise GuestOSError(errno.ESTALE)  # another file took its name
            if wanted.offset and not opened.is_folder:
                os.lseek(opened.fd, wanted.offset, os.SEEK_SET)
        except BaseException:
            os.close(opened.fd)
            raise
        told_apart = opened.preopen.tells_files_apart and not opened.is_merged
        opened.identity = name if told_apart else ""
        self.open_files.register(opened, os.fstat(opened.fd))
        opened.gone = bool(opened.unlinked)
        if opened.size is not None:
            opened.size.nameless = opened.gone
        return opened

    def _open_by_name(self, wanted: OpenFile) -> OpenDescriptor:
        preopen = self.preopens.at(wanted.guest)
        if preopen is None or wanted.path is None:
            raise GuestOSError(errno.ENOENT)
        # a mount may have become read-only, and the records of an archive can't be trusted
        may_write = preopen.writable or (preopen.guest, wanted.path) == ("/", NULL_DEVICE)
        rights = wanted.rights if may_write else wanted.rights & ~abi.RIGHT_WRITE
        flags = wanted.flags & ~_ONCE
        how = (flags, rights, wanted.fdflags)
        if preopen.tracked and is_unlinked_name(wanted.path):
            fd = self.history.open_unlinked(wanted.path, open_flags(rights, wanted.fdflags))
            return OpenDescriptor(preopen, (), fd, *how, unlinked=wanted.path)
        with resolve(preopen, wanted.path or ".") as place:
            if "/".join(place.parts) != wanted.path:
                raise GuestOSError(errno.ELOOP)  # a link has appeared on the way
            look_before_opening(place, flags, rights)
            found = OpenDescriptor(place.preopen, place.parts, -1, *how)
            open_file(place, found)
            return found
