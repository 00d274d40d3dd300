"""Comms: the channels between objects in the guest, such as widgets, and the front end's page.

`Comms` stands between the two ends: it knows the open comms, and holds the page's messages while a
cell runs. `TurnComms` is one turn's part: its limits and its listener.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from wasm_kernel.errors import FrameError
from wasm_kernel.execution.interfaces import Listener, OfferedMessage
from wasm_kernel.guests.protocol import (
    NAME_CHARACTERS,
    CommDone,
    CommFrame,
    CommNext,
    CommTarget,
    Stream,
    comm_request,
    encode,
)
from wasm_kernel.linux.channel import FRAME_BYTES
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import COMMS_MOST, CommMessage

TARGETS_MOST = 1_000

_TOO_LARGE = (
    "[wasm-kernel] What the page sent to a widget ({size:.1f} MiB) can't be delivered: the most is "
    f"{FRAME_BYTES * 3 // 4 >> 20} MiB. Files of that size go into the workspace folder.\n"
)
_UNFIT = "[wasm-kernel] What the page sent to a widget can't be delivered: {why}.\n"
_DROPPED = (
    "\n[wasm-kernel] More than {limit}: the rest is dropped, and what widgets show may differ from "
    "what they hold. {advice}\n"
)


class TooManyComms(FrameError):
    """The error of an `open` that is refused, as too many comms are open."""


class CommsOverLimit(FrameError):
    """A message is over the limits; `notice` is for the user, empty after the first time."""

    def __init__(self, notice: str) -> None:
        super().__init__("over the cap of messages to widgets")
        self.notice = notice


class Comms:
    """The open comms of a guest, and the targets to which a front end may open more.

    The guest's thread changes them as messages pass; any thread may read `open`, and `offer`. If
    memory has travelled, they are `out_of_sync`: the guest may know other comms than the front end
    has, and must be asked with `sync_request`.
    """

    def __init__(self) -> None:
        self._open: dict[str, str] = {}
        self._targets: frozenset[str] = frozenset()
        self._is_known = False  # True once the front end's comms are known, after the first sync
        self._offered: deque[OfferedMessage] = deque()
        self.out_of_sync = False

    @property
    def open(self) -> dict[str, str]:
        """The target of each comm that the front end has, by the comm's id."""
        return dict(self._open)

    @property
    def sync_request(self) -> dict[str, Any]:
        """The request that asks the guest for its comms, and names those of the front end."""
        return {"op": "comms", "open": sorted(self._open) if self._is_known else None}

    def sync(self, reply: Mapping[str, Any]) -> list[str]:
        """Adopts the guest's comms and targets; returns the ids of comms that only the page has."""
        self.out_of_sync, self._is_known = False, True
        comms, targets = reply.get("comms"), reply.get("targets")
        pairs = list(comms.items())[:COMMS_MOST] if isinstance(comms, dict) else []
        believed = dict(pair for pair in pairs if all(map(_is_name, pair)))
        names = targets if isinstance(targets, list) else []
        self._targets = frozenset(name for name in names[:TARGETS_MOST] if _is_name(name))
        stale = [comm_id for comm_id in self._open if comm_id not in believed]
        self._open = believed
        return stale

    def offer(self, offered: OfferedMessage) -> None:
        """Lets the running cell take a message while it awaits something. Any thread."""
        self._offered.append(offered)

    def take_offered(self) -> OfferedMessage | None:
        """Returns the first message that is still on offer, which the caller must serve."""
        while self._offered:
            offered = self._offered.popleft()
            if offered.claim():
                return offered
        return None

    def from_guest(self, message: CommMessage) -> None:
        """Notes a guest's message; `FrameError` if the comm is not open, or too many are."""
        if message.kind == "open":
            if message.comm_id not in self._open and len(self._open) >= COMMS_MOST:
                raise TooManyComms(f"{COMMS_MOST:,} comms are open already")
            self._open[message.comm_id] = message.target_name
        elif message.comm_id not in self._open:
            raise FrameError("no such comm is open")
        elif message.kind == "close":
            del self._open[message.comm_id]

    def add_target(self, name: str) -> None:
        """Notes a target that the guest registers; `FrameError` if there are too many."""
        if len(self._targets) >= TARGETS_MOST:
            raise FrameError("there are too many targets")
        self._targets |= {name}

    def from_page(
        self, message: CommMessage, parent: Mapping[str, str], listener: Listener
    ) -> Mapping[str, Any] | None:
        """Returns the request that hands a page's message to the guest; None if it is dropped.

        It is dropped if its comm or target does not exist, or if it can't be delivered. In
        the last case the listener gets the reason. A dropped `open` is answered with a `close`.
        """
        is_open = message.kind == "open"
        known = self._targets if is_open else self._open
        if (message.target_name if is_open else message.comm_id) in known:
            request = comm_request(message, parent)
            if not _fits(request, listener):
                return None
            try:
                self.from_guest(message)  # both ends open and close alike
            except TooManyComms:
                pass
            else:
                return request
        if is_open:
            listener.comm(CommMessage("close", message.comm_id))
        return None


