"""`SessionRecords`: the owner and language of each session, kept with it for later services.

The record lies in the session's private folder, where a worker that was taken over can write. So it
is signed with a key beside the private folders, which no worker can read: a session can't be given
to another owner, and the signature of one session does not fit another. Limits, mounts and leave to
fetch packages are not kept: the caller of `Service.get` gives them.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from wasm_kernel.errors import SessionInUse
from wasm_kernel.execution.interfaces import check_type
from wasm_kernel.folders.locks import SERVED
from wasm_kernel.folders.private import signing_key
from wasm_kernel.linux.folders import DamagedRecord
from wasm_kernel.sessions.root import SessionsRoot

_RECORD_BYTES, _DIGEST_BYTES = 512 * 1024, 32
_REST_BYTES = 1024  # the rest of a record, without owner and facts
_BROKEN = (
    "It can't be told whom this session belongs to: its record is damaged, or was signed "
    "with another key. Nothing was changed. Its files can be had with export_session, or delete it."
)


class SessionRecord(Struct, frozen=True, omit_defaults=True):
    """The record of a session for a later service, or for one on another machine.

    Attributes:
        owner: Its owner.
        language: Its guest's language.
        facts: A text of the program that made the session, such as a server's facts about it.
    """

    owner: str
    language: str
    facts: str = ""

    def check(self) -> None:
        """Raises `TypeError` or `ValueError` if no later service could read it."""
        for name, text in (("owner", self.owner), ("facts", self.facts)):
            check_type(name, text, str)
            text.encode()  # half a character is a `UnicodeEncodeError`, which is a `ValueError`
        if len(json.dumps([self.owner, self.facts])) > _RECORD_BYTES - _REST_BYTES:
            raise ValueError(f"owner and facts of a session take at most {_RECORD_BYTES:,} bytes")


class _Signed(Struct, frozen=True):
    record: SessionRecord
    signature: str


class SessionRecords:
    """The records of the sessions in a root. Any thread may use it."""

    def __init__(self, root: SessionsRoot) -> None:
        self._root = root
        self._keys: dict[Path, bytes] = {}

    def write(self, session_id: str, record: SessionRecord) -> None:
        """Writes the record of a session."""
        with self._root.private_of(session_id)() as (private, path):
            signed = _Signed(record, self._signature(path, record))
            private.write_record(SERVED, signed)

    def read(self, session_id: str) -> SessionRecord | None:
        """Returns the record of a session; None if no service has had the session.

        Raises `SessionInUse` if its signature does not fit.
        """
        try:
            with self._root.private_of(session_id)() as (private, path):
                signed = private.read_record(SERVED, _Signed, _RECORD_BYTES)
        except FileNotFoundError:
            return None
        except DamagedRecord:
            raise SessionInUse(_BROKEN) from None
        with suppress(UnicodeEncodeError):  # a text of half a character
            expected = self._signature(path, signed.record).encode()
            if hmac.compare_digest(expected, signed.signature.encode()):
                return signed.record
        raise SessionInUse(_BROKEN)

    def _signature(self, private: Path, record: SessionRecord) -> str:
        """The signature of a record in one private folder, whose name is never used again."""
        if (key := self._keys.get(private.parent)) is None:
            key = self._keys[private.parent] = signing_key(private.parent)
        parts = [private.name, record.owner, record.language]
        text = msgspec.json.encode([*parts, record.facts] if record.facts else parts)
        return hashlib.blake2b(text, key=key, digest_size=_DIGEST_BYTES).hexdigest()
