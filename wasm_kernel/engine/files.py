"""What the guest sees of the disk: wasmtime's own file calls, looked at on their way.

wasmtime keeps a guest inside its preopened folders. On top of that, each call that names a path is
read here: names that do not exist for the guest are answered with ENOENT, paths below a mount are
led to it, and what changed in the workspace is noted.

Between the look and wasmtime's own act nothing of the guest runs (it has one thread). Another
process that swaps a link at that moment could show the guest one of the hidden names; it could not
lead it out of its folders, which wasmtime holds by descriptor.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from wasm_kernel.engine import abi
from wasm_kernel.engine.changes import Changes
from wasm_kernel.engine.identity import identity
from wasm_kernel.engine.listing import fill
from wasm_kernel.engine.names import HiddenName, is_hidden, lexical, resolve
from wasm_kernel.engine.preopens import FIRST_DESCRIPTOR, Preopen, Preopens
from wasm_kernel.engine.reach import Reach
from wasm_kernel.engine.shadow import Call, Shadow


@dataclass
class Opened:
    """A descriptor of the guest: the folder it came from, its parts below that, if known, and how
    it was opened (`flags`, `rights`, `inheriting` and `fdflags` of `path_open`).

    `identity` names the file itself, in a folder where another can take its name (`identity.py`).
    """

    preopen: Preopen
    parts: tuple[str, ...] | None
    flags: int = 0
    rights: int = 0
    inheriting: int = 0
    fdflags: int = 0
    identity: str = ""

    @property
    def path(self) -> str | None:
        """The workspace path of a tracked file, or None."""
        if not self.preopen.tracked or self.parts is None:
            return None
        return "/".join(self.parts)


@dataclass(frozen=True)
class Place:
    """Where a path argument leads, links at its end followed or not as the call asks."""

    preopen: Preopen
    parts: tuple[str, ...] | None

    @property
    def path(self) -> str | None:
        """The workspace path, or None where changes are not recorded."""
        if not self.preopen.tracked or self.parts is None:
            return None
        return "/".join(self.parts)

    def exists(self) -> bool:
        """Whether something is there now."""
        if self.parts is None:
            return True
        return os.path.lexists("/".join([str(self.preopen.host), *self.parts]))


def identity_in(preopen: Preopen, parts: tuple[str, ...] | None) -> str:
    """Names the file at a place; empty where files are not replaced, or nothing is known."""
    if not preopen.writable or not parts:
        return ""
    return identity("/".join([str(preopen.host), *parts]))


class _Refused(Exception):
    def __init__(self, errno: int) -> None:
        self.errno = errno


class Files:
    """The file calls of one instance. Only the guest's thread uses it.

    It holds the descriptor table as far as it must know it. `dot` is the address of a guest byte
    that holds a dot, for a path that names a mount itself.
    """

    def __init__(self, preopens: Preopens, reach: Reach, changes: Changes, open_files: int) -> None:
        self._preopens = preopens
        self._reach = reach
        self._changes = changes
        self._open_files = open_files
        self.dot = 0
        self._root = preopens.root
        self._opened = {FIRST_DESCRIPTOR + i: Opened(p, ()) for i, p in enumerate(preopens.all)}
        self._fixed = len(self._opened)

    def shadows(self) -> dict[str, Shadow]:
        """The calls, by WASI's name."""
        plain: dict[str, Callable[[Call], int]] = {
            "fd_close": self._close,
            "fd_pwrite": self._write,
            "fd_filestat_set_size": self._write,
            "fd_readdir": self._list,
            "path_open": self._open,
            "path_create_directory": self._look(0),
            "path_filestat_get": self._look(0, flags=1, path=2),
            "path_filestat_set_times": self._look(0, flags=1, path=2),
            "path_readlink": self._look(0),
            "path_remove_directory": self._look(0),
            "path_unlink_file": self._unlink,
            "path_link": self._link,
            "path_rename": self._rename,
            "path_symlink": self._symlink,
        }
        return {name: self._guarded(shadow) for name, shadow in plain.items()}

    def opened(self) -> dict[int, Opened]:
        """What the guest has open besides its folders, by descriptor."""
        return {fd: o for fd, o in self._opened.items() if fd >= FIRST_DESCRIPTOR + self._fixed}

    def adopt(self, fd: int, opened: Opened) -> None:
        """The host opened a file for the guest under this descriptor."""
        self._opened[fd] = opened

    def write(self, call: Call) -> int:
        """`fd_write` for anything but the two streams."""
        return self._write(call)

    def _guarded(self, shadow: Shadow) -> Shadow:
        def guarded(call: Call) -> int:
            try:
                return shadow(call)
            except HiddenName:
                return abi.ENOENT
            except _Refused as refused:
                return refused.errno

        return guarded

    def _place(self, call: Call, fd_at: int, path_at: int, *, follow: bool) -> Place:
        """Read a path argument, lead it to its mount, and find out where it ends."""
        fd, at, length = call.args[fd_at], call.args[path_at], call.args[path_at + 1]
        path = self._text(at, length)
        if fd == self._root:
            found = self._preopens.mount_of(path)
            if found is not None:
                mount, used = found
                fd, path = self._preopens.descriptor(mount), path[used:]
                used_bytes = length - len(path.encode())
                call.replace(fd_at, fd)
                call.replace(path_at, at + used_bytes if path else self.dot)
                call.replace(path_at + 1, len(path.encode()) or 1)
        opened = self._opened.get(fd)
        if opened is None:
            raise _Refused(abi.EBADF)
        if opened.parts is None:
            return Place(opened.preopen, None)
        if not opened.preopen.writable:
            return Place(opened.preopen, lexical(opened.parts, path))
        parts = resolve(
            opened.preopen.host,
            opened.parts,
            path,
            follow=follow,
            guarded=opened.preopen.tracked,
        )
        return Place(opened.preopen, parts)

    def _text(self, at: int, length: int) -> str:
        if length > abi.PATH_MAX:
            raise _Refused(abi.ENAMETOOLONG)
        try:
            text = self._reach.read(at, length).decode("utf-8")
        except UnicodeDecodeError:
            raise _Refused(abi.EILSEQ) from None
        if "\0" in text:
            raise _Refused(abi.EINVAL)
        return text

    def _look(self, fd_at: int, *, flags: int | None = None, path: int = 1) -> Shadow:
        def shadow(call: Call) -> int:
            follow = flags is not None and bool(call.args[flags] & abi.LOOKUP_FOLLOW)
            place = self._place(call, fd_at, path, follow=follow)
            answer = call.forward()
            return answer if flags is None else _found(place, answer)

        return shadow

    def _open(self, call: Call) -> int:
        if len(self._opened) - self._fixed >= self._open_files:
            raise _Refused(abi.EMFILE)
        _, flags, _, _, how, rights, inheriting, fdflags, out = call.args
        place = self._place(call, 0, 2, follow=bool(flags & abi.LOOKUP_FOLLOW))
        path = place.path
        was_there = path is None or not how & abi.O_CREAT or place.exists()
        answer = call.forward()
        if answer != abi.SUCCESS:
            return answer if how & abi.O_CREAT else _found(place, answer)
        self._opened[self._reach.read_word(out)] = Opened(
            place.preopen,
            place.parts,
            how & abi.O_DIRECTORY,
            rights,
            inheriting,
            fdflags,
            identity_in(place.preopen, place.parts),
        )
        if path is not None and not was_there:
            self._changes.made(path)
        if path is not None and how & abi.O_TRUNC and rights & abi.RIGHT_WRITE:
            self._changes.wrote(path)
        return answer

    def _close(self, call: Call) -> int:
        fd = call.args[0]
        if fd < FIRST_DESCRIPTOR:
            return abi.SUCCESS  # the guest's streams stay: the next cell needs them
        if fd < FIRST_DESCRIPTOR + self._fixed:
            return abi.EBADF  # and so do its folders
        answer = call.forward()
        if answer == abi.SUCCESS:
            self._opened.pop(fd, None)
        return answer

    def _write(self, call: Call) -> int:
        answer = call.forward()
        opened = self._opened.get(call.args[0])
        if answer == abi.SUCCESS and opened is not None and opened.path is not None:
            self._changes.wrote(opened.path)
        return answer

    def _unlink(self, call: Call) -> int:
        path = self._place(call, 0, 1, follow=False).path
        answer = call.forward()
        if answer == abi.SUCCESS and path is not None:
            self._changes.removed(path)
        return answer

    def _link(self, call: Call) -> int:
        self._place(call, 0, 2, follow=bool(call.args[1] & abi.LOOKUP_FOLLOW))
        return self._made(call, self._place(call, 4, 5, follow=False))

    def _symlink(self, call: Call) -> int:
        target = self._text(call.args[0], call.args[1])
        if any(is_hidden(part) for part in target.split("/")):
            raise _Refused(abi.ENOENT)
        return self._made(call, self._place(call, 2, 3, follow=False))

    def _made(self, call: Call, place: Place) -> int:
        answer = call.forward()
        if answer == abi.SUCCESS and place.path is not None:
            self._changes.made(place.path)
        return answer

    def _rename(self, call: Call) -> int:
        old = self._place(call, 0, 1, follow=False)
        new = self._place(call, 3, 4, follow=False)
        replaced = new.exists()
        answer = call.forward()
        if answer != abi.SUCCESS:
            return answer
        self._move_opened(old, new)
        if old.path is not None and new.path is not None and old.path != new.path:
            self._changes.renamed(new.preopen.host, old.path, new.path, replaced=replaced)
        elif old.path is not None and new.path is None:
            self._changes.removed(old.path)
        elif new.path is not None and old.path is None:
            self._changes.made(new.path)
        return answer

    def _move_opened(self, old: Place, new: Place) -> None:
        if old.parts is None:
            return
        depth = len(old.parts)
        for opened in self._opened.values():
            if opened.parts and opened.preopen is old.preopen and opened.parts[:depth] == old.parts:
                tail = opened.parts[depth:]
                opened.preopen = new.preopen
                opened.parts = None if new.parts is None else new.parts + tail

    def _list(self, call: Call) -> int:
        opened = self._opened.get(call.args[0])
        if opened is None or not opened.preopen.tracked or opened.parts != ():
            return call.forward()
        return fill(self._reach, call)


def _found(place: Place, answer: int) -> int:
    """The answer to a look-up; outside the guest's folders there is nothing to be found.

    wasmtime forbids such a path instead, but programs expect a missing file to be missing.
    """
    outside = place.parts is None and answer == abi.EPERM
    return abi.ENOENT if outside else answer
