"""What the guest has open."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wasm_kernel.engine import abi
from wasm_kernel.linux.files import open_file_identity
from wasm_kernel.wasi_files.preopens import FIRST_DESCRIPTOR, Preopen, Preopens
from wasm_kernel.wasi_files.quota import Held, Key, key_of
from wasm_kernel.wasi_files.refused import Refused

if TYPE_CHECKING:
    from wasm_kernel.wasi_files.paths import Place

Parts = tuple[str, ...]
_ANOTHER = "another"  # an identity that no file has


@dataclass(eq=False)
class Opened:
    """A descriptor of the guest: where it lies, and how it was opened (`flags`, `rights`,
    `inheriting` and `fdflags` of `path_open`).

    Attributes:
        preopen: The folder of the guest's that it lies in.
        parts: The names that lead there below that folder. They are a label: what is done with an
            open file is done through `fd`.
        fd: The host's descriptor, -1 for a file that could not be opened again.
        key: What tells the file from others; None for a preopened folder.
        identity: What tells it even from later ones (`linux/files.py`).
        held: Its length, if that counts.
        gone: Whether it has lost its name.
        loose: What it is called if it has lost its last name (`FileHistory`).
    """

    preopen: Preopen
    parts: Parts
    fd: int
    flags: int = 0
    rights: int = 0
    inheriting: int = 0
    fdflags: int = 0
    identity: str = ""
    key: Key | None = None
    held: Held | None = None
    gone: bool = False
    loose: str = ""
    is_folder: bool = False

    @property
    def path(self) -> str | None:
        """The workspace path of a tracked file, or None."""
        if not self.preopen.tracked or self.gone:
            return None
        return "/".join(self.parts)

    def identify(self) -> str:
        """The file's identity; empty if nobody replaces files there, and one that no file has if
        it has no name any more.
        """
        if self.gone:
            return _ANOTHER
        if not self.identity and self.preopen.writable and self.parts and self.fd >= 0:
            self.identity = open_file_identity(self.fd)
        return self.identity


class Table:
    """The descriptors of one guest. Only the guest's thread uses it; close it."""

    def __init__(self, preopens: Preopens) -> None:
        fixed = enumerate(preopens.fixed, FIRST_DESCRIPTOR)
        self._by_number = {
            number: Opened(preopen, (), preopen.folder.fd, is_folder=True)
            for number, preopen in fixed
        }
        self._fixed = len(self._by_number)

    def __len__(self) -> int:
        """How many the guest opened itself."""
        return len(self._by_number) - self._fixed

    def get(self, fd: int) -> Opened | None:
        """What a descriptor stands for; None if it is not open."""
        return self._by_number.get(fd)

    def file(self, fd: int) -> Opened:
        """Returns an open file.

        Raises:
            Refused: it is a stream, a folder, or not open.
        """
        opened = self._by_number.get(fd)
        if opened is None or opened.is_folder:
            raise Refused(abi.EBADF)
        return opened

    def add(self, opened: Opened) -> int:
        """Gives what was opened the lowest free number, as POSIX wants it."""
        number = FIRST_DESCRIPTOR + self._fixed
        while number in self._by_number:
            number += 1
        self._by_number[number] = opened
        return number

    def put(self, number: int, opened: Opened) -> None:
        """Gives what was opened this very number, which must be free."""
        self._by_number[number] = opened

    def take(self, number: int) -> Opened | None:
        """Frees a number and returns what it stood for, which is open still."""
        return self._by_number.pop(number, None)

    def is_fixed(self, fd: int) -> bool:
        """Whether it is a stream or a preopened folder, which stay open."""
        return fd < FIRST_DESCRIPTOR + self._fixed

    def opened(self) -> dict[int, Opened]:
        """What the guest opened itself, by descriptor."""
        return {fd: o for fd, o in self._by_number.items() if not self.is_fixed(fd)}

    def of(self, place: Place, status: os.stat_result | None) -> list[Opened]:
        """The descriptors of what stands at a place, which has this status."""
        key = None if status is None else key_of(status)
        return [opened for opened in self._at(place) if opened.key == key]

    def _at(self, place: Place) -> Iterator[Opened]:
        """The descriptors of a place and of what lies below it."""
        depth = len(place.parts)
        for opened in self._by_number.values():
            below = bool(opened.parts) and opened.parts[:depth] == place.parts
            if depth and below and not opened.gone and opened.preopen is place.preopen:
                yield opened

    def unnamed(self, place: Place, status: os.stat_result | None, loose: str = "") -> None:
        """What stood at a place has lost this name, and is called `loose` from now on."""
        for opened in self.of(place, status):
            opened.gone, opened.loose = True, loose

    def calls(self, loose: str) -> bool:
        """Whether a file without a name is open."""
        return any(opened.loose == loose for opened in self._by_number.values())

    def moved(self, old: Place, new: Place) -> None:
        """What stood at a place, or below it, stands elsewhere now."""
        for opened in list(self._at(old)):
            opened.preopen = new.preopen
            opened.parts = new.parts + opened.parts[len(old.parts) :]

    def close(self) -> None:
        """Closes what the guest opened itself. Safe to call twice."""
        for number, opened in self.opened().items():
            del self._by_number[number]
            if opened.fd >= 0:
                os.close(opened.fd)
