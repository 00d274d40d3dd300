"""Metrics for Prometheus: of sessions, cells, their use of resources, and refusals."""

from __future__ import annotations

from collections import Counter as Tally
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from wasm_kernel.result import SandboxResult
from wasm_kernel.service.registry import SessionInfo
from wasm_kernel.service.session_worker import State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
_STATES: tuple[State, ...] = ("starting", "idle", "busy", "asleep")


class Metrics:
    """The metrics of one server. Only its event loop uses it."""

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        counter = partial(Counter, registry=own)
        self._cells = counter("wasm_kernel_cells", "Cells that have ended.", ["outcome"])
        self._fuel = counter("wasm_kernel_fuel", "Fuel burnt.")
        self._refusals = counter("wasm_kernel_refusals", "What a limit refused.", ["limit"])
        about = "Wall-clock time of cells."
        self._seconds = Histogram("wasm_kernel_cell_seconds", about, buckets=_SECONDS, registry=own)
        self._sessions = Gauge("wasm_kernel_sessions", "Sessions.", ["state"], registry=own)
        self._memory = Gauge("wasm_kernel_memory_bytes", "Memory of all workers.", registry=own)

    def cell_ended(self, result: SandboxResult) -> None:
        """Counts a cell."""
        stopped = {
            *("OutOfFuel", "OutOfMemory", "CellTimeout", "WorkerLost"),
            *("MemoryError", "KeyboardInterrupt"),
        }
        name = result.error.ename if result.error is not None else ""
        outcome = "ok" if result.success else name if name in stopped else "error"
        self._cells.labels(outcome).inc()
        self._seconds.observe(result.duration)
        self._fuel.inc(result.fuel_consumed or 0)

    def cell_cancelled(self) -> None:
        """Counts a cell whose client has cancelled the request."""
        self._cells.labels("cancelled").inc()

    def refused(self, limit: str) -> None:
        """Counts a refusal by a limit."""
        self._refusals.labels(limit).inc()

    def page(self, infos: list[SessionInfo]) -> bytes:
        """Returns the page for Prometheus, with the service's current facts about its sessions."""
        found = Tally(each.state for each in infos)
        for state in _STATES:
            self._sessions.labels(state).set(found[state])
        self._memory.set(sum(each.host_bytes for each in infos))
        return generate_latest(self._registry)
