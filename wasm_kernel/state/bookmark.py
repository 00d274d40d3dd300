"""Where a session stands in its history and what its states are called, on disk.

Commits follow one another, so a new one needs no bookmark: it is the newest. Only going elsewhere
does, and giving names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field

from wasm_kernel.linux.folders import Folder
from wasm_kernel.record import record
from wasm_kernel.state.commit import DAMAGED, ID_MOST, is_number

NAME = "head.json"
_MOST_BYTES = 4 * 1024 * 1024


@record
class Bookmark:
    """The commit `at`, chosen when `after` was the newest one, commits by name, and those that
    were left for `at` and can be gone back to, the latest last.
    """

    at: int
    after: int
    names: Mapping[str, int] = field(default_factory=dict)
    undone: tuple[int, ...] = ()

    def write(self, folder: Folder) -> None:
        """Put it in place of the one before.

        Raises:
            OSError: it can't be written; the one before is there still.
        """
        fields = {**self.__dict__, "names": dict(self.names)}
        with folder.replacing(NAME) as file:
            file.write(json.dumps(fields).encode())

    @classmethod
    def read(cls, folder: Folder) -> Bookmark | None:
        """Returns the one on disk; None if there is none, or none that can be read."""
        try:
            raw = json.loads(folder.read(NAME, _MOST_BYTES))
            names = {str(name): int(one) for name, one in raw["names"].items()}
            undone = tuple(int(one) for one in raw.get("undone", ()))
            mark = cls(int(raw["at"]), int(raw["after"]), names, undone)
        except (OSError, *DAMAGED):
            return None
        numbers = (mark.at, mark.after, *names.values(), *undone)
        return mark if all(is_number(one, ID_MOST) for one in numbers) else None
