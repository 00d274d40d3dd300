"""Files that were open when memory was saved, opened again for an instance that gets that memory.

The saved memory speaks of descriptors by number. A new instance has none of them, so they are
opened anew: the same file, under the same number, at the same position. Where a file is gone, or
another has taken its name (deleted and made again, replaced by an editor that saves aside), a
folder that can neither be read nor written stands in, so that its use fails and the number is
never given to another file.

WASI gives the lowest free number to what is opened next, so the numbers in between are filled first
and freed again afterwards.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from wasm_kernel.engine import abi
from wasm_kernel.engine.files.opened import Opened, identity_in
from wasm_kernel.engine.files.preopens import FIRST_DESCRIPTOR, Preopens
from wasm_kernel.engine.files.view import Files
from wasm_kernel.engine.folders.identity import identity
from wasm_kernel.engine.reach import Reach
from wasm_kernel.engine.seams import SLOT, RawFunc
from wasm_kernel.record import record

SCRATCH_BYTES = abi.PATH_MAX + 64
"""Guest memory that belongs to the host: a dot, then a path, then a word that WASI answers in."""

_PATH_AT, _ANSWER_AT = 8, 8 + abi.PATH_MAX
_SET = 0


@record
class OpenFile:
    """An open file, in a form that can be written down.

    `guest` is the guest path of the preopened folder it lies in, `path` its path below that, None
    where it is not known; the rest are the arguments of `path_open`. `identity` names the file
    itself, and is empty where that does not matter.
    """

    fd: int
    guest: str
    path: str | None
    offset: int
    flags: int
    rights: int
    inheriting: int
    fdflags: int
    identity: str = ""

    def as_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def _stand_in(lost: OpenFile) -> OpenFile:
    return replace(lost, guest="/", path="", offset=0, flags=abi.O_DIRECTORY, rights=0, identity="")


class Descriptors:
    """The open files of one instance. Only the guest's thread uses it, between turns."""

    def __init__(
        self,
        files: Files,
        preopens: Preopens,
        reach: Reach,
        forwards: Mapping[str, RawFunc],
    ) -> None:
        self._files = files
        self._preopens = preopens
        self._reach = reach
        self._forwards = forwards
        self._scratch = 0

    def use_scratch(self, at: int) -> None:
        """Guest memory that belongs to the host lies at `at`; before, nothing can be saved."""
        self._scratch = at

    def save(self) -> tuple[OpenFile, ...]:
        """What is open now."""
        return tuple(self._saved(fd, opened) for fd, opened in sorted(self._files.opened().items()))

    def _saved(self, fd: int, opened: Opened) -> OpenFile:
        guest = opened.preopen.guest
        path = None if opened.parts is None else "/".join(opened.parts)
        name = opened.identify()
        if opened.loose:
            guest, path, name = self._loose(opened.loose)
        offset = self.offset(fd, self._scratch + _ANSWER_AT)
        how = (opened.flags, opened.rights, opened.inheriting, opened.fdflags)
        return OpenFile(fd, guest, path, offset, *how, name)

    def _loose(self, called: str) -> tuple[str, str, str]:
        """Where a file without a name lies, as the host opens it, and its identity."""
        workspace = next(preopen for preopen in self._preopens.all if preopen.tracked)
        return workspace.guest, called, identity(str(self._files.versions.host(called)))

    def restore(self, table: Sequence[OpenFile]) -> list[OpenFile]:
        """Open the files of a table again.

        Returns:
            Those that could not be opened; their descriptors fail when they are used.
        """
        fillers: list[int] = []
        lost = []
        for wanted in sorted(table, key=lambda file: file.fd):
            if not self._place(wanted, fillers):
                lost.append(wanted)
                self._place(_stand_in(wanted), fillers)
        for fd in fillers:
            self._call("fd_close", fd)
        return lost

    def _place(self, wanted: OpenFile, fillers: list[int]) -> bool:
        """Open a file under its number, filling the free numbers below; False where it can't be."""
        while True:
            fd = self._open(wanted)
            if fd == wanted.fd:
                if self._adopt(wanted):
                    return True
                self._call("fd_close", fd)
                return False
            if fd is None:
                return False
            fillers.append(fd)
            if fd > wanted.fd:
                return False

    def _adopt(self, wanted: OpenFile) -> bool:
        """Go on with the file under `wanted.fd`; False where it is another than it was."""
        preopen = next(p for p in self._preopens.all if p.guest == wanted.guest)
        parts = tuple(part for part in (wanted.path or "").split("/") if part)
        versions, loose = self._files.versions, self._called(wanted)
        name = identity(str(versions.host(loose))) if loose else identity_in(preopen, parts)
        twin = versions.record.first_twin
        if wanted.identity and twin(wanted.identity) != twin(name):
            return False
        how = (wanted.flags, wanted.rights, wanted.inheriting, wanted.fdflags, name)
        self._files.adopt(wanted.fd, Opened(preopen, parts, *how, loose=loose))
        if wanted.offset and not wanted.flags & abi.O_DIRECTORY:
            self._call("fd_seek", wanted.fd, wanted.offset, _SET, self._scratch + _ANSWER_AT)
        return True

    def _open(self, wanted: OpenFile) -> int | None:
        loose = self._called(wanted)
        if not loose:
            return self._open_at(wanted, wanted.path)
        versions = self._files.versions
        try:
            with versions.loose.named(loose, versions.root) as name:
                return self._open_at(wanted, name)
        except OSError:
            return None

    def _called(self, wanted: OpenFile) -> str:
        """What a file without a name is called; empty for others."""
        tracked = any(p.tracked for p in self._preopens.all if p.guest == wanted.guest)
        return self._files.versions.loose.called(wanted.path or "") if tracked else ""

    def _open_at(self, wanted: OpenFile, where_it_lies: str | None) -> int | None:
        folder = self._folder(wanted.guest)
        if folder is None or where_it_lies is None:
            return None
        path = (where_it_lies or ".").encode()
        self._reach.write(self._scratch + _PATH_AT, path)
        where, answer = self._scratch + _PATH_AT, self._scratch + _ANSWER_AT
        how = (wanted.flags, wanted.rights, wanted.inheriting, wanted.fdflags)
        if self._call("path_open", folder, 0, where, len(path), *how, answer):
            return None
        return self._reach.read_word(answer)

    def _folder(self, guest: str) -> int | None:
        for index, preopen in enumerate(self._preopens.all):
            if preopen.guest == guest:
                return FIRST_DESCRIPTOR + index
        return None

    def offset(self, fd: int, at: int) -> int:
        """The position of a descriptor; `at` is guest memory for the answer."""
        if self._call("fd_tell", fd, at):
            return 0
        return int.from_bytes(self._reach.read(at, 8), "little")

    def _call(self, name: str, *args: int) -> int:
        slots = (ctypes.c_uint64 * (2 * len(args)))()
        for index, value in enumerate(args):
            slots[index * SLOT // 8] = value
        if self._forwards[name](ctypes.addressof(slots), len(args)):
            return abi.EIO
        return slots[0] & 0xFFFFFFFF
