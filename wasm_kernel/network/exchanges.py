"""`Exchanges`: the requests of a session's cells with their answers, recorded and found again.

An exchange is a record, whose name has the digest of its request, the number of its cell, and how
often that cell had sent the same request before. The body of the answer is a file beside it, named
by its digest. Secrets are cut out before anything is written.

A worker that was taken over can write into its session's private folder, so everything that is read
here is untrusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import os
import re
import socket
import ssl
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from typing import Annotated, BinaryIO, ClassVar, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from wasm_kernel.folders.private import OpenFolder
from wasm_kernel.linux.folders import Folder
from wasm_kernel.network.judge import NetworkRefused
from wasm_kernel.network.request import Headers
from wasm_kernel.policy import ExecutionPolicy, NetworkMode

_RECORD_BYTES = 1024 * 1024
_PIECE_BYTES = 64 * 1024
_FILE_LEAST = 4096  # bytes that a file counts with at least
_DIGEST_BYTES = 20
_RECORD = re.compile(r"([0-9a-f]{40})\.(\d{1,9})\.(\d{1,9})")
_BODY = re.compile(r"[0-9a-f]{40}")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_FULL = "the answer does not fit into this session's record of {most:,} bytes, and was not recorded"
_USED_UP = "the last answer to {request} was given already (of {count:,} recorded)"
_DAMAGED = "the recorded answer to {request} is damaged ({why}), and must be recorded again"
_CUT = "the recorded answer ends here: its client or its server had left"
_NO_FOLDER = "the recorded requests can't be opened ({why})"
_OTHER = "its bytes are not those that were recorded"

_FAILURES: dict[str, type[OSError]] = {
    kind.__name__: kind
    for kind in (
        *(ssl.SSLCertVerificationError, ssl.SSLError, socket.gaierror, TimeoutError),
        *(BrokenPipeError, ConnectionRefusedError, ConnectionResetError, ConnectionAbortedError),
        *(ConnectionError, OSError),
    )
}

Text = Annotated[str, Meta(max_length=128 * 1024)]  # longer than a head that httpcore reads
Line = tuple[Text, Text]
Cells = tuple[int, int]
Connected = TypeVar("Connected")


class Exchange(Struct, frozen=True):
    """The record of one exchange. `body` is the digest of the answer's body, `size` its bytes.

    The body `is_whole`, unless the client or the server left before its end. A request without an
    answer has a `failure`: an error's class and its text. `check` is the digest of the rest of the
    record.
    """

    request: str
    status: Annotated[int, Meta(ge=200, le=999)]
    reason: Annotated[str, Meta(pattern=r"^[^\r\n]*\Z")]
    headers: list[Line]
    body: Annotated[str, Meta(pattern=f"^{_BODY.pattern}$")]
    size: Annotated[int, Meta(ge=0)]
    is_whole: bool
    failure: Line | None = None
    check: str = ""

    @property
    def digest(self) -> str:
        """The digest of the record without `check`."""
        data = msgspec.json.encode(replace(self, check=""))
        return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()


class RequestDigest:
    """The digest of a request: its method, URL, `Range` and body, as the client sends them."""

    unknown: ClassVar = "{request}, with this query and body, is not among the recorded requests"

    def __init__(self, method: str, url: str, headers: Headers) -> None:
        ranges = [value for name, value in headers if name.lower() == b"range"]
        self._head = b"\0".join([method.encode(), url.encode(), *ranges])
        self._body = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self.request = f"{method} {url.partition('?')[0][:1000]}"
        self.is_whole = False

    def add(self, part: bytes) -> None:
        """Adds a part of the body."""
        self._body.update(part)

    @property
    def key(self) -> str:
        """The digest; it has no body if the answer came before the request's end."""
        return self._key(self._body.digest() if self.is_whole else b"")

    @property
    def keys(self) -> tuple[str, str]:
        """The digests with the body and without."""
        return self.key, self._key(b"")

    def _key(self, body: bytes) -> str:
        whole = self._head + b"\0\0" + body
        return hashlib.blake2b(whole, digest_size=_DIGEST_BYTES).hexdigest()


