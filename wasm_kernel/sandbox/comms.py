"""Which comms are open between a guest and its front end, seen from between the two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wasm_kernel.errors import FrameError
from wasm_kernel.sandbox.comm_frames import CLOSE, ID_CHARACTERS, OPEN, CommMessage

COMMS = 50_000  # open at once; three a widget
TARGETS = 1_000


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

    def takes(self, message: CommMessage) -> bool:
        """Whether there is somebody in the guest for a front end's message."""
        if message.kind == OPEN:
            return message.target_name in self._targets
        return message.comm_id in self._open

    def heard(self, message: CommMessage) -> None:
        """The front end sends a message, which the guest takes.

        Raises:
            FrameError: too many comms are open.
        """
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
