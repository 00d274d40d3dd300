"""The guest's file calls, answered by the host.

wasmtime gets no folder at all: what the guest reaches of the disk, it reaches through here. Every
path is walked by descriptor (`paths.py`), what changed in the workspace is noted (`changes.py`),
and what would go beyond the quota is refused (`quota.py`).
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable

from wasm_kernel.engine import abi
from wasm_kernel.engine.reach import OutOfBounds, Reach
from wasm_kernel.engine.shadow import Call, Shadow
from wasm_kernel.wasi_files.changes import Changes
from wasm_kernel.wasi_files.content import Content, times_of
from wasm_kernel.wasi_files.edits import Edits
from wasm_kernel.wasi_files.file_history import Change, FileHistory
from wasm_kernel.wasi_files.listing import Listings, listing_of
from wasm_kernel.wasi_files.open_files import Opened, Table
from wasm_kernel.wasi_files.paths import (
    Follow,
    HiddenName,
    Outside,
    Paths,
    Place,
    is_hidden_now,
)
from wasm_kernel.wasi_files.preopens import FIRST_DESCRIPTOR, Preopen, Preopens
from wasm_kernel.wasi_files.quota import Quota, key_of
from wasm_kernel.wasi_files.refused import Refused

_LOOKS = ("path_filestat_get", "path_filestat_set_times", "path_readlink")
_WRITES = abi.O_CREAT | abi.O_TRUNC  # either opens for writing, whatever the rights say
_SYNCHRONOUS = ~(abi.FD_APPEND | abi.FD_NONBLOCK)
_KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_RUNNABLE = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
_AS_ANOTHER = stat.S_ISUID | stat.S_ISGID
_STATUS = struct.Struct("<QQB7xQQQQQ")
_DESCRIPTION = struct.Struct("<BxH4xQQ")
_PREOPENED = struct.Struct("<B3xI")
_TYPES = {
    stat.S_IFREG: abi.FILE_TYPE,
    stat.S_IFDIR: abi.FOLDER_TYPE,
    stat.S_IFLNK: abi.LINK_TYPE,
}


class WasiFiles:
    """The file calls of one instance. Only the guest's thread uses it; close it."""

    def __init__(
        self,
        preopens: Preopens,
        reach: Reach,
        changes: Changes,
        *,
        quota: Quota,
        history: FileHistory,
        open_files: int,
        must_end: Callable[[], bool],
    ) -> None:
        self.history = history
        self.preopens = preopens
        self.table = Table(preopens)
        self._reach = reach
        self._changes = changes
        self._quota = quota
        self._open_files = open_files
        self._listings = Listings()
        self._paths = Paths(preopens, reach, self.table)
        self._edits = Edits(
            self._paths, self.table, changes, quota=quota, history=history, must_end=must_end
        )
        self._content = Content(self.table, reach, changes, quota=quota, history=history)

    def begin(self) -> None:
        """A turn begins."""
        self._quota.begin()

    def close(self) -> None:
        """Closes what the guest has open. Safe to call twice."""
        self.table.close()

    @property
    def limit(self) -> str:
        """The name of the quota's limit that this turn has met, empty for none."""
        return self._quota.limit

    def shadows(self) -> dict[str, Shadow]:
        """The calls, by WASI's name."""
        plain: dict[str, Callable[[Call], int]] = {
            "fd_close": self._close,
            "fd_renumber": self._renumber,
            "fd_readdir": self._list,
            "fd_fdstat_get": self._describe,
            "fd_filestat_get": self._look_at_open,
            "fd_prestat_get": self._preopened,
            "fd_prestat_dir_name": self._preopened_name,
            "path_open": self._open,
            "path_filestat_get": self._look,
            "path_filestat_set_times": self._set_times,
            "path_readlink": self._read_link,
            **self._content.shadows(),
            **self._edits.shadows(),
        }
        return {name: _guarded(name, shadow) for name, shadow in plain.items()}

    def has_room_for(self, number: int) -> bool:
        """Whether a file can be opened under a number: it is free, and there are not too many."""
        free = not self.table.is_fixed(number) and self.table.get(number) is None
        return free and len(self.table) < self._open_files

    def know(self, opened: Opened, status: os.stat_result) -> None:
        """Notes what is known of a file that is open from now on."""
        opened.key = key_of(status)
        if opened.preopen.counted:
            opened.held = self._quota.opened(status)
        if status.st_nlink > 1:
            self._changes.linked(opened.key)

    # -- opening

    def _open(self, call: Call) -> int:
        if len(self.table) >= self._open_files:
            raise Refused(abi.EMFILE)
        _, flags, _, _, how, rights, inheriting, fdflags, out = call.args
        if fdflags & _SYNCHRONOUS:
            return abi.ENOTSUP
        if how & abi.O_DIRECTORY and how & (abi.O_CREAT | abi.O_EXCL | abi.O_TRUNC):
            return abi.EINVAL
        only_new = how & abi.O_CREAT and how & abi.O_EXCL
        follows = flags & abi.LOOKUP_FOLLOW and not only_new
        with self._paths.place(
            call, 0, 2, Follow.ALWAYS if follows else Follow.BEFORE_SLASH
        ) as place:
            opened = Opened(place.preopen, place.parts, -1, how, rights, inheriting, fdflags)
            self._open_at(place, opened)
        self._reach.write_word(out, self.table.add(opened))
        return abi.SUCCESS

    def _open_at(self, place: Place, opened: Opened) -> None:
        how = opened.flags
        before = look_before_opening(place, how, opened.rights)
        if before is None and how & abi.O_CREAT:
            if place.is_folder:
                raise Refused(abi.EISDIR)
            if place.preopen.counted:
                self._quota.admit(1)
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

    def _note(self, opened: Opened, place: Place, before: os.stat_result | None) -> None:
        """A file was opened: what is known of it, and what that changed."""
        status, how = os.fstat(opened.fd), opened.flags
        opened.is_folder = stat.S_ISDIR(status.st_mode)
        self.know(opened, status)
        if before is None:
            if opened.preopen.counted and not opened.is_folder:
                self._quota.came(1)
            self._changes.made(place.path, key_of(status))
            return
        bits = _excess(opened.preopen, status.st_mode)
        if bits and (how & _WRITES or opened.rights & abi.RIGHT_WRITE):
            os.fchmod(opened.fd, stat.S_IMODE(status.st_mode) & ~bits)
        if how & abi.O_TRUNC:
            self._content.emptied(opened)

    def _close(self, call: Call) -> int:
        fd = call.args[0]
        if fd < FIRST_DESCRIPTOR:
            return abi.SUCCESS  # the guest's streams stay: the next cell needs them
        if self.table.is_fixed(fd):
            return abi.EBADF  # and so do its folders
        opened = self.table.take(fd)
        if opened is None:
            return abi.EBADF
        self._closed(opened)
        return abi.SUCCESS

    def _closed(self, opened: Opened) -> None:
        self._listings.forget(opened)
        if opened.fd >= 0:
            os.close(opened.fd)
        if opened.held is not None:
            self._quota.closed(opened.held)
        if opened.loose and not self.table.calls(opened.loose):
            self.history.drop_unlinked(opened.loose)

    def _renumber(self, call: Call) -> int:
        old, new = call.args
        if self.table.is_fixed(old) or self.table.is_fixed(new):
            return abi.EBADF
        opened = self.table.get(old)
        if opened is None or self.table.get(new) is None:
            return abi.EBADF
        if old != new:
            replaced = self.table.take(new)
            self.table.take(old)
            self.table.put(new, opened)
            if replaced is not None:
                self._closed(replaced)
        return abi.SUCCESS

    # -- looking

    def _list(self, call: Call) -> int:
        opened = self.table.get(call.args[0])
        if opened is None or not opened.is_folder:
            return abi.EBADF
        if is_hidden_now(opened):
            return abi.ENOENT
        listing = self._listings.get(opened) if call.args[3] else None
        if listing is None:
            listing = listing_of(opened.fd, opened.preopen.hidden, len(opened.parts))
            self._listings.keep(opened, listing)
        return listing.serve(self._reach, call)

    def _describe(self, call: Call) -> int:
        fd, out = call.args
        if fd < FIRST_DESCRIPTOR:
            right = abi.RIGHT_WRITE if fd else abi.RIGHT_READ
            self._reach.write(out, _DESCRIPTION.pack(abi.UNKNOWN_TYPE, 0, right, right))
            return abi.SUCCESS
        opened = self.table.get(fd)
        if opened is None:
            return abi.EBADF
        if opened.is_folder:
            description = (abi.FOLDER_TYPE, 0, *abi.FOLDER_RIGHTS)
        else:
            rights = _rights(opened)
            description = (abi.FILE_TYPE, opened.fdflags, rights, rights)
        self._reach.write(out, _DESCRIPTION.pack(*description))
        return abi.SUCCESS

    def _look_at_open(self, call: Call) -> int:
        fd, out = call.args
        if fd < FIRST_DESCRIPTOR:
            self._reach.write(out, _STATUS.pack(*[0] * 8))
            return abi.SUCCESS
        opened = self.table.get(fd)
        if opened is None:
            return abi.EBADF
        self._reach.write(out, _packed(os.fstat(opened.fd)))
        return abi.SUCCESS

    def _look(self, call: Call) -> int:
        _, flags, _, _, out = call.args
        with self._paths.place(call, 0, 2, _following(flags)) as place:
            found = place.found()
        self._reach.write(out, _packed(found))
        return abi.SUCCESS

    def _set_times(self, call: Call) -> int:
        _, flags, _, _, accessed, changed, which = call.args
        with self._paths.place(call, 0, 2, _following(flags)) as place:
            if not place.preopen.writable:
                return abi.EPERM
            times = times_of(place.found(), accessed, changed, which)
            os.utime(place.name, ns=times, dir_fd=place.folder, follow_symlinks=False)
        return abi.SUCCESS

    def _read_link(self, call: Call) -> int:
        _, _, _, buffer, room, out = call.args
        with self._paths.place(call, 0, 1, Follow.BEFORE_SLASH) as place:
            text = os.fsencode(os.readlink(place.name, dir_fd=place.folder))[:room]
        self._reach.write(buffer, text)
        self._reach.write_word(out, len(text))
        return abi.SUCCESS

    def _preopened(self, call: Call) -> int:
        fd, out = call.args
        opened = self.table.get(fd)
        if opened is None or not self.table.is_fixed(fd):
            return abi.EBADF
        self._reach.write(out, _PREOPENED.pack(0, len(opened.preopen.guest.encode())))
        return abi.SUCCESS

    def _preopened_name(self, call: Call) -> int:
        fd, at, room = call.args
        opened = self.table.get(fd)
        if opened is None or not self.table.is_fixed(fd):
            return abi.EBADF
        name = opened.preopen.guest.encode()
        if room < len(name):
            return abi.ENAMETOOLONG
        self._reach.write(at, name)
        return abi.SUCCESS


