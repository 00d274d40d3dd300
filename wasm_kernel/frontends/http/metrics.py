"""Metrics for Prometheus: of sessions, cells, their use of resources, and refusals."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from wasm_kernel.result import SandboxResult
from wasm_kernel.service.registry import SessionInfo
from wasm_kernel.service.session_worker import State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
_STATES: tuple[State, ...] = ("starting", "idle", "busy", "asleep")


class Metrics:
    """The metrics of one server. Only its event loop uses it."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._infos: list[SessionInfo] = []
        self._cells = Counter(
            "wasm_kernel_cells", "Cells that have ended.", ["outcome"], registry=self._registry
        )
        self._seconds = Histogram(
            "wasm_kernel_cell_seconds",
            "Wall-clock time of cells.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._fuel = Counter("wasm_kernel_fuel", "Fuel burnt.", registry=self._registry)
        self._refusals = Counter(
            "wasm_kernel_refusals", "What a limit refused.", ["limit"], registry=self._registry
        )
        self._registry.register(self)

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
        self._infos = infos
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics that are computed on demand; the registry calls it."""
        sessions = GaugeMetricFamily("wasm_kernel_sessions", "Sessions.", labels=["state"])
        found = Tally(each.state for each in self._infos)
        for state in _STATES:
            sessions.add_metric([state], found[state])
        yield sessions
        memory = sum(each.host_bytes for each in self._infos)
        yield GaugeMetricFamily("wasm_kernel_memory_bytes", "Memory of all workers.", value=memory)
