"""Where a session stands in its history and what its states are called, on disk.

Commits follow one another, so a new one needs no bookmark: it is the newest. Only going elsewhere
does, and giving names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from wasm_kernel.engine.memory.aside import written_aside
from wasm_kernel.record import record

_NAME = "head.json"


@record
class Bookmark:
    """The commit `at`, chosen when `after` was the newest one, commits by name, and those that
    were left for `at` and can be gone back to, the latest last.
    """

    at: int
    after: int
    names: Mapping[str, int] = field(default_factory=dict)
    undone: tuple[int, ...] = ()

    def write(self, folder: Path) -> None:
        """Put it in place of the one before.

        Raises:
            OSError: it can't be written; the one before is there still.
        """
        fields = {**self.__dict__, "names": dict(self.names)}
        with written_aside(folder / _NAME) as file:
            file.write(json.dumps(fields).encode())

    @classmethod
    def read(cls, folder: Path) -> Bookmark | None:
        """The one on disk; None where there is none, or none that can be read."""
        try:
            raw = json.loads((folder / _NAME).read_bytes())
            names = {str(name): int(one) for name, one in raw["names"].items()}
            undone = tuple(int(one) for one in raw.get("undone", ()))
            return cls(int(raw["at"]), int(raw["after"]), names, undone)
        except (OSError, ArithmeticError, ValueError, KeyError, TypeError, AttributeError):
            return None


def remove(folder: Path) -> None:
    """Forget it."""
    (folder / _NAME).unlink(missing_ok=True)
