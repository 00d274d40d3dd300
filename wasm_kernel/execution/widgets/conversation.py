"""What one turn says on comms, and what it hears on them while it lasts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wasm_kernel.errors import FrameError
from wasm_kernel.execution.listener import Listener
from wasm_kernel.execution.widgets.comm_frames import CommDone, CommMessage, CommNext, CommTarget
from wasm_kernel.execution.widgets.comms import COMMS, Comms, CommsFull
from wasm_kernel.execution.widgets.inbox import Inbox, Offer
from wasm_kernel.policy import ExecutionPolicy

_DROPPED = (
    "\n[wasm-kernel] More than {cap}: the rest is dropped, and what widgets show may differ from "
    "what they hold. {advice}\n"
)


class CommsCut(FrameError):
    """A message goes over the caps; `told` is the sentence for the user, empty after the first."""

    def __init__(self, told: str) -> None:
        super().__init__("over the cap of messages to widgets")
        self.told = told


class Conversation:
    """The comms of one turn. Lives on the guest's thread.

    `listener` hears the turn: its own one, or while a message of the front end is served, that
    message's.

    Args:
        listener: The turn's own.
        policy: The limits.
        comms: The open comms.
        inbox: What the front end says meanwhile.
    """

    def __init__(
        self,
        listener: Listener,
        policy: ExecutionPolicy,
        comms: Comms,
        inbox: Inbox,
    ) -> None:
        self.listener = self._own = listener
        self._policy = policy
        self._comms = comms
        self._inbox = inbox
        self._offer: Offer | None = None
        self._count = self._bytes = 0
        self._told = False

    def take(
        self, frame: CommMessage | CommTarget | CommNext | CommDone, size: int
    ) -> Mapping[str, Any]:
        """The answer to a frame of the guest.

        Raises:
            CommsCut: it is over a cap; the turn's user is told the first time.
            FrameError: it is refused.
        """
        match frame:
            case CommMessage():
                self._say(frame, size)
            case CommTarget():
                self._comms.aim(frame.name)
            case CommNext():
                return self._hear()
            case CommDone():
                self.end()
        return {}

    def end(self) -> None:
        """What was handed over has been served, or never will be; idempotent."""
        offer, self._offer, self.listener = self._offer, None, self._own
        if offer is not None:
            offer.sender.ended()

    def _say(self, message: CommMessage, size: int) -> None:
        self._count += 1
        self._bytes += size
        policy = self._policy
        if self._count > policy.comm_count:
            raise self._cut(f"{policy.comm_count:,} messages to widgets", "comm_count")
        if self._bytes > policy.comm_bytes:
            raise self._cut(f"{policy.comm_bytes:,} bytes to widgets", "comm_bytes")
        try:
            self._comms.said(message)
        except CommsFull:
            raise self._cut(f"{COMMS:,} widgets' comms in one session", "") from None
        self.listener.comm(message)

    def _cut(self, cap: str, setting: str) -> CommsCut:
        first, self._told = not self._told, True
        advice = f"Raise {setting} to send more." if setting else "Close some of them."
        return CommsCut(_DROPPED.format(cap=cap, advice=advice) if first else "")

    def _hear(self) -> Mapping[str, Any]:
        """The front end's next message, if there is any; what its callbacks say goes under it."""
        self.end()
        while (offer := self._inbox.take()) is not None:
            self._offer = offer
            offer.sender.began()
            request = self._comms.received(offer.message, offer.parent, offer.listener)
            if request is not None:
                self.listener = offer.listener
                return {"message": request}
            self.end()
        return {}
