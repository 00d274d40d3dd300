"""`Offers`: the page's messages that a running cell may take, in a worker.

A comm message that comes while a cell runs waits for its turn in the front end, which alone knows
the order. The cell may take it earlier, while it awaits something: then the front end is asked
first, so that only one of the two serves the message.
"""

from __future__ import annotations

import queue
from collections.abc import Callable

from msgspec import Struct

from wasm_kernel.execution.interfaces import Listener, OfferedMessage
from wasm_kernel.execution.session_guest import SessionGuest
from wasm_kernel.service.messages import Claim, Claimed, Offer, Served

Send = Callable[[Struct], None]
Answers = queue.SimpleQueue[Claimed | None]


class Offers:
    """The offered messages of one worker. The main thread adds them; the guest's takes them."""

    def __init__(self, guest: SessionGuest, send: Send) -> None:
        self._guest = guest
        self._send = send
        self._answers: Answers = queue.SimpleQueue()

    def add(self, offer: Offer, page: Listener) -> None:
        """Offers a message to the running cell; `page` gets the output of its callbacks."""
        self._guest.offer(_Offered(offer, page, self._send, self._answers))

    def answered(self, answer: Claimed) -> None:
        """Takes the front end's answer to a claim."""
        self._answers.put(answer)

    def close(self) -> None:
        """Ends a wait for the front end, which is gone."""
        self._answers.put(None)


class _Offered(OfferedMessage):
    """One offered message, whose sender is beyond the walls."""

    def __init__(self, offer: Offer, page: Listener, send: Send, answers: Answers) -> None:
        super().__init__(offer.message, offer.parent, page)
        self._send, self._answers = send, answers
        self._call = offer.call

    def claim(self) -> bool:
        """Takes the message, if the front end has not begun to deliver it."""
        self._send(Claim(self._call))
        if (answer := self._answers.get()) is None:
            self._answers.put(None)  # a later claim must not wait either
            return False
        return answer.granted

    def began(self) -> None:
        """Does nothing: the front end knows from the claim."""

    def ended(self) -> None:
        """Tells the front end that the message was served."""
        self._send(Served(self._call))
