"""The entries on disk: a file that only grows, and is now and then written anew.

Version 1 of the format: lines of UTF-8, each a JSON object, a space, and the CRC-32 of the object's
text in eight hexadecimal digits. The first object has `versions` (the format's version) and
`complete`; the others are entries (`was.py`), or have

- `lost` and `why`: a content of the store is no more;
- `twins`: two identities that name one and the same file to the guest.

An entry is written before what it speaks of happens. A last line that is cut off speaks of
something that did not; any other damage means that nobody knows what is missing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Iterable
from typing import Any

from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.folders import Folder

VERSION = 1
NAME = "journal"
MOST_BYTES = 256 * 1024 * 1024

Line = dict[str, Any]


class Journal:
    """The journal in one folder; close it. The guest's thread owns it.

    Args:
        private: The private folder; None if nothing is kept.
        name: The name of the journal's folder there.
    """

    def __init__(self, private: Folder | None, name: str) -> None:
        self._private = private
        self._name = name
        self._descriptor = -1

    def _folder(self, *, make: bool = False) -> Folder:
        if self._private is None:
            raise FileNotFoundError(errno.ENOENT, "no files are kept")
        return self._private.enter(self._name, make=make)

    def read(self) -> list[Line]:
        """All lines but the first, whose `complete` comes as a line of its own; none for no file.

        Raises:
            HistoryError: it is damaged, or of another version.
            OSError: it can't be read, or something else is in its place.
        """
        try:
            with self._folder() as folder:
                return read(folder.read(NAME, MOST_BYTES))
        except FileNotFoundError:
            return []

    def write(self, complete: int, lines: Iterable[Line]) -> None:
        """Write it anew.

        Raises:
            OSError: it can't be written; it is as it was.
        """
        with self._folder(make=True) as folder, folder.replacing(NAME) as file:
            for line in ({"versions": VERSION, "complete": complete}, *lines):
                file.write(_written(line))
        self.close()

    def append(self, line: Line) -> None:
        """Add a line to one that was written.

        Raises:
            OSError: it can't be added.
        """
        if self._descriptor < 0:
            with self._folder() as folder:
                self._descriptor = folder.open_regular(NAME, os.O_WRONLY | os.O_APPEND)
        data = _written(line)
        if os.write(self._descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def clear(self) -> None:
        """Remove it."""
        self.close()
        with contextlib.suppress(FileNotFoundError), self._folder() as folder:
            folder.remove(NAME)


def read(data: bytes) -> list[Line]:
    """The lines of a journal.

    Raises:
        HistoryError: it is damaged, or of another version.
    """
    whole, _, _ = data.rpartition(b"\n")
    lines = [_parsed(line) for line in whole.split(b"\n")]
    if lines[0].get("versions") != VERSION:
        raise HistoryError("the record of earlier files has another version")
    return lines


def _written(line: Line) -> bytes:
    text = json.dumps(line, separators=(",", ":")).encode()
    return b"%s %08x\n" % (text, zlib.crc32(text))


def _parsed(line: bytes) -> Line:
    text, _, checksum = line.rpartition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        raise HistoryError("the record of earlier files is damaged")
    found: Line = json.loads(text)
    return found
