"""The calls that open and close files, and opening them again for restored memory.

Saved memory holds descriptors by number. A new instance has none of them, so they are opened again:
the same file, under the same number, at the same position. If a file is gone, or another has taken
its name (deleted and made again, replaced by an editor that saves under another name first), its
number stays taken, and using it fails.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence

from wasm_kernel.engine import abi
from wasm_kernel.engine.host_calls import Handler
from wasm_kernel.linux.files import open_file_identity
from wasm_kernel.wasi_files.copy_up import lift, make_way
from wasm_kernel.wasi_files.file_calls import FileCalls
from wasm_kernel.wasi_files.file_history import Change, FileHistory, is_unlinked_name
from wasm_kernel.wasi_files.open_files import OpenDescriptor, OpenFile, OpenFiles
from wasm_kernel.wasi_files.overlay import OverlayPath
from wasm_kernel.wasi_files.path_walk import Follow, GuestPath, HiddenName
from wasm_kernel.wasi_files.paths import resolve
from wasm_kernel.wasi_files.preopens import (
    FIRST_DESCRIPTOR,
    NULL_DEVICE,
    Preopen,
    Preopens,
    Refused,
)
from wasm_kernel.wasi_files.quota import key_of

_WRITES = abi.O_CREAT | abi.O_TRUNC  # either opens for writing, whatever the rights say
_ONCE = abi.O_CREAT | abi.O_EXCL | abi.O_TRUNC  # flags for a file's first opening only
_SYNCHRONOUS = ~(abi.FD_APPEND | abi.FD_NONBLOCK)
_KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_RUNNABLE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
_AS_ANOTHER = stat.S_ISUID | stat.S_ISGID


class OpeningCalls(FileCalls, frozen=True):
    """The calls that open and close files."""

    def handlers(self) -> Mapping[str, Handler]:
        """Returns the handlers, by WASI's name."""
        return {"path_open": self._open, "fd_close": self._close, "fd_renumber": self._renumber}

    def _open(self, fd: int, flags: int, path: int, length: int, how: int, *more: int) -> int:
        rights, inheriting, fdflags, out = more
        if self.files.is_full:
            raise Refused(abi.EMFILE)
        if fdflags & _SYNCHRONOUS:
            return abi.ENOTSUP
        if how & abi.O_DIRECTORY and how & (abi.O_CREAT | abi.O_EXCL | abi.O_TRUNC):
            return abi.EINVAL
        only_new = how & abi.O_CREAT and how & abi.O_EXCL
        follows = flags & abi.LOOKUP_FOLLOW and not only_new
        follow = Follow.ALWAYS if follows else Follow.BEFORE_SLASH
        with self.paths.find(fd, path, length, follow) as place:
            self._lift(place, how, rights)
            opened = OpenDescriptor(
                place.preopen, place.parts, -1, how, rights, inheriting, fdflags
            )
            self._open_at(place, opened)
        self.memory.write_word(out, self.files.add(opened))
        return abi.SUCCESS

    def _lift(self, place: GuestPath, how: int, rights: int) -> None:
        """Moves a place in an overlay to the upper folder if the opening may change the file."""
        if not isinstance(place, OverlayPath):
            return
        found, writes = place.status(), bool(how & _WRITES or rights & abi.RIGHT_WRITE)
        if found is None:
            if not how & abi.O_CREAT:
                raise Refused(abi.ENOENT)
            if not place.is_folder:
                make_way(self, place)
        elif how & abi.O_CREAT and how & abi.O_EXCL:
            raise Refused(abi.EEXIST)
        elif stat.S_ISREG(found.st_mode) and writes and not how & abi.O_DIRECTORY:
            lift(self, place, content=not how & abi.O_TRUNC)
        elif stat.S_ISDIR(found.st_mode) and writes and place.in_lower:
            raise Refused(abi.EISDIR)

    def _open_at(self, place: GuestPath, opened: OpenDescriptor) -> None:
        how = opened.flags
        before = look_before_opening(place, how, opened.rights)
        if before is None and how & abi.O_CREAT:
            if place.is_folder:
                raise Refused(abi.EISDIR)
            if place.preopen.counted:
                self.quota.reserve(1)
        new = how & (abi.O_CREAT if before is None else abi.O_TRUNC) and self.history.before_change(
            place.path, place.folder, place.name, before, Change.WRITE
        )
        try:
            opened.fd = open_file(place, how, opened.rights, opened.fdflags)
        except OSError:
            if new and before is None:
                self.history.after_removal(place.path)
            raise
        try:
            self._note(opened, place, before)
        except BaseException:
            os.close(opened.fd)
            raise

    def _note(
        self, opened: OpenDescriptor, place: GuestPath, before: os.stat_result | None
    ) -> None:
        """Registers an opened file, and notes the changes that the opening made."""
        status, how = os.fstat(opened.fd), opened.flags
        opened.is_folder = stat.S_ISDIR(status.st_mode)
        opened.preopen, opened.in_lower = _preopen_of(place, opened.fd), _is_in_lower(place)
        self.files.register(opened, status)
        if before is None:
            if opened.preopen.counted and not opened.is_folder:
                self.quota.added(1)
            self.changes.created(place.path, key_of(status))
            return
        bits = _forbidden_mode_bits(opened.preopen, status.st_mode)
        if bits and (how & _WRITES or opened.rights & abi.RIGHT_WRITE):
            os.fchmod(opened.fd, stat.S_IMODE(status.st_mode) & ~bits)
        if how & abi.O_TRUNC:
            if opened.size is not None:
                self.quota.resized(opened.size, 0)
            self.changes.wrote(opened.path, key_of(status))

    def _close(self, fd: int) -> int:
        if fd < FIRST_DESCRIPTOR:
            return abi.SUCCESS  # the guest's streams stay: the next cell needs them
        if self.files.is_fixed(fd):
            return abi.EBADF  # its preopened folders stay, too
        opened = self.files.take(fd)
        if opened is None:
            return abi.EBADF
        self._release(opened)
        return abi.SUCCESS

    def _release(self, opened: OpenDescriptor) -> None:
        """Closes a descriptor that has no number any more."""
        self.listings.forget(opened)
        if opened.fd >= 0:
            os.close(opened.fd)
        if opened.size is not None:
            self.quota.closed(opened.size)
        if opened.unlinked and not self.files.has_unlinked(opened.unlinked):
            self.history.drop_unlinked(opened.unlinked)

    def _renumber(self, old: int, new: int) -> int:
        if self.files.is_fixed(old) or self.files.is_fixed(new):
            return abi.EBADF
        opened = self.files.get(old)
        if opened is None or self.files.get(new) is None:
            return abi.EBADF
        if old != new:
            replaced = self.files.take(new)
            self.files.take(old)
            self.files.put(new, opened)
            if replaced is not None:
                self._release(replaced)
        return abi.SUCCESS


