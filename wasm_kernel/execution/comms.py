"""Which comms are open between a guest and its front end, seen from between the two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wasm_kernel.errors import FrameError
from wasm_kernel.execution import wire
from wasm_kernel.execution.frames import Stream
from wasm_kernel.execution.listener import Listener
from wasm_kernel.execution.widgets.comm_frames import (
    CLOSE,
    ID_CHARACTERS,
    OPEN,
    CommMessage,
    request_of,
)

COMMS = 50_000  # open at once; three a widget
TARGETS = 1_000

_TOO_LARGE = (
    "[wasm-kernel] What the page sent to a widget ({size:.1f} MB) can't be delivered: the most is "
    f"{wire.FRAME_BYTES * 3 // 4 / 1e6:.0f} MB. Files of that size go into the workspace folder.\n"
)
_UNFIT = "[wasm-kernel] What the page sent to a widget can't be delivered: {why}.\n"


class CommsFull(FrameError):
    """So many comms are open that one more is refused."""


class Comms:
    """The open comms, and the targets that a front end may open more to.

    The guest's thread changes it as messages pass; any thread may ask what is open. A guest whose
    memory was brought elsewhere believes in other comms than the front end has: `doubtful` says
    that it has to be asked, with `question`.
    """

    def __init__(self) -> None:
        self._open: dict[str, str] = {}
        self._targets: frozenset[str] = frozenset()
        self._met = False  # guest and front end: before, nobody here knows what either has
        self.doubtful = False

    @property
    def question(self) -> dict[str, Any]:
        """The request that asks the guest, and tells it what the front end has."""
        return {"op": "comms", "open": sorted(self._open) if self._met else None}

    @property
    def open(self) -> dict[str, str]:
        """The target of each comm that the front end has, by the comm's id."""
        return dict(self._open)

    def said(self, message: CommMessage) -> None:
        """The guest sends a message.

        Raises:
            FrameError: it can't: there is no such comm, or there are too many.
        """
        if message.kind == OPEN:
            self._add(message.comm_id, message.target_name)
        elif message.comm_id not in self._open:
            raise FrameError("no such comm is open")
        elif message.kind == CLOSE:
            del self._open[message.comm_id]

    def aim(self, target: str) -> None:
        """The guest registers a target.

        Raises:
            FrameError: there are too many.
        """
        if len(self._targets) >= TARGETS:
            raise FrameError("there are too many targets")
        self._targets |= {target}

    def received(
        self, message: CommMessage, parent: Mapping[str, str], listener: Listener
    ) -> Mapping[str, Any] | None:
        """The request that hands a front end's message to the guest; None where nobody is there.

        Args:
            message: The message; the opening of a comm to nobody is answered with its close.
            parent: What the guest may know of the message that carried it.
            listener: Hears why it can't be delivered.
        """
        try:
            if not self._takes(message):
                raise FrameError("nobody is there")
            request = request_of(message, parent)
            if not _fits(request, listener):
                return None
            self._heard(message)
        except FrameError:
            if message.kind == OPEN:
                listener.comm(CommMessage(CLOSE, message.comm_id))
            return None
        return request

    def _takes(self, message: CommMessage) -> bool:
        if message.kind == OPEN:
            return message.target_name in self._targets
        return message.comm_id in self._open

    def _heard(self, message: CommMessage) -> None:
        if message.kind == OPEN:
            self._add(message.comm_id, message.target_name)
        elif message.kind == CLOSE:
            del self._open[message.comm_id]

    def _add(self, comm_id: str, target: str) -> None:
        if comm_id not in self._open and len(self._open) >= COMMS:
            raise CommsFull(f"{COMMS:,} comms are open already")
        self._open[comm_id] = target

    def settle(self, reply: Mapping[str, Any]) -> list[str]:
        """The guest has said what it believes in; it is so from now on.

        Returns:
            The ids of the comms that the front end has and the guest does not know.
        """
        self.doubtful, self._met = False, True
        believed = dict(_pairs(reply.get("comms")))
        targets = reply.get("targets")
        names = targets if isinstance(targets, list) else []
        self._targets = frozenset(name for name in names[:TARGETS] if _is_name(name))
        stale = [one for one in self._open if one not in believed]
        self._open = believed
        return stale


def _pairs(value: Any) -> list[tuple[str, str]]:
    items = list(value.items())[:COMMS] if isinstance(value, dict) else []
    return [(one, target) for one, target in items if _is_name(one) and _is_name(target)]


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= ID_CHARACTERS and value.isprintable()


def _fits(request: Mapping[str, Any], listener: Listener) -> bool:
    try:
        size = len(wire.write(request))
    except (ValueError, TypeError, RecursionError) as problem:
        listener.emit(Stream("stderr", _UNFIT.format(why=problem)))
        return False
    if size > wire.FRAME_BYTES:
        listener.emit(Stream("stderr", _TOO_LARGE.format(size=size * 3 / 4 / 1e6)))
        return False
    return True
