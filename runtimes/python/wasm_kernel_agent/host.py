"""The door: frames out to the host, answers back in.

The encoder and the decoder are bound here once, so that a cell which overwrites `json.dumps` or the
`json` module does not take the agent's voice away.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

FRAME_BYTES = 64 * 1024 * 1024
"""The most that one frame may hold, in bytes (PROTOCOL.md)."""

Call = Callable[[bytes], bytes]

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


class FrameTooLarge(ValueError):
    """A frame that the protocol does not carry; `size` is its length in bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"{size / 2**20:.1f} MiB are too large to send (the limit is {FRAME_BYTES >> 20} MiB)"
        )
        self.size = size


class Door:
    """Sends frames through `call` (bytes to bytes), one at a time, and reads the answers."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def send(self, frame: Mapping[str, Any]) -> dict[str, Any]:
        """The host's answer to `frame`; an object, empty where there is nothing to say.

        Raises:
            FrameTooLarge: it is longer than the protocol allows; nothing was sent.
            TypeError, ValueError, RecursionError: it holds what JSON can't; nothing was sent.
        """
        data = _encode(frame).encode("utf-8", "replace")
        if len(data) > FRAME_BYTES:
            raise FrameTooLarge(len(data))
        answer = self._call(data)
        return _decode(answer.decode("utf-8")) if answer else {}


def host_door() -> Door:
    """The door of the guest this code runs in.

    Raises:
        ImportError: this interpreter is no guest.
    """
    import _host

    return Door(_host.call)
