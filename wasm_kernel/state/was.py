"""What stood at a path of the workspace before a cell changed it."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import NoneType
from typing import Any

from wasm_kernel.record import record


@record
class Nothing:
    """There was nothing."""


@record
class WasFolder:
    """There was a folder."""


@record
class Link:
    """There was a symbolic link, with this text."""

    text: str


@record
class File:
    """There was a file, whose content is in the store.

    Attributes:
        kept: The content's number in the store.
        size: Its length in bytes.
        mtime: When it was changed, in nanoseconds since 1970.
        mode: Its permissions.
        identity: What named the file itself (`linux/files.py`).
        checksum: The content's CRC-32; None where it was kept without being read.
    """

    kept: int
    size: int
    mtime: int
    mode: int
    identity: str
    checksum: int | None = None


@record
class Unkept:
    """There was something that could not be kept: `large`, `room` (none was left), `unreadable`, or
    `changed` (from outside, after it was kept).
    """

    why: str
    size: int = 0


Was = Nothing | WasFolder | Link | File | Unkept
_KINDS: dict[str, type[Was]] = {
    "nothing": Nothing,
    "folder": WasFolder,
    "link": Link,
    "file": File,
    "unkept": Unkept,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@record
class Entry:
    """What stood at a path, relative to the workspace, when it first changed after a commit."""

    since: int
    path: str
    was: Was

    def as_json(self) -> dict[str, Any]:
        """As a JSON object."""
        was = {"kind": _NAMES[type(self.was)], **asdict(self.was)}
        return {"since": self.since, "path": self.path, "was": was}

    @classmethod
    def of_json(cls, raw: dict[str, Any]) -> Entry:
        """As `as_json` writes it.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        fields = dict(raw["was"])
        was = _KINDS[fields.pop("kind")](**fields)
        if not all(isinstance(value, (int, str, NoneType)) for value in vars(was).values()):
            raise TypeError("a field is neither text nor a number")
        if isinstance(was, File):
            was = replace(was, kept=int(was.kept))
        return cls(int(raw["since"]), str(raw["path"]), was)
