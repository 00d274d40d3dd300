"""The cost of the server for agents, measured at its client, against two others.

One is a few lines around ipykernel (`ipykernel_server.py`), which protects nothing. The other is
`llm-wasm-sandbox` from PyPI, which starts an interpreter for each cell.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.benchmarks.sides import Side
from tests.benchmarks.table import Row
from tests.mcp.clients import COMMAND, MODERN, Agent, Agents, server_environment, serving

TRIPS, WARM = 20, 5
PEER = "llm-wasm-sandbox"
MILLISECONDS = 1000


def agents(native: Side, rounds: int) -> Iterator[Row]:
    """The time from starting a server to its first result, and of a tiny cell, over stdio and
    HTTP.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ending:
        os.environ["IPYTHONDIR"] = folder
        made = Agents(server_environment(Path(folder)), ending)
        bin_folder = native.python.parent
        script = Path(__file__).with_name("ipykernel_server.py")
        servers = {
            "ours": COMMAND,
            "ipykernel": [str(native.python), str(script)],
            PEER: [str(bin_folder / "llm-wasm-mcp")],
        }
        cold = {name: list[float]() for name in servers}
        for turn in range(rounds + 1):  # the first one does not count
            for name, command in servers.items():
                if turn or name != PEER:  # the peer compiles its guest for each cell
                    taken = _cold(made.environment, command, name)
                    cold[name] += [taken] if turn else []
        yield Row(
            "agent: server start to first result, ipykernel", cold["ours"], cold["ipykernel"], "s"
        )
        yield Row("the same, llm-wasm-sandbox", cold["ours"], cold[PEER], "s")

        clients = {name: made.command(command) for name, command in servers.items()}
        server = ending.enter_context(serving(made.environment, begin=(*COMMAND, "--http")))
        clients["http"] = made.http(server.url, mode="legacy")
        clients["handle"] = made.http(server.url, mode=MODERN)
        trips = {name: list[float]() for name in clients}
        for turn in range(WARM + TRIPS * rounds):
            for name, client in clients.items():
                if name != PEER or turn % TRIPS == WARM:
                    taken = _trip(client, name) * MILLISECONDS
                    trips[name] += [taken] if turn >= WARM else []
        for name, words in (("ours", "stdio"), ("http", "HTTP"), ("handle", "HTTP, by handle")):
            what = f"agent: a tiny cell over {words}; over stdio,"
            yield Row(f"{what} ipykernel", trips[name], trips["ipykernel"], "ms")
            yield Row(f"{what} llm-wasm-sandbox", trips[name], trips[PEER], "ms")


def _cold(environment: dict[str, str], command: list[str], name: str) -> float:
    with ExitStack() as ending:
        made = Agents(environment, ending)
        began = time.perf_counter()
        _trip(made.command(command), name, "print(6 * 7)")
        return time.perf_counter() - began


def _trip(client: Agent, name: str, code: str = "print(42)") -> float:
    more = {"language": "python"} if name == PEER else {}
    began = time.perf_counter()
    answer = client.call("execute_code", code=code, **more)
    taken = time.perf_counter() - began
    assert "42" in answer.text, answer.text
    return taken
