"""`CallRecord`: calls of a program's functions with their answers, recorded and found again.

They lie among the recorded requests of the session's network, within the same limit. Everything
that is read here is untrusted, and goes to the session's own cells alone.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import msgspec

from wasm_kernel.execution.functions import CALL_BYTES
from wasm_kernel.linux.channel import parts_of, read
from wasm_kernel.network.exchanges import Exchanges, RequestDigest
from wasm_kernel.service.running_call import RecordedCall, shared_loop

_BODY_BYTES = CALL_BYTES + 4096  # bytes of a record; larger than any answer
_DAMAGED = "the recorded answer to {request} is damaged, and must be recorded again"


class CallDigest(RequestDigest):
    """The digest of a call, or of one of a stream's steps: its function's name and arguments."""

    unknown = "{request}, with these arguments, is not among the recorded calls"

    def __init__(self, function: str, *parts: bytes) -> None:
        super().__init__("CALL", function, [])
        self.request = f"{function}()"
        for part in parts:
            self.add(b"%d:" % len(part) + part)
        self.is_whole = True


class CallRecord:
    """The recorded calls of one session. Any thread may use it."""

    def __init__(self, exchanges: Exchanges) -> None:
        self._exchanges = exchanges
        self.replays = exchanges.replays

    def digest(self, function: str, *parts: bytes) -> CallDigest:
        """Returns the digest of a call with these arguments."""
        return CallDigest(function, *parts)

    def keep(self, digest: CallDigest, call: RecordedCall) -> RecordedCall:
        """Records a call; returns its answer, or a refusal if nothing more fits."""

        async def kept() -> None:
            recording = self._exchanges.record(self._exchanges.cells()[0])
            recording.add(b"\0".join(parts_of(call)))
            recording.keep(digest, (200, b"", []), is_whole=True)

        try:
            asyncio.run_coroutine_threadsafe(kept(), shared_loop()).result()
        except OSError as problem:
            return RecordedCall({"refused": str(problem)})
        return call

    async def answer(self, digest: CallDigest) -> RecordedCall:
        """Returns the recorded answer to a call; a refusal if the call was not recorded."""
        try:
            async with aclosing(await self._exchanges.answer(digest)) as found:
                data = b"".join([part async for part in found.aiter_stream(_BODY_BYTES)])
            return read(data, msgspec.json.Decoder(RecordedCall).decode)
        except OSError as problem:
            return RecordedCall({"refused": str(problem)})
        except (msgspec.MsgspecError, RecursionError):
            return RecordedCall({"refused": _DAMAGED.format(request=digest.request)})