def _is_in_lower(place: GuestPath) -> bool:
    return isinstance(place, OverlayPath) and place.in_lower


def _preopen_of(place: GuestPath, fd: int) -> Preopen:
    """Returns the guest's folder of a file or folder that was opened at a place."""
    if isinstance(place, OverlayPath) and stat.S_ISDIR(os.fstat(fd).st_mode):
        return place.overlay  # its entries lie in either layer
    return place.preopen


def is_null(place: GuestPath) -> bool:
    """Returns whether a place is the guest's only device, `/dev/null`."""
    return place.preopen.guest == "/" and "/".join(place.parts) == NULL_DEVICE


def look_before_opening(place: GuestPath, how: int, rights: int) -> os.stat_result | None:
    """Returns the status of the file at a place that is about to be opened; None if there is none.

    Raises `Refused` for a pipe or a device, as opening it may have effects, and for writing in a
    folder in which the guest may not write.
    """
    found = place.status()
    if found is not None and stat.S_IFMT(found.st_mode) not in _KINDS:
        raise Refused(abi.ENOTSUP)
    if not (place.preopen.writable or is_null(place)) and (
        how & _WRITES or rights & abi.RIGHT_WRITE
    ):
        raise Refused(abi.EPERM)
    return found


def open_file(place: GuestPath, how: int, rights: int, fdflags: int) -> int:
    """Opens the file or folder at a place; the caller closes the descriptor.

    Call `look_before_opening` first. `how`, `rights` and `fdflags` are WASI's; the rights say
    whether it is read or written.
    """
    flags = _flags(place, how, rights, fdflags)
    kinds: tuple[int, ...] = (stat.S_IFREG, stat.S_IFDIR)
    if is_null(place):  # never a file in its place, which sessions would share
        fd, kinds = os.open(os.devnull, flags & ~os.O_CREAT & ~os.O_TRUNC), (stat.S_IFCHR,)
    else:
        fd = os.open(place.name, flags, 0o666, dir_fd=place.folder)
    try:
        kind = stat.S_IFMT(os.fstat(fd).st_mode)
        if kind not in kinds:
            raise Refused(abi.ENOTSUP)
        hidden, depth = place.preopen.hidden, len(place.parts) - 1
        below = place.parts and kind == stat.S_IFDIR  # the preopened folder itself is the guest's
        if below and hidden.hides_folders and hidden.hides_folder(fd, depth):
            raise HiddenName
    except BaseException:
        os.close(fd)
        raise
    return fd


