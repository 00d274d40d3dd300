"""The folders that an archive is unpacked to: entered from member to member, made and counted.

A name in an archive may be as deep as a path may be long, and there may be a million of them. So
the way to a member goes on from where the last one was put, as in an archive that was made in a
tree's order, and all ways together have an end.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from wasm_kernel.linux.walks import FolderWalk
from wasm_kernel.sessions.tarball import ArchiveError, Room

_STEPS = 100_000
_STEPS_EACH = 64  # for each member: a tree's order takes three, a link's way some dozens


class Ground:
    """The folders; close them. One thread's own.

    Args:
        room: Counts what is made.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self._ways: dict[int, FolderWalk] = {}
        self._steps = _STEPS

    def another(self) -> None:
        """One more member begins, and may take its share of the steps."""
        self._steps += _STEPS_EACH

    def step(self) -> None:
        """Counts a step from one folder to the next.

        Raises:
            ArchiveError: there were too many.
        """
        self._steps -= 1
        if self._steps < 0:
            raise ArchiveError(
                "The archive's folders and links lead to and fro, which takes too long to follow."
            )

    def enter(self, part: int, names: Sequence[str]) -> int:
        """Returns a descriptor of a folder, good until the next is entered.

        Args:
            part: A descriptor of the folder that the way begins at.
            names: The names that lead there. Folders that are missing are made.

        Raises:
            ArchiveError: it takes too many steps, or there is no room for a folder.
            OSError: something else is in a folder's place, or one can't be made.
        """
        way = self._ways.get(part)
        if way is None:
            way = self._ways[part] = FolderWalk(part)
        pairs = enumerate(zip(way.path, names, strict=False))
        shared = next((at for at, (one, other) in pairs if one != other), None)
        if shared is None:
            shared = min(way.depth, len(names))
        while way.depth > shared:
            self.step()
            way.leave()
        for name in names[shared:]:
            self.step()
            try:
                way.enter(name)
            except FileNotFoundError:
                self._room.take(1)
                os.mkdir(name, dir_fd=way.fd)
                way.enter(name)
        return way.fd

    def close(self) -> None:
        """Closes the folders. Safe to call twice."""
        for way in self._ways.values():
            way.close()
