"""`Functions`: the functions of a program that cells may call; most programs offer none.

The code that checks and runs them is loaded by programs that offer some.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.functions import Offered
from wasm_kernel.linux.broker import Handlers
from wasm_kernel.service.open_message import Open

if TYPE_CHECKING:
    from wasm_kernel.service.call_record import CallRecord
    from wasm_kernel.service.host_function import BoundFunction, Function, HostFunction


class SessionCalls(Protocol):
    """The calls of functions by the cells of one session."""

    @property
    def handlers(self) -> Handlers:
        """The handlers of the worker's requests."""

    @property
    def requests_a_cell(self) -> int:
        """How many requests the worker may have made in the running cell."""

    def offer(self, functions: Mapping[str, BoundFunction], after: int) -> None:
        """Takes other functions, for cells whose number is above `after`."""

    def end_cell(self) -> None:
        """Ends the calls and streams of a cell that has ended."""

    def close(self) -> None:
        """Ends the calls and streams of the last cell. Call it when the session falls asleep."""


class SessionNetwork(Protocol):
    """The functions of the host by which a session's cells reach the network."""

    @property
    def bound(self) -> Mapping[str, BoundFunction]:
        """The functions; none if another process has them."""

    @property
    def offered(self) -> Offered:
        """The functions as the guest sees them."""

    @property
    def record(self) -> CallRecord | None:
        """The record of calls, if there is one."""

    @property
    def used(self) -> tuple[int, int]:
        """The number of requests so far, and their bytes."""

    def close(self) -> None:
        """Closes all connections."""


class _NoCalls:
    handlers: Handlers = MappingProxyType({})
    requests_a_cell = 0

    def offer(self, functions: Mapping[str, BoundFunction], after: int) -> None:
        """Does nothing."""

    def end_cell(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


NO_CALLS: SessionCalls = _NoCalls()
"""The calls of a session whose program offers no functions."""


class ServedSession(Protocol):
    """The session whose cells call functions: a `SessionWorker`."""

    opened: Open
    logger: SandboxLogger
    function_calls: SessionCalls
    network: SessionNetwork | None

    @property
    def running_cell(self) -> int:
        """The number of the call that is the running cell; 0 if none runs."""


class Functions:
    """The functions that a program offers; `offered` describes them for cells, `lines` for models.

    Raises:
        TypeError, ValueError: as `HostFunction`, or two functions have one name.
    """

    def __init__(self, functions: Iterable[Function | HostFunction] = ()) -> None:
        self._bound: dict[str, BoundFunction] = {}
        if found := [*functions]:
            from wasm_kernel.service.host_function import bound_by_name

            self._bound = bound_by_name(found)
        self.offered: Offered = tuple(each.offered for each in self._bound.values())
        self.lines: Sequence[str] = [each.described for each in self._bound.values()]

    def serve(self, session: ServedSession) -> Mapping[str, Any]:
        """Serves the calls of a session's cells from the next cell on, and those of its network.

        Returns the fields of `Open` that change for its next worker.
        """
        bound, offered = self._bound, self.offered
        if (network := session.network) is not None:
            bound, offered = {**bound, **network.bound}, (*offered, *network.offered)
        if session.function_calls is NO_CALLS and bound:
            session.function_calls = _calls_of(session, bound)
        session.function_calls.offer(bound, session.running_cell)
        return {} if offered == session.opened.functions else {"functions": offered}


def _calls_of(session: ServedSession, bound: Mapping[str, BoundFunction]) -> SessionCalls:
    from wasm_kernel.service.function_calls import FunctionCalls

    def closed() -> None:
        if session.network is not None:
            session.network.close()

    def record() -> CallRecord | None:
        return None if session.network is None else session.network.record

    cell, logger = (lambda: session.running_cell), (lambda: session.logger)
    return FunctionCalls(bound, cell, logger, closed, record)
