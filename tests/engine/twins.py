"""The same file operations twice: by a guest in its workspace, and by this process in a copy of it
without the host's own names.

An operation that the guest is refused must change nothing, so it is skipped in the copy; the others
must have the same results in both. So both trees are equal at the end.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine.tiny import APP, FOLLOW, RIGHTS, Guest
from wasm_kernel.engine import abi
from wasm_kernel.wasi_files.preopens import is_hidden_name

OLD = 1_000_000_000 * 10**9  # the time of change of every file before a sequence
READ, WRITE = 2 | 1 << 14, abi.RIGHT_WRITE
SLOTS = 3

Answer = tuple[str, Any]


@dataclass(frozen=True)
class Open:
    """Opens into a slot; a path begins at the folder that is open in `slot`, or in `/app`."""

    into: int
    slot: int | None
    path: str
    how: int
    rights: int
    append: bool
    follow: bool


@dataclass(frozen=True)
class OnPath:
    """An operation `what` with one path: mkdir, rmdir, unlink, readlink, stat, list."""

    what: str
    slot: int | None
    path: str


@dataclass(frozen=True)
class OnTwo:
    """A rename or a link: an operation on two paths."""

    what: str
    slot: int | None
    path: str
    slot_new: int | None
    new: str


@dataclass(frozen=True)
class Symlink:
    target: str
    slot: int | None
    path: str


@dataclass(frozen=True)
class OnOpen:
    """write, pwrite, truncate, seek, read, close or list, on the open file of a slot."""

    what: str
    slot: int
    number: int = 0
    data: bytes = b""


Operation = Open | OnPath | OnTwo | Symlink | OnOpen
CHANGES: dict[str, tuple[str, Callable[..., None]]] = {
    "mkdir": ("path_create_directory", os.mkdir),
    "rmdir": ("path_remove_directory", os.rmdir),
    "unlink": ("path_unlink_file", os.unlink),
}
ON_OPEN: dict[str, Callable[[int, OnOpen], Any]] = {
    "write": lambda fd, op: os.write(fd, op.data),
    "pwrite": lambda fd, op: os.pwrite(fd, op.data, op.number),
    "truncate": lambda fd, op: os.ftruncate(fd, op.number),
    "seek": lambda fd, op: (os.lseek(fd, op.number, os.SEEK_SET), None)[1],
    "read": lambda fd, _: os.read(fd, 100),
    "list": lambda fd, _: sorted(os.listdir(fd)),  # noqa: PTH208 - a descriptor
    "close": lambda fd, _: os.close(fd),
}


class GuestSide:
    """The operations as WASI calls."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self.slots: dict[int, int] = {}

    def do(self, op: Operation) -> Answer:
        """Does an operation; returns `ok` and a value, or `error` and a number."""
        errno, value = self._do(op)
        return ("ok", value) if errno == abi.SUCCESS else ("error", errno)

    def close(self) -> None:
        for slot in list(self.slots):
            self.do(OnOpen("close", slot))

    def _fd(self, slot: int | None) -> int:
        return APP if slot is None else self.slots.get(slot, 77)

    def _do(self, op: Operation) -> tuple[int, Any]:
        guest = self.guest
        match op:
            case Open():
                return self._open(op)
            case Symlink(target, slot, path):
                return guest.symlink(target, path, fd=self._fd(slot)), None
            case OnTwo("rename", slot, path, slot_new, new):
                return guest.rename(path, new, fd=self._fd(slot), to=self._fd(slot_new)), None
            case OnTwo(_, slot, path, slot_new, new):
                return guest.link(path, new, fd=self._fd(slot), to=self._fd(slot_new)), None
            case OnPath():
                return self._on_path(op)
        return self._on_open(op)

    def _open(self, op: Open) -> tuple[int, Any]:
        guest = self.guest
        if op.into in self.slots:
            self.do(OnOpen("close", op.into))
        at = (self._fd(op.slot), FOLLOW * op.follow, *guest.text(op.path))
        how = (op.how, op.rights, RIGHTS, abi.FD_APPEND * op.append, 64)
        errno = guest.call("path_open", *at, *how)
        if errno == abi.SUCCESS:
            self.slots[op.into] = guest.instance.memory.read_word(64)
        return errno, None

    def _on_path(self, op: OnPath) -> tuple[int, Any]:
        guest, fd = self.guest, self._fd(op.slot)
        at = (fd, *guest.text(op.path))
        if op.what in CHANGES:
            return guest.call(CHANGES[op.what][0], *at), None
        if op.what == "readlink":
            errno = guest.call("path_readlink", *at, 65_536, 4096, 64)
            return errno, None if errno else guest.answer(64).decode()
        errno = guest.call("path_filestat_get", fd, 0, *at[1:], 64)
        kind, size = struct.unpack("<16xB15xQ", guest.instance.memory.read(64, 40))
        return errno, (kind, size if kind == 4 else 0)

    def _on_open(self, op: OnOpen) -> tuple[int, Any]:
        guest, fd = self.guest, self._fd(op.slot)
        reach = guest.instance.memory
        match op.what:
            case "write":
                errno = guest.write(fd, op.data)
                return errno, None if errno else reach.read_word(96)
            case "pwrite":
                reach.write(64, struct.pack("<II", *guest.text(op.data)))
                errno = guest.call("fd_pwrite", fd, 64, 1, op.number, 96)
                return errno, None if errno else reach.read_word(96)
            case "truncate":
                return guest.call("fd_filestat_set_size", fd, op.number), None
            case "seek":
                return guest.call("fd_seek", fd, op.number, 0, 64), None
            case "read":
                reach.write(64, struct.pack("<II", 65_536, 100))
                errno = guest.call("fd_read", fd, 64, 1, 96)
                return errno, None if errno else guest.answer(96)
            case "list":
                errno, _ = guest.read_folder(fd, 4096)
                return errno, None if errno else sorted(guest.names(fd))
            case _:
                self.slots.pop(op.slot, None)
                return guest.call("fd_close", fd) if fd != 77 else abi.EBADF, None


