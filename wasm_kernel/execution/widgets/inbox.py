"""What the front end says to widgets while a cell runs: the cell may take it while it awaits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from wasm_kernel.execution.listener import Listener
from wasm_kernel.execution.widgets.comm_frames import CommMessage


class Sender(Protocol):
    """Who waits for a message to be served. Called on the guest's thread."""

    def began(self) -> None:
        """The guest has the message."""

    def ended(self) -> None:
        """Its callbacks have run."""


class Offer:
    """A message that waits for its turn, which the running cell may take earlier.

    Args:
        message: The message.
        parent: What the guest may know of the message that carried it.
        listener: Hears what the callbacks say.
        sender: Hears when it was served.
    """

    def __init__(
        self, message: CommMessage, parent: Mapping[str, str], listener: Listener, sender: Sender
    ) -> None:
        self.message = message
        self.parent = parent
        self.listener = listener
        self.sender = sender
        self._guard = threading.Lock()
        self._gone = False

    def _leave(self) -> bool:
        with self._guard:
            first, self._gone = not self._gone, True
            return first

    def withdraw(self) -> bool:
        """Offer it no longer; False where a cell has taken it. Any thread."""
        return self._leave()

    def take(self) -> bool:
        """Serve it now; False where it was withdrawn. The guest's thread."""
        return self._leave()


class Inbox:
    """The messages on offer, in order. Any thread puts, the guest's thread takes."""

    def __init__(self) -> None:
        self._offers: deque[Offer] = deque()

    def put(self, offer: Offer) -> None:
        """Offer one more."""
        self._offers.append(offer)

    def take(self) -> Offer | None:
        """The first that is still on offer; it is the caller's to serve."""
        while self._offers:
            offer = self._offers.popleft()
            if offer.take():
                return offer
        return None
