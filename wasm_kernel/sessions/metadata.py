"""`.metadata.json`: the times at which a session was made and last used.

The file lies in the session's folder and is hidden from the guest. It is replaced as a whole, in
one step. Anything else in its place is left unchanged: a link, a FIFO, broken JSON, the metadata of
another session or of a later version.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Mapping
from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.linux.files import swap_names
from wasm_kernel.linux.folders import READ, Folder, closing_fd
from wasm_kernel.linux.locks import wait_lock
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.entries import draft_of
from wasm_kernel.wasi_files.preopens import METADATA

NAME = METADATA
VERSION = 1
_MOST_BYTES = 1024 * 1024
_NAME_MOST, _PATH_MOST = 255, 4096  # bytes; Linux allows no more
_SPARE = "metadata.spare"
_PARENT, _FIRST = "forked_from", "forked_first_from"
NOTEBOOK = "notebook"
"""The field for the path of a session's notebook, if no kernel notes it elsewhere."""
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_SPARE = {errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EEXIST}  # something else is there
_ATTEMPTS = 100
_WAIT_SECONDS = 30.0  # for another process that writes the file
_TICK = timedelta(microseconds=1)


class MetadataCorrupted(WasmKernelError):
    """The error of a file in the metadata's place that is not metadata; it was not changed."""


class Lineage(Struct, frozen=True):
    """The origin of a fork: its `parent` session, and the `first` session of the line.

    The first session is not a fork itself. Either session may be deleted by now.
    """

    parent: str
    first: str

    @property
    def fields(self) -> dict[str, str]:
        """The fields for the lineage in a fork's metadata."""
        return {_PARENT: self.parent, _FIRST: self.first}


class Metadata(Struct, frozen=True):
    """The content of the file; `fields` are all fields, even unknown ones.

    The session was made at `created_at`; a cell, successful or not, last ended at `updated_at`.
    """

    session_id: str
    created_at: datetime
    updated_at: datetime
    fields: Mapping[str, Any]

    @classmethod
    def new(cls, session_id: str, now: datetime, about: Mapping[str, str] = {}) -> Metadata:
        """Returns the metadata of a new session; `about` are fields of a fork, or `NOTEBOOK`."""
        fields = {"session_id": session_id, "created_at": "", "updated_at": "", "version": VERSION}
        return cls(session_id, now, now, fields | dict(about))

    @property
    def notebook(self) -> str:
        """The path of the notebook that a session was made for; empty if it is unknown.

        It is empty, too, if it is longer than any file's path.
        """
        found = self.fields.get(NOTEBOOK)
        if not isinstance(found, str) or len(found) > _PATH_MOST:
            return ""
        return found if max(map(len, found.split("/"))) <= _NAME_MOST else ""

    @property
    def lineage(self) -> Lineage | None:
        """The origin of a fork; None for other sessions, and if the fields are damaged."""
        parent, first = self.fields.get(_PARENT), self.fields.get(_FIRST)
        if not (isinstance(parent, str) and isinstance(first, str)):
            return None
        return Lineage(parent, first) if ids.is_id(parent) and ids.is_id(first) else None

    @classmethod
    def parse(cls, data: bytes, session_id: str) -> Metadata:
        """Returns a file's metadata, times without a zone as UTC; raises `MetadataCorrupted`."""
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError) as problem:
            raise MetadataCorrupted(f"it is not JSON ({problem})") from None
        if not isinstance(fields, dict):
            raise MetadataCorrupted("it is not a JSON object")
        if type(fields.get("version")) is not int or fields["version"] != VERSION:
            raise MetadataCorrupted(f"its version is not {VERSION}")
        if fields.get("session_id") != session_id:
            raise MetadataCorrupted("it does not name this session")
        return cls(session_id, _time(fields, "created_at"), _time(fields, "updated_at"), fields)

    def touched(self, now: datetime) -> Metadata:
        """Returns the metadata after a cell; its time goes forward even if the clock does not."""
        return replace(self, updated_at=max(now, self.updated_at + _TICK))

    def render(self) -> bytes:
        """Returns the file's content; times are ISO 8601 in UTC with microseconds."""
        times = {"created_at": _text(self.created_at), "updated_at": _text(self.updated_at)}
        try:
            # with an indent, json would not use its fast code in C
            text = json.dumps({**self.fields, **times}, allow_nan=False, separators=(",\n  ", ": "))
        except (ValueError, RecursionError) as problem:
            raise MetadataCorrupted(f"it can't be written again ({problem})") from None
        return f"{{\n  {text[1:-1]}\n}}\n".encode()