def look_before_opening(place: Place, how: int, rights: int) -> os.stat_result | None:
    """The status of what stands at a place that is about to be opened.

    Args:
        place: The place.
        how: WASI's `oflags`.
        rights: WASI's rights.

    Raises:
        Refused: it is a pipe or a device, and opening it may do something to it; or it would be
            written to, and the guest may not write there.
    """
    found = place.status()
    if found is not None and stat.S_IFMT(found.st_mode) not in _KINDS:
        raise Refused(abi.ENOTSUP)
    if not place.preopen.writable and (how & _WRITES or rights & abi.RIGHT_WRITE):
        raise Refused(abi.EPERM)
    return found


def open_file(place: Place, how: int, rights: int, fdflags: int) -> int:
    """Opens what stands at a place, after a look; the caller closes the descriptor.

    Args:
        place: The place.
        how: WASI's `oflags`.
        rights: WASI's rights; they say whether the file is read or written.
        fdflags: WASI's `fdflags`.

    Raises:
        Refused: it is neither a file nor a folder, or does not exist for the guest.
        OSError: it can't be opened.
    """
    fd = os.open(place.name, _flags(place, how, rights, fdflags), 0o666, dir_fd=place.folder)
    try:
        kind = stat.S_IFMT(os.fstat(fd).st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFDIR):
            raise Refused(abi.ENOTSUP)
        hidden, depth = place.preopen.hidden, len(place.parts) - 1
        below = place.parts and kind == stat.S_IFDIR  # the preopened folder itself is the guest's
        if below and hidden.hides_folders and hidden.hides_folder(fd, depth):
            raise HiddenName
    except BaseException:
        os.close(fd)
        raise
    return fd