class Exchanges:
    """The exchanges of one session. Only the loop's thread uses it.

    Whether it `records` or `replays` depends on the policy; `cells` returns the numbers of the
    running cell, and of the first one since the session was opened.
    """

    def __init__(
        self, policy: ExecutionPolicy, open_folder: OpenFolder, cells: Callable[[], Cells]
    ) -> None:
        self.records = policy.network_mode == NetworkMode.RECORD
        self.replays = policy.network_mode == NetworkMode.REPLAY
        self.cells = cells
        self._open_folder, self._most = open_folder, policy.network_record_bytes
        self._door = policy.door
        self._held = ExitStack()
        self._folder: Folder | None = None
        self._left: dict[str, list[tuple[int, int]]] = {}  # unused answers, by request
        self._known: Counter[str] = Counter()
        self._made: Counter[tuple[str, int]] = Counter()
        self._drafts = 0
        self.total = 0

    def close(self) -> None:
        """Closes the folder; the next use opens it again."""
        self._held.close()
        self._folder = None

    # -- recording

    def record(self, cell: int) -> Recording:
        """Begins to record an answer for a cell; raises `NetworkRefused` if nothing more fits."""
        folder = self._folder
        if folder is None:
            folder = self._open()
            self._sweep(folder)
        self._drafts += 1
        name = f".draft-{self._drafts}.aside"  # one of `Folder.abandoned`, if this process ends
        folder.remove(name)
        return Recording(self, os.fdopen(folder.open_regular(name, _NEW), "wb"), name, cell)

    def spend(self, size: int) -> None:
        """Counts bytes of a file; raises `NetworkRefused` if they do not fit."""
        if self.total + size > self._most:
            raise self._refused(_FULL.format(most=self._most), "network_record_bytes")
        self.total += size

    def keep(self, draft: str, exchange: Exchange, key: str, cell: int) -> None:
        """Keeps an answer whose body is in a draft, as the next one of its cell."""
        assert self._folder is not None, "the draft lies in it"
        number = self._made[key, cell]
        self._made[key, cell] += 1
        self._folder.rename(draft, exchange.body)
        self._folder.write_record(f"{key}.{cell}.{number}", exchange)

    def fail(self, digest: RequestDigest, problem: OSError, cell: int) -> None:
        """Records that a request got no answer, or a connection was not made."""
        if not self.records or isinstance(problem, PermissionError):
            return
        kind = next(each.__name__ for each in type(problem).__mro__ if each.__name__ in _FAILURES)
        said = str(problem.strerror or problem)[:1000]
        with contextlib.suppress(OSError):  # no room
            head: tuple[int, bytes, Headers] = (502, b"", [])
            self.record(cell).keep(digest, head, is_whole=True, failure=(kind, said))

    async def connect(self, place: str, connect: Callable[[], Awaitable[Connected]]) -> Connected:
        """Connects to a place; records a failure, or raises a recorded one.

        While requests are replayed, `connect` reaches nothing.
        """
        digest, cell = RequestDigest("CONNECT", place, []), self.cells()[0]
        number = self._made[digest.key, cell]
        if self.replays:
            folder = self._listed()
            self._made[digest.key, cell] += 1
            if (cell, number) in self._left.get(digest.key, ()):
                await self._recorded(folder, digest, f"{digest.key}.{cell}.{number}")
        try:
            made = await connect()
        except OSError as problem:
            self.fail(digest, problem, cell)
            raise
        if self.records:
            self._made[digest.key, cell] += 1
        return made

    def drop(self, draft: str) -> None:
        """Removes a draft."""
        if self._folder is not None:
            self._folder.remove(draft)

    def _sweep(self, folder: Folder) -> None:
        """Removes bodies that no record names, and counts the rest.

        Other files stay: the folder may be one of the user's.
        """
        names = folder.names()
        records = [each for each in names if _RECORD.fullmatch(each)]
        used = {*records, *(each.body for each in map(self._read, records) if each is not None)}
        bodies = [each for each in names if _BODY.fullmatch(each)]
        for name in {*bodies, *folder.abandoned()} - used:
            folder.remove(name)
        found = [status for name in used & {*names} if (status := folder.status(name)) is not None]
        self.total = sum(max(_FILE_LEAST, each.st_size) for each in found)

    def _read(self, name: str) -> Exchange | None:
        assert self._folder is not None
        with contextlib.suppress(OSError):
            return self._folder.read_record(name, Exchange, _RECORD_BYTES)
        return None

    # -- replaying

    async def answer(self, digest: RequestDigest) -> RecordedAnswer:
        """Returns the next recorded answer to a request; raises `NetworkRefused` if there is none.

        Answers to cells that ran before the session was opened come last.
        """
        folder = self._listed()
        key = next((each for each in digest.keys if each in self._known), "")
        if not key:
            raise self._refused(digest.unknown.format(request=digest.request))
        left = self._left[key]
        if not left:
            words = {"request": digest.request, "count": self._known[key]}
            raise self._refused(_USED_UP.format(**words))
        first = self.cells()[1]
        chosen = next((each for each in left if each[0] >= first), left[0])
        left.remove(chosen)
        return await self._recorded(folder, digest, f"{key}.{chosen[0]}.{chosen[1]}")

    async def _recorded(self, folder: Folder, digest: RequestDigest, name: str) -> RecordedAnswer:
        """Returns a recorded answer; raises the error that was recorded in place of one."""
        try:
            found = await self._answer(folder, name)
        except (OSError, UnicodeError) as problem:
            why = str(getattr(problem, "strerror", None) or problem)
            damaged = _DAMAGED.format(request=digest.request, why=why)
            raise self._refused(damaged) from None
        if found.failure is not None:
            await found.aclose()
            raise found.failure
        return found

    async def _answer(self, folder: Folder, name: str) -> RecordedAnswer:
        exchange = folder.read_record(name, Exchange, _RECORD_BYTES)
        if exchange.check != exchange.digest:
            raise OSError(0, _OTHER)
        body = os.fdopen(folder.open_regular(exchange.body), "rb")
        try:
            if await asyncio.to_thread(_digest_of, body, exchange.size) != exchange.body:
                raise OSError(0, _OTHER)
            body.seek(0)
            return RecordedAnswer(exchange, body)
        except BaseException:
            body.close()
            raise

    def _listed(self) -> Folder:
        """Returns the folder, whose records are known."""
        if self._folder is not None:
            return self._folder
        folder = self._open()
        if self._known:
            return folder  # the session was asleep
        found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for name in folder.names():
            if parts := _RECORD.fullmatch(name):
                found[parts[1]].append((int(parts[2]), int(parts[3])))
        self._left = {key: sorted(each) for key, each in found.items()}
        self._known.update({key: len(each) for key, each in found.items()})
        return folder

    def _open(self) -> Folder:
        try:
            self._folder = self._held.enter_context(self._open_folder())
        except OSError as problem:
            raise self._refused(_NO_FOLDER.format(why=problem.strerror)) from None
        return self._folder

    def _refused(self, text: str, setting: str = "network_mode") -> NetworkRefused:
        """Returns the error, with the setting that its owner can change."""
        return NetworkRefused(f"{text}. The setting is {self._door.name_of(setting)}.")