def _flags(place: GuestPath, how: int, rights: int, fdflags: int) -> int:
    flags = open_flags(rights, fdflags)
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

    A file that the guest wrote must not run with another user's rights. Files in a session's own
    folders are never run on the host, so they lose all execute bits. A mount may be the user's
    project with scripts in it: files there only lose set-user-id and set-group-id.
    """
    if not stat.S_ISREG(mode):
        return 0
    return mode & (_AS_ANOTHER | (_RUNNABLE if preopen.counted else 0))


class Reopener:
    """The open files of one instance. Only the guest's thread uses it, between turns."""

    def __init__(self, preopens: Preopens, files: OpenFiles, history: FileHistory) -> None:
        self._preopens = preopens
        self._files = files
        self._history = history

    def save(self) -> tuple[OpenFile, ...]:
        """Returns records of the open files."""
        opened = sorted(self._files.opened().items())
        return tuple(self._saved(fd, descriptor) for fd, descriptor in opened)

    def _saved(self, fd: int, opened: OpenDescriptor) -> OpenFile:
        guest, path, name = opened.preopen.guest, "/".join(opened.parts), opened.identify()
        if opened.fd < 0:
            return OpenFile(fd, guest, None, 0, 0, 0, 0, 0)
        workspace = next(preopen for preopen in self._preopens.all if preopen.tracked)
        if opened.preopen.tracked and not opened.is_folder:
            guest = workspace.guest  # also of a file that was opened through an overlay
        if opened.unlinked:
            guest, path, name = workspace.guest, opened.unlinked, open_file_identity(opened.fd)
        offset = 0 if opened.is_folder else os.lseek(opened.fd, 0, os.SEEK_CUR)
        how = (opened.flags, opened.rights, opened.inheriting, opened.fdflags)
        return OpenFile(fd, guest, path, offset, *how, name)

    def reopen(self, files: Sequence[OpenFile]) -> list[OpenFile]:
        """Opens files again; returns those that failed, whose descriptors fail when used."""
        lost = []
        for wanted in files:
            if not self._files.has_room_at(wanted.fd):
                lost.append(wanted)
                continue
            opened = self._open(wanted)
            if opened is None:
                if wanted.path is not None:
                    lost.append(wanted)
                opened = OpenDescriptor(self._preopens.fixed[0], (), -1, gone=True)
            self._files.put(wanted.fd, opened)
        return lost

    def _open(self, wanted: OpenFile) -> OpenDescriptor | None:
        try:
            opened = self._open_by_name(wanted)
        except (OSError, ValueError, Refused):
            return None
        if opened is None:
            return None
        try:
            self._check(opened, wanted)
        except (OSError, ValueError, OverflowError):
            os.close(opened.fd)
            return None
        self._files.register(opened, os.fstat(opened.fd))
        opened.gone = bool(opened.unlinked)
        if opened.size is not None:
            opened.size.nameless = opened.gone
        return opened

    def _check(self, opened: OpenDescriptor, wanted: OpenFile) -> None:
        """Raises `OSError` if it is not the same file; sets its position."""
        name = open_file_identity(opened.fd)
        if wanted.identity and not self._history.same_file(wanted.identity, name):
            raise OSError(errno.ESTALE, "another file took its name")
        opened.is_folder = stat.S_ISDIR(os.fstat(opened.fd).st_mode)
        told_apart = opened.preopen.tells_files_apart and not opened.is_merged
        opened.identity = name if told_apart else ""
        if wanted.offset and not opened.is_folder:
            os.lseek(opened.fd, wanted.offset, os.SEEK_SET)

    def _open_by_name(self, wanted: OpenFile) -> OpenDescriptor | None:
        preopen = self._preopens.at(wanted.guest)
        if preopen is None or wanted.path is None:
            return None
        # a mount may have become read-only, and the records of an archive can't be trusted
        may_write = preopen.writable or (preopen.guest, wanted.path) == ("/", NULL_DEVICE)
        rights = wanted.rights if may_write else wanted.rights & ~abi.RIGHT_WRITE
        flags = wanted.flags & ~_ONCE
        how = (flags, rights, wanted.inheriting, wanted.fdflags)
        if preopen.tracked and is_unlinked_name(wanted.path):
            fd = self._history.open_unlinked(wanted.path, open_flags(rights, wanted.fdflags))
            return OpenDescriptor(preopen, (), fd, *how, unlinked=wanted.path)
        with resolve(preopen, wanted.path or ".") as place:
            if "/".join(place.parts) != wanted.path:
                return None  # a link has appeared on the way
            look_before_opening(place, flags, rights)
            fd = open_file(place, flags, rights, wanted.fdflags)
            found = OpenDescriptor(_preopen_of(place, fd), place.parts, fd, *how)
            found.in_lower = _is_in_lower(place)
            return found
