"""What guests do not see: private folders, and the sessions of others.

The default workspace is also the default root of the sessions. So its guest sees no session's
folder, and can make nothing that would be taken for one. A root of sessions that lies in another
session's workspace, or in a mount, does not exist for the guest there.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from wasm_kernel.folders.overlap import Spot
from wasm_kernel.folders.places import places
from wasm_kernel.folders.private import Place, owner_of
from wasm_kernel.folders.state_folder import LOOK_SECONDS, lists_places, noted_in, notes, watched
from wasm_kernel.linux.files import FileMark
from wasm_kernel.linux.folders import Folder
from wasm_kernel.wasi_files.preopens import (
    METADATA_HIDDEN,
    NothingHidden,
    folded_name,
    is_hidden_name,
)

METADATA = ".metadata.json"
ASIDE = ".wasm_kernel-removed-"
"""How the name of a session's folder begins that is being made or deleted."""

_TICK_NS = 100_000_000  # times of folders are told in steps, on some file systems in long ones
_UUID_LENGTH = 36
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Registered:
    """The folders that belong to sessions, and the private folders, on this machine.

    One thread's own. It looks at the places of private folders again when one of them changed.
    """

    def __init__(self) -> None:
        self._seen: dict[Path, int] = {}
        self._settled = False  # a change right after a look may have the same time as one before
        self._sessions: dict[Path, FileMark | None] = {}
        self._private: set[tuple[int, int]] = set()
        self._numbers: frozenset[int] = frozenset()

    def holds(self, fd: int) -> bool:
        """Returns whether an open folder is a session's, or a private one."""
        self._refresh()
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) in self._private:
            return True
        if found.st_ino not in self._numbers:
            return False
        mark = FileMark.of(fd)
        alike = [one for one in self._sessions.values() if one and one.number == mark.number]
        return any(one.same(mark) or not mark.lasting for one in alike)

    def _refresh(self) -> None:
        if self._settled and all(_changed(path) == at for path, at in self._seen.items()):
            return
        found, private, now = dict[Path, FileMark | None](), set[tuple[int, int]](), time.time_ns()
        self._seen = {path: _changed(path) for path in watched()}
        for place in places():
            with contextlib.closing(place):
                self._seen[place.path] = os.fstat(place.folder.fd).st_mtime_ns
                self._look_into(place, found, private)
        self._settled = all(changed < now - _TICK_NS for changed in self._seen.values())
        self._sessions, self._private = found, private
        self._numbers = frozenset(mark.number for mark in found.values() if mark is not None)

    def _look_into(
        self, place: Place, found: dict[Path, FileMark | None], private: set[tuple[int, int]]
    ) -> None:
        own = os.fstat(place.folder.fd)
        private.add((own.st_dev, own.st_ino))
        for name in place.folder.names():
            path = place.path / name
            if known := self._sessions.get(path):  # once a session's, always a session's
                found[path] = known
                continue
            with contextlib.suppress(OSError), place.folder.enter(name) as folder:
                owner = owner_of(folder)
                found[path] = owner.mark if owner is not None and owner.session else None


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


class PlacesHidden(NothingHidden):
    """The places of private folders and the roots of sessions that lie in a guest's folder.

    Most folders hold none, or were refused because of them. So nothing is looked for until there
    is a new one. One thread's own.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Folder) -> None:
        found = os.fstat(folder.fd)
        self._folder = folder
        self._own = (found.st_dev, found.st_ino)
        self._watched = notes()
        self._seen: list[int] = []
        self._settled = False  # as above
        self._looked = -math.inf
        self._inside: frozenset[tuple[int, int]] = frozenset()

    @property
    def hides_folders(self) -> bool:
        """True if there is such a place; nothing is put into one before everybody has looked."""
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self._looked = now
            self._look()
        return bool(self._inside)

    def _look(self) -> None:
        changed = [_changed(path) for path in self._watched]
        if not self._settled or changed != self._seen:
            now = time.time_ns()
            self._seen, self._inside = changed, frozenset(self._places())
            self._settled = max(changed, default=0) < now - _TICK_NS

    def hides_folder(self, fd: int, depth: int) -> bool:
        """Such places."""
        if not self._inside:
            return False
        found = os.fstat(fd)
        return (found.st_dev, found.st_ino) in self._inside

    def _places(self) -> Iterator[tuple[int, int]]:
        for path in self._likely():
            with contextlib.suppress(OSError):
                spot = Spot.at(path)
                if self._own in spot.chain[:-1] and not spot.rest:
                    yield spot.chain[-1]

    def _likely(self) -> Iterator[Path]:
        """All places, which are few, and the roots whose paths lie here: there may be thousands."""
        with contextlib.suppress(OSError):
            here = Path(f"/proc/self/fd/{self._folder.fd}").readlink()
            for watched_folder in self._watched:
                with contextlib.suppress(OSError), Folder.open(watched_folder) as folder:
                    for path in noted_in(folder):
                        if lists_places(watched_folder) or str(path).startswith(f"{here}/"):
                            yield path


class SessionHidden(PlacesHidden):
    """A session's workspace: besides, its metadata file belongs to the host."""

    def hides_name(self, depth: int, name: str) -> bool:
        """The metadata file is hidden, under every spelling."""
        return METADATA_HIDDEN.hides_name(depth, name)


class SessionsHidden:
    """A workspace outside of sessions hides all that is, or could be taken for, a session's."""

    @property
    def hides_folders(self) -> bool:
        """There may be some at any time."""
        return True

    def __init__(self) -> None:
        self._registered = Registered()

    def hides_name(self, depth: int, name: str) -> bool:
        """Names of a session's metadata, of folders that become sessions, and of theirs here."""
        if is_hidden_name(name):
            return True
        if name.isascii() and name[0] != "." and not (depth == 0 and len(name) >= _UUID_LENGTH):
            return False  # the quick way for nearly all names
        plain = folded_name(name)
        return plain.startswith(ASIDE) or (depth == 0 and _UUID.fullmatch(plain) is not None)

    def hides_folder(self, fd: int, depth: int) -> bool:
        """Folders of sessions, wherever they lie, and private folders."""
        if depth == 0 and Folder(fd).status(METADATA) is not None:
            return True
        return self._registered.holds(fd)
