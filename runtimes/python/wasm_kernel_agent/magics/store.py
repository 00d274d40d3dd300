"""The values of `%store` and `%bookmark`, in the workspace, so that they outlive a restart.

Variables come back by themselves after a crash, an undo or `%restore`. `%store` is for the rest: a
value that a restarted kernel, or a fork, can fetch again.
"""

from __future__ import annotations

import pickle
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

_LASTING = re.compile(r"autorestore/[\w.]{1,200}|stored_aliases|bookmarks")
_ENDING = ".pickle"


class StoredValues(dict[str, Any]):
    """IPython's database. Some keys last, as files in `folder`; the others live in memory."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def _file(self, key: str) -> Path | None:
        return self._folder / (key + _ENDING) if _LASTING.fullmatch(key) else None

    def __getitem__(self, key: str) -> Any:
        file = self._file(key)
        if file is None:
            return super().__getitem__(key)
        try:
            return pickle.loads(file.read_bytes())
        except FileNotFoundError:
            raise KeyError(key) from None

    def __setitem__(self, key: str, value: Any) -> None:
        file = self._file(key)
        if file is None:
            super().__setitem__(key, value)
            return
        data = pickle.dumps(value)  # a value that can't be pickled leaves no empty file behind
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    def __delitem__(self, key: str) -> None:
        file = self._file(key)
        if file is None:
            super().__delitem__(key)
        else:
            file.unlink()

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value, or `default`, also if a stored one can't be read any more."""
        try:
            return self[key]
        except Exception:
            return default

    def keys(self, pattern: str | None = None) -> Any:
        """Returns the keys, or those that match a shell pattern."""
        lasting = [
            file.relative_to(self._folder).as_posix().removesuffix(_ENDING)
            for file in sorted(self._folder.rglob(f"*{_ENDING}"))
        ]
        names = [*super().keys(), *lasting]
        return names if pattern is None else [name for name in names if fnmatch(name, pattern)]
