"""Where a history comes from, where it was forked off another: what of it is inherited.

The commits that a fork has from its parent are the parent's very files, so they speak of the
parent's files, too: which file was open is told by what the system calls it
(`linux/files.py`), and a copy is called otherwise. How each is called in the fork stands here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, replace

from wasm_kernel.linux.folders import Folder
from wasm_kernel.record import record
from wasm_kernel.state.commit import DAMAGED, ID_MOST, Commit, is_number
from wasm_kernel.wasi_files.open_files import OpenFile

NAME = "origin.json"
_MOST_BYTES = 4 * 1024 * 1024
GONE = "gone"
"""The identity of a file that was not there any more; no file has it."""


@record
class Origin:
    """What a history has from another one.

    Attributes:
        last: The number of the last commit that is inherited; 0 where none is.
        reseed: Whether guests that stand at an inherited commit draw other random numbers than the
            parent's.
        files: The inherited commits' identities of files, and those of the copies.
    """

    last: int = 0
    reseed: bool = False
    files: Mapping[str, str] = field(default_factory=dict)

    def inherits(self, commit: Commit) -> bool:
        """Whether a commit comes from the parent."""
        return commit.id <= self.last

    def files_of(self, commit: Commit) -> tuple[OpenFile, ...]:
        """What was open at a commit, as it is called here."""
        if not self.inherits(commit):
            return commit.files
        return tuple(
            replace(file, identity=self.files.get(file.identity, file.identity))
            for file in commit.files
        )

    def write(self, folder: Folder) -> None:
        """Put it on disk.

        Raises:
            OSError: it can't be written.
        """
        with folder.replacing(NAME) as file:
            file.write(json.dumps({**self.__dict__, "files": dict(self.files)}).encode())

    @classmethod
    def read(cls, folder: Folder, newest: int) -> Origin:
        """The one on disk.

        Where it can't be read, everything up to `newest` counts as inherited from a parent whose
        files are not here: the files that were open then are closed.
        """
        try:
            raw = json.loads(folder.read(NAME, _MOST_BYTES))
            files = {str(name): str(here) for name, here in raw["files"].items()}
            found = cls(int(raw["last"]), bool(raw["reseed"]), files)
        except FileNotFoundError:
            return cls()
        except (OSError, *DAMAGED):
            return cls(newest, True)
        return found if is_number(found.last, ID_MOST) else cls(newest, True)
