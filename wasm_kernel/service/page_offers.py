"""`PageOffers`: the page's messages that the cell in a worker may take before their turn.

`_Offered` is the worker's side.
"""

from __future__ import annotations

from wasm_kernel.execution.interfaces import OfferedMessage
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.service import messages
from wasm_kernel.service.calls import PendingCall
from wasm_kernel.service.worker_line import WorkerLine


class PendingOffer(PendingCall):
    """A message of the page that the running cell may take before its turn."""

    def __init__(self, offered: OfferedMessage, policy: ExecutionPolicy) -> None:
        super().__init__(messages.Comm(offered.message), policy, offered.listener)
        self._offered = offered
        self.is_served = False

    def offer(self, call: int) -> messages.Offer:
        """Returns the message that offers it, with its number."""
        return messages.Offer(call, self._offered.message, self._offered.parent)

    def claim(self) -> bool:
        """Gives the message to the cell; returns False if its own turn has come."""
        self.is_served = self._offered.claim()
        if self.is_served:
            self._offered.began()
        return self.is_served

    def end(self) -> None:
        """Tells the sender that the message was served, or that its cell is gone."""
        if self.is_served:
            self.is_served = False
            self._offered.ended()


class PageOffers(dict[int, PendingOffer]):
    """The messages that are offered to the running cell, by their numbers.

    Any thread may add one. The session's thread takes the worker's reports about them.
    """

    def handle(self, report: messages.Claim | messages.Served, line: WorkerLine) -> None:
        """Takes a report of the running cell about a message."""
        offered = self.get(report.call)
        if isinstance(report, messages.Claim):
            is_granted = offered is not None and offered.claim()
            line.answer(messages.Claimed(report.call, is_granted))
        elif offered is not None:
            offered.end()

    def end(self) -> None:
        """Ends all offers, as the cell has ended: each message's own turn comes next."""
        for call in [*self]:
            self.pop(call).end()
