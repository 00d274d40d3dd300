"""Copying up: before a change of an overlay, the upper folder gets a file of the lower one.

A file is copied under a name that the overlay does not show, holes as holes, and then gets its own
name, so no reader sees half of it. The copy belongs to the session: it counts against the quota,
and an earlier state of the session's files is without it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat

from wasm_kernel.linux.files import FileCopier
from wasm_kernel.linux.folders import READ, Folder, closing_fd
from wasm_kernel.linux.locks import try_lock
from wasm_kernel.linux.task import Cancelled, OfCell
from wasm_kernel.wasi_files.bookkeeping import Bookkeeping, NameInFolder, status_at
from wasm_kernel.wasi_files.file_history import Change
from wasm_kernel.wasi_files.preopens import COVER, GuestOSError

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""The flags for making a new file."""
_PART = f"{COVER}{COVER}part"  # covers nothing: no name of the overlay begins with `.wh.`


def make_folder(books: Bookkeeping, place: NameInFolder) -> None:
    """Makes a folder of the lower layer in the upper one, unless another process was faster."""
    with contextlib.suppress(FileExistsError):
        books.make(place, lambda: os.mkdir(place.name, dir_fd=place.folder))


def remove(books: Bookkeeping, place: NameInFolder) -> None:
    """Removes a file of the upper folder that the overlay does not show."""
    before = os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
    books.history.before_change(place.path, place.folder, place.name, before, Change.END)
    os.unlink(place.name, dir_fd=place.folder)
    books.quota.removed(before)
    books.history.after_removal(place.path)


def copy_file(books: Bookkeeping, lower: int, place: NameInFolder, *, content: bool) -> None:
    """Copies a file of the lower folder `lower` to a place; without `content`, an empty one."""
    with closing_fd(os.open(place.name, READ, dir_fd=lower)) as source:
        found = os.fstat(source)
        if not stat.S_ISREG(found.st_mode):
            raise GuestOSError(errno.ENOTSUP)
        size = found.st_size if content else 0
        books.make(place, lambda: _copy(books, source, found, place, size), size)


def _copy(
    books: Bookkeeping, source: int, found: os.stat_result, place: NameInFolder, size: int
) -> None:
    part, target = _new_part(books, place)
    try:
        if size:
            FileCopier(OfCell(books.should_stop)).copy(source, target, size)
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
        if status_at(place.folder, place.name) is None:
            os.rename(part, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
        else:  # another kernel of this session was faster, and may have changed it
            os.unlink(part, dir_fd=place.folder)
    except BaseException as problem:
        os.unlink(part, dir_fd=place.folder)
        if isinstance(problem, Cancelled):
            raise GuestOSError(errno.EINTR) from None
        raise
    finally:
        os.close(target)


def _new_part(books: Bookkeeping, place: NameInFolder) -> tuple[str, int]:
    """Makes a locked file for a copy, which no kernel removes; returns its name and descriptor."""
    for number in itertools.count():
        name = f"{_PART}{number or ''}"
        try:
            target = os.open(name, NEW, 0o666, dir_fd=place.folder)
        except FileExistsError:
            part = NameInFolder(place.preopen, place.folder, name, (*place.parts[:-1], name))
            with contextlib.suppress(OSError):  # for a folder, or another kernel's: the next name
                _remove_abandoned(books, part)
            continue
        with contextlib.suppress(OSError):
            if _locks(target) and Folder(place.folder).has(name, target):
                return name, target
        os.close(target)  # another kernel has just taken it for an abandoned one
    raise AssertionError("numbers have no end")


def _remove_abandoned(books: Bookkeeping, part: NameInFolder) -> None:
    """Removes a file that a killed kernel left, or that the guest made and may have open."""
    with closing_fd(os.open(part.name, READ, dir_fd=part.folder)) as left:
        if try_lock(left):
            remove(books, part)


def _locks(target: int) -> bool:
    try:
        return try_lock(target)
    except OSError:
        return True  # this file system has no locks
