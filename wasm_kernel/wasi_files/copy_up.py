"""Copying up, before a change to an overlay: the upper folder gets a file of the lower one.

A file is copied under a name that the overlay does not show, holes as holes, and then gets its own
name, so no reader sees half of it. The copy belongs to the session: it counts against the quota,
and an earlier state of the session's files is without it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Callable

from wasm_kernel.engine import abi
from wasm_kernel.linux.files import FileCopier
from wasm_kernel.linux.folders import READ, closing_fd
from wasm_kernel.linux.locks import try_lock
from wasm_kernel.linux.task import Cancelled
from wasm_kernel.wasi_files.file_calls import FileCalls
from wasm_kernel.wasi_files.file_history import Change
from wasm_kernel.wasi_files.listing import read_folder
from wasm_kernel.wasi_files.overlay import OverlayPath
from wasm_kernel.wasi_files.path_walk import GuestPath
from wasm_kernel.wasi_files.preopens import COVER, NOTHING_HIDDEN, Refused, is_cover
from wasm_kernel.wasi_files.quota import key_of

_PART = f"{COVER}{COVER}part"  # covers nothing: no name of the overlay begins with `.wh.`
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class _Wanted:
    """A copy that goes on until the cell must stop: a `Task`."""

    def __init__(self, should_stop: Callable[[], bool]) -> None:
        self._should_stop = should_stop

    @property
    def cancelled(self) -> bool:
        return self._should_stop()

    def report(self, text: str) -> None:
        """Does nothing."""


def make_way(calls: FileCalls, place: GuestPath) -> None:
    """Makes the folders in the upper folder that lead to a place."""
    if isinstance(place, OverlayPath):
        if place.in_lower:
            raise Refused(abi.EEXIST)
        place.lift(lambda folder, name, path: _make_folder(calls, folder, name, path))


def lift(calls: FileCalls, place: GuestPath, *, content: bool = True) -> None:
    """Copies the file or folder at a place to the upper folder, if only the lower one has it.

    Without `content` the copy of a file is empty.
    """
    if not isinstance(place, OverlayPath):
        return
    in_lower, lower = place.in_lower, place.folder
    before = place.required_status() if in_lower else None
    place.lift(lambda folder, name, path: _make_folder(calls, folder, name, path))
    if before is None or place.name == ".":
        return
    path = "/".join(place.parts)
    if stat.S_ISDIR(before.st_mode):
        _make_folder(calls, place.folder, place.name, path)
        return
    calls.history.before_creation(path)
    try:
        if stat.S_ISLNK(before.st_mode):
            calls.quota.reserve(1)
            os.symlink(os.readlink(place.name, dir_fd=lower), place.name, dir_fd=place.folder)
            size = 0
        else:
            size = _copy(calls, lower, place, content=content)
    except BaseException:
        calls.history.after_removal(path)
        raise
    calls.quota.added(1, size)
    calls.changes.created(path, key_of(place.required_status()))


def cover(calls: FileCalls, place: GuestPath) -> None:
    """Covers the lower folder's file at a place; does nothing if it shows none there."""
    if not isinstance(place, OverlayPath) or place.beneath is None or place.name == ".":
        return
    if place.in_lower:
        place.lift(lambda folder, name, path: _make_folder(calls, folder, name, path))
    name = COVER + place.name
    path = "/".join((*place.parts[:-1], name))
    calls.quota.reserve(1)
    calls.history.before_creation(path)
    calls.changes.covered("/".join(place.parts))
    try:
        os.close(os.open(name, _NEW, 0o666, dir_fd=place.folder))
    except FileExistsError:
        return  # another process was faster
    except OSError:
        calls.history.after_removal(path)
        raise
    calls.quota.added(1)


def clear_covers(calls: FileCalls, place: GuestPath) -> None:
    """Removes the covers in a folder that is empty for the guest, so that it can be removed."""
    if not isinstance(place, OverlayPath) or place.name == ".":
        return
    if next(place.entries(calls.check_time), None) is not None:
        raise Refused(abi.ENOTEMPTY)
    if place.in_lower:
        return
    path = "/".join(place.parts)
    with closing_fd(os.open(place.name, READ | os.O_DIRECTORY, dir_fd=place.folder)) as folder:
        names = [entry.name for entry in read_folder(folder, NOTHING_HIDDEN, 0)]
        for name in filter(is_cover, names):
            with contextlib.suppress(FileNotFoundError):
                _remove(calls, folder, name, f"{path}/{name}")


def _remove(calls: FileCalls, folder: int, name: str, path: str) -> None:
    before = os.stat(name, dir_fd=folder, follow_symlinks=False)
    calls.history.before_change(path, folder, name, before, Change.END)
    os.unlink(name, dir_fd=folder)
    calls.quota.removed(before)
    calls.history.after_removal(path)


def _make_folder(calls: FileCalls, folder: int, name: str, path: str) -> None:
    """Makes a folder of the lower layer in the upper one, unless another process was faster."""
    calls.quota.reserve(1)
    calls.history.before_creation(path)
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
        calls.quota.added(1)


def _copy(calls: FileCalls, lower: int, place: OverlayPath, *, content: bool) -> int:
    """Copies a file of the lower folder; returns its size."""
    with closing_fd(os.open(place.name, READ, dir_fd=lower)) as source:
        found = os.fstat(source)
        if not stat.S_ISREG(found.st_mode):
            raise Refused(abi.ENOTSUP)
        size = found.st_size if content else 0
        calls.quota.reserve(1, size)
        part, target = _new_part(calls, place)
        try:
            if size:
                FileCopier(_Wanted(calls.should_stop)).copy(source, target, size)
            os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
            if place.status() is not None:
                os.unlink(part, dir_fd=place.folder)
                return 0  # another kernel of this session was faster, and may have changed it
            os.rename(part, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
            return os.fstat(target).st_size
        except BaseException as problem:
            os.unlink(part, dir_fd=place.folder)
            if isinstance(problem, Cancelled):
                raise Refused(abi.EINTR) from None
            raise
        finally:
            os.close(target)


def _new_part(calls: FileCalls, place: OverlayPath) -> tuple[str, int]:
    """Makes a file for a copy, locked so that no other kernel removes it.

    Returns its name and its descriptor.
    """
    for number in itertools.count():
        name = f"{_PART}{number or ''}"
        try:
            target = os.open(name, _NEW, 0o666, dir_fd=place.folder)
        except FileExistsError:
            with contextlib.suppress(OSError):  # for a folder, or another kernel's: the next name
                _remove_abandoned(calls, place, name)
            continue
        with contextlib.suppress(OSError):
            locked = _locks(target)
            there = os.stat(name, dir_fd=place.folder, follow_symlinks=False)
            if locked and os.path.samestat(there, os.fstat(target)):
                return name, target
        os.close(target)  # another kernel has just taken it for an abandoned one
    raise AssertionError("numbers have no end")


def _remove_abandoned(calls: FileCalls, place: OverlayPath, name: str) -> None:
    """Removes a file that a killed kernel left, or that the guest made and may have open."""
    with closing_fd(os.open(name, READ, dir_fd=place.folder)) as left:
        if try_lock(left):
            _remove(calls, place.folder, name, "/".join((*place.parts[:-1], name)))


def _locks(target: int) -> bool:
    try:
        return try_lock(target)
    except OSError:
        return True  # this file system has no locks
