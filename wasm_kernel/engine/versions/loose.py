"""Files that lose their last name while the guest has them open: temporary files, mostly.

Such a file gets a name in the host's own folder, so that memory that speaks of it finds it again in
a new guest and in another process. Here it is called by a slash and a number, as no path in the
workspace is.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Collection, Iterator
from pathlib import Path

_NAMED = ".metadata.json~open-"


class Loose:
    """The files in one folder. The guest's thread owns it.

    Attributes:
        fresh: Those that no commit knows yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last = 0
        self.fresh: set[str] = set()

    def host(self, called: str) -> Path:
        """Where a file lies."""
        return self._folder / called[1:]

    def catch(self, path: str) -> str:
        """What a file that is about to lose its name is called from now on; empty where it can't be
        kept.
        """
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._last = self._last or max(self._numbers(), default=0)
            self._last += 1
            called = f"/{self._last}"
            os.link(path, self.host(called), follow_symlinks=False)
        except OSError:
            return ""
        self.fresh.add(called)
        return called

    def _numbers(self) -> list[int]:
        return [int(path.name) for path in self._folder.iterdir() if path.name.isdecimal()]

    def remove(self, called: str) -> None:
        """A file is of no more use."""
        self.fresh.discard(called)
        with contextlib.suppress(OSError):
            self.host(called).unlink()

    def called(self, path: str) -> str:
        """What the file is called that a commit knows by this path; empty for none."""
        return path if path.startswith("/") and path[1:].isdecimal() else ""

    @contextlib.contextmanager
    def named(self, called: str, workspace: Path) -> Iterator[str]:
        """A name in the workspace that the guest does not see, for as long as the block lasts."""
        name = f"{_NAMED}{secrets.token_hex(8)}"
        os.link(self.host(called), workspace / name, follow_symlinks=False)
        try:
            yield name
        finally:
            (workspace / name).unlink()

    def sweep(self, needed: Collection[str]) -> list[str]:
        """Remove all but those that are needed.

        Returns:
            What was removed.
        """
        try:
            gone = [f"/{n}" for n in self._numbers() if f"/{n}" not in needed]
        except OSError:
            return []  # there is no folder: there never was such a file
        for called in gone:
            self.remove(called)
        return gone

    def trim(self, opened: Collection[str], most_bytes: int) -> list[str]:
        """Of those that are not open any more, keep the latest, as many as so many bytes hold.

        Returns:
            What was removed.
        """
        gone, left = [], most_bytes
        try:
            numbers = sorted(self._numbers(), reverse=True)
        except OSError:
            return []
        for called in (f"/{number}" for number in numbers):
            if called in opened or called in self.fresh:
                continue
            with contextlib.suppress(OSError):
                left -= self.host(called).lstat().st_size
            if left < 0:
                self.remove(called)
                gone.append(called)
        return gone
