"""Files that lose their last name while the guest has them open: temporary files, mostly.

Such a file gets a name in the host's private folder, so that memory that speaks of it finds it
again in a new guest and in another process. Here it is called by a slash and a number, as no path
in the workspace is.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection

from wasm_kernel.linux.folders import Folder


class Loose:
    """The files in one folder. The guest's thread owns it; close it.

    Args:
        private: The private folder; None if nothing is kept.
        name: The name of their folder there.

    Attributes:
        fresh: Those that no commit knows yet.
    """

    def __init__(self, private: Folder | None, name: str) -> None:
        self._private = private
        self._name = name
        self._found: Folder | None = None
        self._last = 0
        self.fresh: set[str] = set()

    def _folder(self, *, make: bool = False) -> Folder:
        """The folder.

        Raises:
            OSError: there is none, or something else is in its place.
        """
        if self._found is None:
            if self._private is None:
                raise FileNotFoundError(errno.ENOENT, "no files are kept")
            self._found = self._private.enter(self._name, make=make)
        return self._found

    def catch(self, folder: int, name: str, found: os.stat_result) -> str:
        """What a file that is about to lose its name is called from now on; empty if it can't be
        kept.

        Args:
            folder: A descriptor of the folder that it is in.
            name: Its name there.
            found: Its status.
        """
        try:
            here = self._folder(make=True)
            self._last = (self._last or max(self._numbers(), default=0)) + 1
            link_the_very(folder, name, found, here, str(self._last))
        except OSError:
            return ""
        called = f"/{self._last}"
        self.fresh.add(called)
        return called

    def open_again(self, called: str, flags: int) -> int:
        """Opens a file for the guest again; the caller closes the descriptor.

        Raises:
            OSError: it is not there.
        """
        return self._folder().open_regular(called[1:], flags)

    def at(self, called: str) -> tuple[int, str]:
        """A descriptor of the folder that a file is in, and its name there.

        Raises:
            OSError: there is no such folder.
        """
        return self._folder().fd, called[1:]

    def _numbers(self) -> list[int]:
        return [int(name) for name in self._folder().names() if name.isdecimal()]

    def remove(self, called: str) -> None:
        """A file is of no more use."""
        self.fresh.discard(called)
        with contextlib.suppress(OSError):
            self._folder().remove(called[1:])

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
            found = self._folder().status(called[1:])
            left -= found.st_size if found is not None else 0
            if left < 0:
                self.remove(called)
                gone.append(called)
        return gone

    def close(self) -> None:
        """Closes the folder. Safe to call twice."""
        if self._found is not None:
            self._found.close()
            self._found = None


def link_the_very(folder: int, name: str, found: os.stat_result, target: Folder, new: str) -> None:
    """Gives a file a further name, and makes sure that it is the file that was looked at.

    Args:
        folder: A descriptor of the folder that it is in.
        name: Its name there.
        found: The status of the file that is meant.
        target: The folder of the new name.
        new: The new name.

    Raises:
        OSError: it can't be linked, or another file had taken its name.
    """
    os.link(name, new, src_dir_fd=folder, dst_dir_fd=target.fd, follow_symlinks=False)
    linked = target.status(new)
    if linked is None or not os.path.samestat(linked, found):
        target.remove(new)
        raise OSError(errno.ESTALE, "another file took its name")