def _time(fields: Mapping[str, Any], name: str) -> datetime:
    text = fields.get(name)
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
        aware = found if found is None or found.tzinfo else found.replace(tzinfo=UTC)
        if aware is not None and 1 < aware.year < MAXYEAR:  # other zones have no such time
            return aware.astimezone(UTC)
    except ValueError:
        pass
    raise MetadataCorrupted(f"its {name} is not an ISO 8601 time")


def _text(time: datetime) -> str:
    return time.isoformat(timespec="microseconds")


def now() -> datetime:
    """Returns the present time, in UTC."""
    return datetime.now(UTC)


class WrittenMetadata(Struct, frozen=True):
    """Metadata that this process wrote, and the stamp of the file that it wrote."""

    metadata: Metadata
    stamp: tuple[int, ...]


def touch(
    workspace: Folder,
    session_id: str,
    private: Folder | None,
    before: WrittenMetadata | None = None,
) -> WrittenMetadata | None:
    """Notes that a cell ended; returns None if the session has no metadata.

    The private folder is None if it lies in another file system. If the file is still the one
    written `before`, it is not read again. Raises `MetadataCorrupted`, with nothing changed, if the
    file is not metadata of this session.
    """
    with workspace.enter() as folder:
        alone = _lock(folder.fd)
        if before is not None and before.stamp == _stamp(folder):
            found: Metadata | None = before.metadata
        else:
            found = read(folder, session_id)
        if found is None:
            return None
        later = found.touched(now())
        _write(folder, private if alone else None, later.render())
        return WrittenMetadata(later, _stamp(folder))


def _stamp(folder: Folder) -> tuple[int, ...]:
    if (status := folder.status(NAME)) is None:
        return ()
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def read(folder: Folder, session_id: str) -> Metadata | None:
    """Returns the metadata in a session's folder; None if there is no file.

    Raises `MetadataCorrupted` if the file is not metadata of this session.
    """
    for _ in range(_ATTEMPTS):
        try:
            data = _content(folder)
        except FileNotFoundError:
            return None
        if data is not None:
            return Metadata.parse(data, session_id)
    raise OSError(errno.EAGAIN, "it is being replaced all the time")


def _content(folder: Folder) -> bytes | None:
    """Returns the file's content; None if the file was replaced while it was read.

    It is read twice: a file that was replaced, filled again as the spare one, and put back in the
    meantime is the same file, but the first reading may have some bytes of each content.
    """
    if not stat.S_ISREG(os.stat(NAME, dir_fd=folder.fd, follow_symlinks=False).st_mode):
        raise MetadataCorrupted("it is not a regular file")
    with closing_fd(os.open(NAME, READ, dir_fd=folder.fd)) as descriptor:
        data = os.pread(descriptor, _MOST_BYTES + 1, 0)
        if not folder.has(NAME, descriptor) or os.pread(descriptor, _MOST_BYTES + 1, 0) != data:
            return None
    if len(data) > _MOST_BYTES:
        raise MetadataCorrupted(f"it is larger than {_MOST_BYTES:,} bytes")
    return data


def _lock(folder: int) -> bool:
    """Waits until no other process changes the file; False if the file system has no locks."""
    try:
        if wait_lock(folder, _WAIT_SECONDS):
            return True
    except OSError:
        return False
    raise TimeoutError("another process holds the session's folder")


def _write(folder: Folder, private: Folder | None, data: bytes) -> None:
    """Replaces the file as a whole.

    A spare file in the private folder is filled, and the two are swapped. The spare file is kept
    for the next time: while a file system saves a commit, making a new file takes longer than a
    tiny cell. Files in two file systems can't be swapped: then a new file is written beside the old
    one, under a name of the host.
    """
    if private is None:
        with draft_of(folder.fd, data, 0o600) as draft:
            folder.rename(draft, NAME)
        return
    _fill(private.fd, data)
    if not swap_names(private.fd, _SPARE, folder.fd, NAME):
        private.rename(_SPARE, NAME, folder)


def _fill(private: int, data: bytes) -> None:
    try:
        descriptor = os.open(_SPARE, _WRITE, 0o600, dir_fd=private)
        status = os.fstat(descriptor)
        if status.st_nlink != 1 or not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise FileExistsError(errno.EEXIST, "it has another name, too, in a backup")
    except OSError as problem:
        if problem.errno not in _NO_SPARE:
            raise
        os.unlink(_SPARE, dir_fd=private)
        descriptor = os.open(_SPARE, _WRITE | os.O_EXCL, 0o600, dir_fd=private)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.truncate()
