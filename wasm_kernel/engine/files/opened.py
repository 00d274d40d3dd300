"""What the guest has open, and where its paths lead."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from wasm_kernel.engine.files.listing import Listing
from wasm_kernel.engine.files.preopens import FIRST_DESCRIPTOR, Preopen, Preopens
from wasm_kernel.engine.files.quota import Held, Key, key_of
from wasm_kernel.engine.folders.identity import identity

Parts = tuple[str, ...]
_ANOTHER = "another"  # an identity that no file has


def host_path(preopen: Preopen, parts: Parts) -> str:
    """The host's path of a place."""
    return "/".join([str(preopen.host), *parts])


def identity_in(preopen: Preopen, parts: Parts | None) -> str:
    """Names the file at a place; empty where files are not replaced, or nothing is known."""
    if not preopen.writable or not parts:
        return ""
    return identity(host_path(preopen, parts))


class Place:
    """Where a path argument leads, links at its end followed or not as the call asks.

    `parts` are its names below the preopened folder; None where they are not known, which is below
    a bundled folder only.
    """

    __slots__ = ("parts", "preopen")

    def __init__(self, preopen: Preopen, parts: Parts | None) -> None:
        self.preopen = preopen
        self.parts = parts

    @property
    def path(self) -> str | None:
        """The workspace path, or None where changes are not recorded."""
        if not self.preopen.tracked or self.parts is None:
            return None
        return "/".join(self.parts)

    @property
    def host(self) -> str:
        """The host's path."""
        assert self.parts is not None
        return host_path(self.preopen, self.parts)

    def status(self) -> os.stat_result | None:
        """What is there now, links not followed; None for nothing, or where it does not matter."""
        if self.parts is None or self.preopen.bundled:
            return None
        try:
            return os.lstat(self.host)
        except (OSError, ValueError):
            return None


@dataclass
class Opened:
    """A descriptor of the guest: where it lies, and how it was opened (`flags`, `rights`,
    `inheriting` and `fdflags` of `path_open`).

    `parts` is None where its name is not known; it has none any more where it is `gone`. `key`
    tells it from others, `identity` even from later ones (`identity.py`). `held` where its length
    counts. `listing` is a folder's content as the guest reads it. `loose` is what it is called
    where it has lost its last name (`versions/loose.py`).
    """

    preopen: Preopen
    parts: Parts | None
    flags: int = 0
    rights: int = 0
    inheriting: int = 0
    fdflags: int = 0
    identity: str = ""
    key: Key | None = None
    held: Held | None = None
    gone: bool = False
    listing: Listing | None = None
    loose: str = ""

    @property
    def path(self) -> str | None:
        """The workspace path of a tracked file, or None."""
        if not self.preopen.tracked or self.parts is None or self.gone:
            return None
        return "/".join(self.parts)

    def identify(self) -> str:
        """The file's identity; one that no file has where another has taken its name."""
        replaceable = self.preopen.writable and self.parts and self.key is not None
        if replaceable and not self.identity:
            assert self.key is not None
            found = identity_in(self.preopen, self.parts)
            self.identity = found if found.startswith(f"{self.key[1]}:") else _ANOTHER
        return _ANOTHER if self.gone else self.identity


class Table:
    """The descriptors of one guest. Only the guest's thread uses it."""

    def __init__(self, preopens: Preopens) -> None:
        self.by_number = {FIRST_DESCRIPTOR + i: Opened(p, ()) for i, p in enumerate(preopens.all)}
        self._fixed = len(self.by_number)

    def __len__(self) -> int:
        """How many the guest opened itself."""
        return len(self.by_number) - self._fixed

    def is_fixed(self, fd: int) -> bool:
        """Whether it is a stream or a preopened folder, which stay open."""
        return fd < FIRST_DESCRIPTOR + self._fixed

    def opened(self) -> dict[int, Opened]:
        """What the guest opened itself, by descriptor."""
        return {fd: o for fd, o in self.by_number.items() if not self.is_fixed(fd)}

    def at(self, place: Place) -> Iterator[Opened]:
        """The descriptors of a place and of what lies below it."""
        if not place.parts:
            return
        depth = len(place.parts)
        for opened in self.by_number.values():
            below = opened.parts and opened.parts[:depth] == place.parts
            if below and not opened.gone and opened.preopen is place.preopen:
                yield opened

    def unnamed(self, place: Place, status: os.stat_result | None, loose: str = "") -> None:
        """What stood at a place has lost this name, and is called `loose` from now on."""
        for opened in self.of(place, status):
            opened.gone, opened.loose = True, loose

    def of(self, place: Place, status: os.stat_result | None) -> list[Opened]:
        """The descriptors of what stands at a place, which has this status."""
        key = None if status is None else key_of(status)
        return [opened for opened in self.at(place) if opened.key == key]

    def calls(self, loose: str) -> bool:
        """Whether a file without a name is open."""
        return any(opened.loose == loose for opened in self.by_number.values())

    def moved(self, old: Place, new: Place) -> None:
        """What stood at a place, or below it, stands elsewhere now."""
        assert old.parts is not None
        for opened in list(self.at(old)):
            assert opened.parts is not None
            tail = opened.parts[len(old.parts) :]
            opened.preopen = new.preopen
            opened.parts = None if new.parts is None else new.parts + tail