class NativeSide:
    """The operations as calls of this process."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, os.O_RDONLY)
        self.slots: dict[int, int] = {}

    def do(self, op: Operation) -> Answer:
        """Does an operation; returns `ok` and a value, or `error` and a number."""
        try:
            return "ok", self._do(op)
        except OSError as problem:
            return "error", problem.errno

    def empty(self, slot: int) -> None:
        """Closes a slot."""
        if slot in self.slots:
            os.close(self.slots.pop(slot))

    def close(self) -> None:
        for fd in [self._root, *self.slots.values()]:
            os.close(fd)

    def _fd(self, slot: int | None) -> int:
        return self._root if slot is None else self.slots.get(slot, 9999)

    def _do(self, op: Operation) -> Any:
        match op:
            case Open():
                return self._open(op)
            case Symlink(target, slot, path):
                return os.symlink(target, path, dir_fd=self._fd(slot))
            case OnTwo(what, slot, path, slot_new, new):
                fds = {"src_dir_fd": self._fd(slot), "dst_dir_fd": self._fd(slot_new)}
                if what == "rename":
                    return os.rename(path, new, **fds)  # noqa: PTH104 - by descriptors
                return os.link(path, new, **fds, follow_symlinks=False)
            case OnPath():
                return self._on_path(op)
        return self._on_open(op)

    def _open(self, op: Open) -> None:
        self.empty(op.into)
        writes = op.rights & WRITE
        reads = op.rights & READ or not writes
        flags = (os.O_RDWR if reads else os.O_WRONLY) if writes else os.O_RDONLY
        for bit, flag in (
            (abi.O_CREAT, os.O_CREAT),
            (abi.O_EXCL, os.O_EXCL if op.how & abi.O_CREAT else 0),
            (abi.O_TRUNC, os.O_TRUNC),
            (abi.O_DIRECTORY, os.O_DIRECTORY),
        ):
            flags |= flag if op.how & bit else 0
        flags |= 0 if op.follow else os.O_NOFOLLOW
        flags |= os.O_APPEND if op.append else 0
        self.slots[op.into] = os.open(op.path, flags, 0o666, dir_fd=self._fd(op.slot))

    def _on_path(self, op: OnPath) -> Any:
        fd = self._fd(op.slot)
        if op.what in CHANGES:
            return CHANGES[op.what][1](op.path, dir_fd=fd)
        if op.what == "readlink":
            return os.readlink(op.path, dir_fd=fd)
        found = os.stat(op.path, dir_fd=fd, follow_symlinks=False)
        kind = {stat.S_IFREG: 4, stat.S_IFDIR: 3}.get(stat.S_IFMT(found.st_mode), 7)
        return kind, found.st_size if kind == 4 else 0

    def _on_open(self, op: OnOpen) -> Any:
        fd = self._fd(op.slot)
        if op.what == "close":
            self.slots.pop(op.slot, None)
        return ON_OPEN[op.what](fd, op)


def paths_of(op: Operation) -> list[str]:
    """Every path in an operation, also a new link's text."""
    match op:
        case OnTwo():
            return [op.path, op.new]
        case Symlink():
            return [op.target, op.path]
        case OnOpen():
            return []
    return [op.path]


