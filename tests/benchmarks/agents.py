"""The cost of the server for agents, measured at its client."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from tests.benchmarks.sides import Side
from tests.benchmarks.table import Figure
from tests.mcp.clients import COMMAND, MODERN, Agent, Agents, server_environment, serving

TRIPS, WARM = 20, 5
MILLISECONDS = 1000


def agents(_native: Side, rounds: int) -> Iterator[Figure]:
    """The time of a server's first result, and of a tiny cell, over stdio and HTTP."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ending:
        made = Agents(server_environment(Path(folder)), ending)
        _cold(made.environment)  # fills file caches
        cold = [_cold(made.environment) for _ in range(rounds)]
        yield Figure("agent: server start to first result", median(cold), "s")
        server = ending.enter_context(serving(made.environment, begin=(*COMMAND, "--http")))
        clients = {
            "stdio": made.command(COMMAND),
            "HTTP": made.http(server.url, mode="legacy"),
            "HTTP, by handle": made.http(server.url, mode=MODERN),
        }
        trips = {name: list[float]() for name in clients}
        for turn in range(WARM + TRIPS * rounds):
            for name, client in clients.items():
                trips[name] += [_trip(client) * MILLISECONDS] if turn >= WARM else []
        for name, taken in trips.items():
            yield Figure(f"agent: a tiny cell over {name}", median(taken), "ms")


def _cold(environment: dict[str, str]) -> float:
    with ExitStack() as ending:
        made = Agents(environment, ending)
        began = time.perf_counter()
        _trip(made.command(COMMAND))
        return time.perf_counter() - began


def _trip(client: Agent) -> float:
    began = time.perf_counter()
    answer = client.call("execute_code", code="print(42)")
    taken = time.perf_counter() - began
    assert "42" in answer.text, answer.text
    return taken
