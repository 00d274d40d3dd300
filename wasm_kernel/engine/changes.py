"""What a cell did to the files of the workspace, as its own calls tell."""

from __future__ import annotations

import os
from pathlib import Path

_RENAMED_MOST = 10_000  # files of a renamed folder that are told one by one


class Changes:
    """Files created, modified and deleted since `clear`, relative to the workspace.

    A file that was made and written is in `created` and in `modified`; one that was made and
    removed again is in neither.
    """

    def __init__(self) -> None:
        self.created: set[str] = set()
        self.modified: set[str] = set()
        self.deleted: set[str] = set()

    def clear(self) -> None:
        """A new cell begins."""
        self.created, self.modified, self.deleted = set(), set(), set()

    def made(self, path: str) -> None:
        """A file that was not there is there."""
        if path in self.deleted:
            self.deleted.discard(path)
            self.modified.add(path)
        else:
            self.created.add(path)

    def wrote(self, path: str) -> None:
        """A file's content changed."""
        self.modified.add(path)

    def removed(self, path: str) -> None:
        """A file is gone."""
        self.modified.discard(path)
        if path in self.created:
            self.created.discard(path)
        else:
            self.deleted.add(path)

    def renamed(self, root: Path, old: str, new: str, *, replaced: bool) -> None:
        """A file or a folder has another name; `replaced` where a file stood there before."""
        if not (root / new).is_dir() or (root / new).is_symlink():
            self._moved(old, new, replaced=replaced)
            return
        for tail in _files_below(root / new):
            self._moved(f"{old}/{tail}", f"{new}/{tail}", replaced=False)

    def _moved(self, old: str, new: str, *, replaced: bool) -> None:
        self.removed(old)
        if not replaced:
            self.made(new)
        self.modified.add(new)


def _files_below(folder: Path) -> list[str]:
    found: list[str] = []
    for here, _, names in os.walk(folder):
        found += [str(Path(here, name).relative_to(folder)) for name in names]
        if len(found) >= _RENAMED_MOST:
            break
    return found[:_RENAMED_MOST]