Snapshot = dict[str, tuple[int, int, str, bytes]]


def snapshot(root: Path) -> Snapshot:
    """Every file and link by its path: number, time of change, kind and content."""
    found: Snapshot = {}
    for path in _below(root):
        status = path.lstat()
        if path.is_symlink():
            found[str(path.relative_to(root))] = (
                *_mark(status),
                "link",
                str(path.readlink()).encode(),
            )
        elif path.is_file():
            found[str(path.relative_to(root))] = (*_mark(status), "file", path.read_bytes())
    return found


def _mark(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns


def _below(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        if not is_hidden_name(path.name):
            yield path
            if path.is_dir() and not path.is_symlink():
                yield from sorted(path.rglob("*"))


def shape(root: Path) -> dict[str, tuple[str, bytes, tuple[str, ...]]]:
    """A tree by its paths: kind, content, and the other names of each file."""
    names: dict[int, list[str]] = {}
    files = snapshot(root)
    for path, (number, _, _, _) in files.items():
        names.setdefault(number, []).append(path)
    found = {
        path: (kind, content, tuple(names[number]))
        for path, (number, _, kind, content) in files.items()
    }
    for place in _below(root):
        if place.is_dir() and not place.is_symlink():
            found[str(place.relative_to(root))] = ("folder", b"", ())
    return found


def compared(before: Snapshot, after: Snapshot) -> tuple[set[str], set[str], set[str]]:
    """The created, modified and deleted files, by comparing two snapshots of the whole tree."""
    created, deleted = set(after) - set(before), set(before) - set(after)
    modified = {path for path in set(before) & set(after) if before[path][:2] != after[path][:2]}
    modified |= {path for path in created if after[path][2] == "file" and after[path][3]}
    return created, modified, deleted


def build(root: Path, *, hidden: bool) -> None:
    """Makes a small tree in an emptied folder, with `hidden` names if asked for."""
    for path in root.iterdir():
        remove(path)
    plant(root)
    if hidden:
        (root / ".metadata.json").write_text("secret")


def plant(root: Path) -> None:
    """A small tree with links of every kind in it."""
    (root / "d" / "e").mkdir(parents=True)
    for path in ("a", "b", "d/a", "d/e/x"):
        (root / path).write_text(f"content of {path}")
    (root / "empty").touch()
    (root / "d" / "twin").hardlink_to(root / "b")
    links = {"here": ".", "d/up": "..", "way": "d/a", "d/e/top": "../..", "ring": "ring"}
    for path, target in links.items():
        (root / path).symlink_to(target)


def age(root: Path) -> None:
    """Sets an old time of change for every file, so that later changes show."""
    for path in _below(root):
        os.utime(path, ns=(OLD, OLD), follow_symlinks=False)


def remove(path: Path) -> None:
    """Removes a file, or a folder with everything in it."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)
