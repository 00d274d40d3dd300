"""The record of the files that sessions have written into one folder of the user's.

It lies where neither a cell nor a notebook's author can write. A kernel that was taken over can, if
the folder is the notebook's own: each line of such a record is signed with a key that the kernel
can't read. A file that is not in the record, or is no longer the file noted there, is the user's.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from contextlib import suppress

import msgspec
from msgspec import Struct

from wasm_kernel.linux.files import FileMark
from wasm_kernel.linux.folders import Closing, Folder
from wasm_kernel.linux.locks import FileLock
from wasm_kernel.publishing.names import PublishError
from wasm_kernel.publishing.tree import CopiedFile

KEPT = "kept-"
"""The beginning of the names of kept originals."""

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_RECORD_BYTES = 64 * 1024 * 1024
_LOCK_SECONDS = 30.0
_BUSY = "Another kernel writes into this folder. Nothing was written there. Try again."


class WrittenFile(Struct, frozen=True):
    """The change that a session made to a path in the folder.

    Attributes:
        own: The file that the session put there; None if it deleted the file there.
        kept: The name of the kept original, beside the record; empty if there was none.
        size: The bytes of the original.
        theirs: Whether `own` is the user's own file, which holds the same as the session's.
        session: The session; empty if `own` was there before.
    """

    own: CopiedFile | None
    kept: str = ""
    size: int = 0
    theirs: bool = False
    session: str = ""


class _Known(Struct):
    """The entries on files in a folder, by their paths."""

    folder: FileMark
    files: dict[str, WrittenFile]


class FolderRecord(Closing):
    """The record of one folder, locked for other processes; close it.

    It lies in the folder `place`, which no guest sees and which stays the caller's, with the kept
    originals, which hold `kept_bytes`. Its lines are signed with the `key`, if there is one.
    `PublishError` if another process has the record.
    """

    def __init__(self, place: Folder, folder: Folder, key: bytes = b"") -> None:
        with suppress(OSError):
            # an overlay gives a folder another identity with its first change, which is this one
            os.fchmod(folder.fd, stat.S_IMODE(os.fstat(folder.fd).st_mode))
        self.place, self._mark, self._key = place, FileMark.of(folder.fd), key
        name = f"{self._mark.number} {self._mark.born}"
        self._name = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        self._journal = f"{self._name}.journal"
        self._lock = FileLock(f"{self._name}.lock", place)
        if not self._lock.acquire(_LOCK_SECONDS):
            raise PublishError(_BUSY)
        self.files = self._read()
        self._saved = dict(self.files)
        self.kept_bytes = sum(file.size for file in self.files.values())

    def _read(self) -> dict[str, WrittenFile]:
        files = dict[str, WrittenFile]()
        # a record that can't be read is left out: its files then count as the user's
        for name in (self._name, self._journal):
            with suppress(OSError, ValueError):
                for line in self.place.read(name, _RECORD_BYTES).splitlines():
                    part = msgspec.json.decode(self._checked(line), type=_Known)
                    if part.folder.same(self._mark):
                        files |= part.files
        return files

    def _line(self, files: dict[str, WrittenFile]) -> bytes:
        text = msgspec.json.encode(_Known(self._mark, files))
        return text + b"\t" + self._signature(text) if self._key else text

    def _checked(self, line: bytes) -> bytes:
        """Returns the text of a line; `ValueError` if it was not signed here."""
        if not self._key:
            return line
        text, _, signature = line.rpartition(b"\t")
        if not hmac.compare_digest(signature, self._signature(text)):
            raise ValueError("another process wrote it")
        return text

    def _signature(self, text: bytes) -> bytes:
        return hashlib.blake2b(text, key=self._key).hexdigest().encode()

    def note(self, path: str, known: WrittenFile) -> None:
        """Writes down a coming change to a file at once, in case this process is killed."""
        line = self._line({path: known}) + b"\n"
        with os.fdopen(self.place.open_regular(self._journal, _APPEND), "ab") as file:
            file.write(line)

    def set(self, path: str, known: WrittenFile) -> None:
        """Notes a change to a file; removes an original that another one has replaced."""
        old = self.files.get(path)
        self.files[path] = known
        self.kept_bytes += known.size
        self._drop(old, known.kept)

    def forget(self, path: str) -> None:
        """Removes the entry on a path, and its kept original: the file is the user's now."""
        self._drop(self.files.pop(path))

    def _drop(self, old: WrittenFile | None, still_kept: str = "") -> None:
        if old is not None:
            self.kept_bytes -= old.size
            if old.kept and old.kept != still_kept:
                self.place.remove(old.kept)

    def close(self) -> None:
        """Saves the record, and releases its lock. Safe to call twice."""
        try:
            if self.files != self._saved:
                with self.place.replacing(self._name) as file:
                    file.write(self._line(self.files))
                self._saved = dict(self.files)
            self.place.remove(self._journal)
        finally:
            self._lock.release()