class TurnComms:
    """One turn's messages on comms, out and in. Lives on the guest's thread.

    The listener is that of the turn, or of the front end's message that is being served.
    """

    def __init__(self, listener: Listener, policy: ExecutionPolicy, comms: Comms) -> None:
        self.listener = self._own = listener
        self._policy = policy
        self._comms = comms
        self._served: OfferedMessage | None = None
        self._messages = self._bytes = 0
        self._has_noticed = False

    def answer(self, frame: CommFrame, size: int) -> Mapping[str, Any]:
        """Returns the answer to a guest's frame of `size` bytes, or raises `FrameError`.

        The first `CommsOverLimit` of a turn has a notice for the user.
        """
        match frame:
            case CommMessage():
                self._send(frame, size)
            case CommTarget():
                self._comms.add_target(frame.name)
            case CommNext():
                return self._take_next()
            case CommDone():
                self.end()
        return {}

    def end(self) -> None:
        """Ends the turn of the message that the guest has taken. Safe to call twice."""
        served, self._served, self.listener = self._served, None, self._own
        if served is not None:
            served.ended()

    def _send(self, message: CommMessage, size: int) -> None:
        self._messages += 1
        self._bytes += size
        policy = self._policy
        if self._messages > policy.comm_count:
            raise self._over(f"{policy.comm_count:,} messages to widgets", "comm_count")
        if self._bytes > policy.comm_bytes:
            raise self._over(f"{policy.comm_bytes:,} bytes to widgets", "comm_bytes")
        try:
            self._comms.from_guest(message)
        except TooManyComms:
            raise self._over(f"{COMMS_MOST:,} widgets' comms in one session", "") from None
        self.listener.comm(message)

    def _over(self, limit: str, setting: str) -> CommsOverLimit:
        is_first, self._has_noticed = not self._has_noticed, True
        raising = self._policy.door.raising(setting, purpose="to send more")
        advice = raising if setting else "Close some of them."
        return CommsOverLimit(_DROPPED.format(limit=limit, advice=advice) if is_first else "")

    def _take_next(self) -> Mapping[str, Any]:
        """Returns the front end's next message, if any; its listener gets its callbacks' output."""
        self.end()
        while (offered := self._comms.take_offered()) is not None:
            self._served = offered
            offered.began()
            request = self._comms.from_page(offered.message, offered.parent, offered.listener)
            if request is not None:
                self.listener = offered.listener
                return {"message": request}
            self.end()
        return {}


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= NAME_CHARACTERS and value.isprintable()


def _fits(request: Mapping[str, Any], listener: Listener) -> bool:
    try:
        size = len(encode(request))
    except (ValueError, TypeError, RecursionError) as problem:
        listener.emit(Stream("stderr", _UNFIT.format(why=problem)))
        return False
    if size > FRAME_BYTES:
        listener.emit(Stream("stderr", _TOO_LARGE.format(size=size * 3 / 4 / 2**20)))
        return False
    return True
