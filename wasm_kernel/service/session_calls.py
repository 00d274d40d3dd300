"""`SessionCalls` and `SessionNetwork`: the functions that the cells of one session call.

The bases here have none, as most sessions; the code that runs functions is loaded with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from wasm_kernel.execution.functions import Offered
from wasm_kernel.linux.broker import Handlers

if TYPE_CHECKING:
    from wasm_kernel.service.call_record import CallRecord
    from wasm_kernel.service.host_function import BoundFunction


class SessionCalls:
    """The calls of functions by the cells of one session; this base has no functions."""

    @property
    def handlers(self) -> Handlers:
        """The handlers of the worker's requests."""
        return {}

    @property
    def requests_a_cell(self) -> int:
        """How many requests the worker may have made in the running cell."""
        return 0

    def offer(
        self, functions: Mapping[str, BoundFunction], network: SessionNetwork | None, after: int
    ) -> None:
        """Takes other functions and another network, for cells whose number is above `after`."""

    def end_cell(self) -> None:
        """Ends the calls and streams that a cell has left open."""

    def close(self) -> None:
        """Ends the calls and streams of the last cell. Call it when the session falls asleep."""


class SessionNetwork:
    """The functions of the host by which a session's cells reach the network; this base has none.

    Attributes:
        bound: The functions; none if another process has them.
        offered: The functions as the guest sees them.
        record: The record of calls, if there is one.
    """

    bound: Mapping[str, BoundFunction] = MappingProxyType({})
    offered: Offered = ()
    record: CallRecord | None = None

    @property
    def used(self) -> tuple[int, int]:
        """The number of requests so far, and their bytes."""
        return 0, 0

    def close(self) -> None:
        """Closes all connections."""


NO_CALLS = SessionCalls()
"""The calls of a session whose program offers no functions."""