def _flags(place: Place, how: int, rights: int, fdflags: int) -> int:
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
    """Returns the flags of `os.open` for a file that is there, by WASI's rights and `fdflags`."""
    reads = bool(rights & (abi.RIGHT_READ | abi.RIGHT_READDIR))
    writes = bool(rights & abi.RIGHT_WRITE)
    flags = os.O_RDONLY if not writes else os.O_RDWR if reads else os.O_WRONLY
    return flags | os.O_APPEND if fdflags & abi.FD_APPEND else flags


def _rights(opened: Opened) -> int:
    rights = abi.FILE_RIGHTS
    if not opened.rights & abi.RIGHT_WRITE:
        return rights & ~abi.RIGHT_WRITE
    reads = opened.rights & (abi.RIGHT_READ | abi.RIGHT_READDIR)
    return rights if reads else rights & ~(abi.RIGHT_READ | abi.RIGHT_READDIR)


def _following(flags: int) -> Follow:
    return Follow.ALWAYS if flags & abi.LOOKUP_FOLLOW else Follow.BEFORE_SLASH


def _packed(found: os.stat_result) -> bytes:
    """A file's status as WASI's `filestat`; times before 1970 are 1970 to the guest."""
    kind = _TYPES.get(stat.S_IFMT(found.st_mode), abi.UNKNOWN_TYPE)
    times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    what = (found.st_dev, found.st_ino, kind, found.st_nlink, found.st_size)
    return _STATUS.pack(*what, *(max(0, time) for time in times))


def _excess(preopen: Preopen, mode: int) -> int:
    """The bits of a file's mode that it may not have once the guest can write to it.

    What the guest wrote must not run with somebody's rights. Nothing in a session's own folders is
    there to be run on the host. A mount may be somebody's project with scripts in it: there only
    set-user-id and set-group-id go.
    """
    if not stat.S_ISREG(mode):
        return 0
    return mode & (_AS_ANOTHER | (_RUNNABLE if preopen.counted else 0))


def _guarded(name: str, shadow: Shadow) -> Shadow:
    """A shadow whose refusals and errors are answers.

    Outside of the guest's folders nothing is found: programs expect a missing file to be missing.
    """

    def guarded(call: Call) -> int:
        try:
            return shadow(call)
        except Outside as outside:
            looks = name in _LOOKS or (name == "path_open" and not call.args[4] & abi.O_CREAT)
            return abi.ENOENT if looks else outside.errno
        except Refused as refused:
            return refused.errno
        except OutOfBounds:
            return abi.EFAULT
        except OSError as problem:
            return abi.errno_of(problem)
        except (OverflowError, ValueError):
            return abi.EINVAL  # a number or a name that no system call takes

    return guarded