class Recording:
    """An answer that is being recorded."""

    def __init__(self, exchanges: Exchanges, file: BinaryIO, draft: str, cell: int) -> None:
        self._exchanges, self._file, self._draft = exchanges, file, draft
        self._cell = cell
        self._digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._size = 0
        self._is_over = False

    def add(self, data: bytes) -> None:
        """Adds a part of the body; raises `NetworkRefused` if it does not fit."""
        try:
            self._exchanges.spend(len(data))
            self._file.write(data)
        except OSError:
            self.drop()
            raise
        self._digest.update(data)
        self._size += len(data)

    def keep(
        self,
        digest: RequestDigest,
        head: tuple[int, bytes, Headers],
        *,
        is_whole: bool,
        failure: Line | None = None,
    ) -> None:
        """Ends the recording, and keeps the answer with its status, reason and headers."""
        if self._is_over:
            return
        self._is_over = True
        status, reason, headers = head
        lines = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        said, body = reason.decode("latin-1"), self._digest.hexdigest()
        exchange = Exchange(
            digest.request, status, said, lines, body, self._size, is_whole, failure
        )
        try:
            self._file.close()
            self._exchanges.spend(2 * _FILE_LEAST)
            exchange = replace(exchange, check=exchange.digest)
            self._exchanges.keep(self._draft, exchange, digest.key, self._cell)
        except OSError:
            self.drop()
            raise

    def drop(self) -> None:
        """Ends the recording without keeping anything."""
        self._is_over = True
        self._exchanges.total -= self._size
        with contextlib.suppress(OSError):  # such as of a full disk
            self._file.close()
        self._exchanges.drop(self._draft)


class RecordedAnswer:
    """A recorded answer, read like a response of httpcore's."""

    def __init__(self, exchange: Exchange, body: BinaryIO) -> None:
        self._exchange, self._body = exchange, body
        self.status = exchange.status
        self.failure: OSError | None = None
        if exchange.failure is not None:
            kind, said = exchange.failure
            self.failure = _FAILURES.get(kind, OSError)(0, said)  # the error may have any number
        self.headers: Headers = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in exchange.headers
        ]
        self.extensions = {"reason_phrase": exchange.reason.encode("latin-1")}

    async def aiter_stream(self, most: float = math.inf) -> AsyncIterator[bytes]:
        """Yields the body; raises `ConnectionError` where the recording was cut short.

        Raises `OSError` if it has more than `most` bytes.
        """
        if self._exchange.size > most:
            raise OSError("the recorded answer is larger than any could be")
        while part := self._body.read(_PIECE_BYTES):
            yield part
        if not self._exchange.is_whole:
            raise ConnectionError(_CUT)

    async def aclose(self) -> None:
        """Closes the file."""
        self._body.close()


def _digest_of(body: BinaryIO, size: int) -> str:
    """Returns the digest of a file's content, if it has that size; else an empty text."""
    if os.fstat(body.fileno()).st_size != size:
        return ""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    while part := body.read(_PIECE_BYTES):
        digest.update(part)
    return digest.hexdigest()
