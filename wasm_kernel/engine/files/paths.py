"""From a path argument of a call to the place it leads to."""

from __future__ import annotations

from wasm_kernel.engine import abi
from wasm_kernel.engine.files.names import lexical, resolve
from wasm_kernel.engine.files.opened import Place, Table
from wasm_kernel.engine.files.preopens import Preopens
from wasm_kernel.engine.files.refused import Refused
from wasm_kernel.engine.reach import Reach
from wasm_kernel.engine.shadow import Call


class Outside(Refused):
    """A path leaves the folders of the guest."""

    errno = abi.EPERM


class Paths:
    """The path arguments of one guest's calls. Only the guest's thread uses it.

    `dot` is the address of a guest byte that holds a dot, for a path that names a mount itself.
    """

    def __init__(self, preopens: Preopens, reach: Reach, table: Table) -> None:
        self._preopens = preopens
        self._reach = reach
        self._table = table
        self._root = preopens.root
        self.dot = 0

    def place(self, call: Call, fd_at: int, path_at: int, *, follow: bool = False) -> Place:
        """Read a path argument, lead it to its mount, and find out where it ends.

        Raises:
            Refused: there is no such path for the guest.
        """
        fd, at, length = call.args[fd_at], call.args[path_at], call.args[path_at + 1]
        path = self.text(at, length)
        if fd == self._root:
            found = self._preopens.mount_of(path)
            if found is not None:
                mount, used = found
                fd, path = self._preopens.descriptor(mount), path[used:]
                used_bytes = length - len(path.encode())
                call.replace(fd_at, fd)
                call.replace(path_at, at + used_bytes if path else self.dot)
                call.replace(path_at + 1, len(path.encode()) or 1)
        return self._from(fd, path, follow)

    def _from(self, fd: int, path: str, follow: bool) -> Place:
        opened = self._table.by_number.get(fd)
        if opened is None:
            raise Refused(abi.EBADF)
        preopen = opened.preopen
        if preopen.bundled:
            return Place(preopen, None if opened.parts is None else lexical(opened.parts, path))
        if opened.parts is None or opened.gone:
            raise Refused(abi.ENOENT)
        hiding = preopen.tracked
        parts = resolve(preopen.host, opened.parts, path, follow=follow, guarded=hiding)
        if parts is None:
            raise Outside
        return Place(preopen, parts)

    def text(self, at: int, length: int) -> str:
        """A path, or what a link is to hold.

        Raises:
            Refused: it is none.
        """
        if length > abi.PATH_MAX:
            raise Refused(abi.ENAMETOOLONG)
        try:
            text = self._reach.read(at, length).decode("utf-8")
        except UnicodeDecodeError:
            raise Refused(abi.EILSEQ) from None
        if "\0" in text:
            raise Refused(abi.EINVAL)
        return text
