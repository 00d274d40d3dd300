"""The network of a kernel's cells: its front end is confined, so the broker has the sockets.

The front end passes the requests of its worker on, with the number of the running cell. The broker
counts and serves them as any owner of a sandbox does, and returns the events for the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.events import SandboxLogger
from wasm_kernel.folders.private import OpenFolder
from wasm_kernel.guests.protocol import (
    CallFunction,
    DropCall,
    FinishedCalls,
    FunctionReply,
    NextItem,
)
from wasm_kernel.linux.broker import Broker, BrokerError, Handlers
from wasm_kernel.linux.channel import parts_of, with_raw
from wasm_kernel.linux.task import Task
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.service.session_calls import SessionCalls, SessionNetwork
from wasm_kernel.service.session_network import HostNetwork
from wasm_kernel.service.session_worker import SessionWorker

_KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in (CallFunction, NextItem, FinishedCalls, DropCall)
}
CellNumber = Annotated[int, Meta(ge=0, lt=2**31)]
_EVENTS_MOST = 1_000  # events that wait for the front end


class CellAnswer(Struct, frozen=True):
    """The answer to a request, and the events since the last one."""

    answer: dict[str, Any]
    events: tuple[dict[str, Any], ...] = ()
    raw: bytes = b""


class CellRequest(Struct, frozen=True):
    """A request of a cell for the network; it has no `name` when the cell has ended.

    `cell` is the number of its call, `cells` the numbers that its user sees: its own, and
    that of the first cell of this kernel.

    A front end that was taken over may send any request; the rules of the network hold for all.
    """

    cell: Annotated[int, Meta(ge=0, lt=2**62)]
    cells: tuple[CellNumber, CellNumber] = (0, 0)
    name: str = ""
    request: Raw = Raw(b"null")
    raw: bytes = b""


class BrokerNetwork:
    """The network of a kernel's cells, in its broker. One thread at a time uses it."""

    def __init__(self, policy: ExecutionPolicy, exchanges: OpenFolder) -> None:
        self._policy, self._exchanges = policy, exchanges
        self._cell, self._cells = 0, (0, 0)
        self._events: list[dict[str, Any]] = []
        self._handlers: Handlers = {}
        self._end: Callable[[], None] = lambda: None

    def serve(self, asked: CellRequest, task: Task) -> CellAnswer:
        """Handles a request of a worker, as the front end passes it on."""
        if not asked.name:
            self._end()
            return self._answered(FunctionReply({}))
        self._cell, self._cells = asked.cell, asked.cells
        kind = _KINDS.get(asked.name)
        if kind is None:
            raise BrokerError("there is no such request")
        if not self._handlers:
            self._begin()
        request = with_raw(msgspec.json.decode(asked.request, type=kind), asked.raw)
        found: Any = self._handlers[kind](request, task)
        return self._answered(found)

    def _begin(self) -> None:
        from wasm_kernel.service.function_calls import FunctionCalls

        logger = SandboxLogger(self)
        network = HostNetwork(self._policy, lambda: logger, self._exchanges, lambda: self._cells)
        calls = FunctionCalls(network.bound, lambda: self._cell, lambda: logger, network)
        self._handlers, self._end = calls.handlers, calls.end_cell

    def _answered(self, found: FunctionReply) -> CellAnswer:
        waiting, self._events = self._events, []
        return CellAnswer(found.answer, tuple(waiting), found.raw)

    def info(self, event: str, /, *args: Any, **fields: Any) -> None:
        """Keeps an event for the front end, as its logger."""
        if len(self._events) < _EVENTS_MOST:
            self._events.append({"event": event, **fields})

    warning = info


class RelayedNetwork(SessionCalls, SessionNetwork):
    """The network of a kernel's cells, in its confined front end."""

    requests_a_cell = 4_000_000
    used = (0, 0)

    def __init__(self, session: SessionWorker, broker: Broker) -> None:
        self.offered = session.opened.functions
        self._session = session
        self._broker = broker
        self._was_used = False
        session.function_calls = self

    @property
    def handlers(self) -> Handlers:
        """The handlers of the worker's requests."""
        return dict.fromkeys(_KINDS.values(), self._pass_on)

    def end_cell(self) -> None:
        """Ends the calls and streams that a cell has left open."""
        if self._was_used:
            self._was_used = False
            try:
                self._logged(self._broker.call(CellRequest(0), CellAnswer))
            except WasmKernelError:
                return  # the broker has ended, and so will this kernel

    def close(self) -> None:
        """Ends the calls and streams that the last cell has left open."""
        self.end_cell()

    def _pass_on(self, request: Struct, task: Task) -> FunctionReply:
        self._was_used = True
        text, raw = parts_of(request)
        usage = self._session.usage
        cells = (usage.figures.next_count, usage.first_count)
        name = type(request).__name__
        asked = CellRequest(self._session.running_cell, cells, name, Raw(text), raw)
        return self._logged(self._broker.call(asked, CellAnswer, task))

    def _logged(self, answer: CellAnswer) -> FunctionReply:
        for fields in answer.events:
            name = self._session.opened.session_id
            self.used = (self.used[0] + 1, self.used[1] + fields["size"])
            self._session.logger.log_event(fields.pop("event"), **fields, session_id=name)
        return FunctionReply(answer.answer, answer.raw)
