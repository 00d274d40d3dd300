"""Numbers for Prometheus: sessions, cells, what they use, and what was refused."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from wasm_kernel.result import SandboxResult
from wasm_kernel.service.session_info import SessionInfo
from wasm_kernel.service.session_worker import State

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000)
_STATES: tuple[State, ...] = ("starting", "idle", "busy", "asleep")


class Metrics:
    """The numbers of one server. Its event loop uses it."""

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
            "wasm_kernel_refusals",
            "What a limit refused.",
            ["limit"],
            registry=self._registry,
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
        """Counts what a limit has refused."""
        self._refusals.labels(limit).inc()

    def page(self, infos: list[SessionInfo]) -> bytes:
        """Returns the page that Prometheus reads, of what the service knows of its sessions now."""
        self._infos = infos
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yields what is counted only when it is asked for; the registry calls it."""
        sessions = GaugeMetricFamily("wasm_kernel_sessions", "Sessions.", labels=["state"])
        found = Tally(each.state for each in self._infos)
        for state in _STATES:
            sessions.add_metric([state], found[state])
        yield sessions
        memory = sum(each.host_bytes for each in self._infos)
        yield GaugeMetricFamily("wasm_kernel_memory_bytes", "Memory of all workers.", value=memory)
