"""The time of a sandbox by E2B's API, at its client."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.service import FRAME
from tests.benchmarks.sides import Side
from tests.benchmarks.table import Row
from tests.e2b.conftest import COMMAND, Api
from tests.mcp.clients import server_environment, serving

SANDBOXES, WARM = 30, 3


def sandboxes(native: Side, rounds: int) -> Iterator[Row]:
    """The time from a request for a sandbox to the HTML of its first DataFrame."""
    ours, imported = list[float](), list[float]()
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(server_environment(Path(folder)), begin=COMMAND) as server,
    ):
        api = Api(server.url, {"X-API-Key": "any"})
        for turn in range(WARM + max(rounds, SANDBOXES)):
            begun = time.perf_counter()
            sandbox = api.made(timeout=600)
            assert any("html" in line for line in sandbox.run(FRAME))
            between = time.perf_counter()
            subprocess.run([str(native.python), "-c", "import pandas"], check=True)
            if turn >= WARM:
                ours.append(between - begun)
                imported.append(time.perf_counter() - between)
            api.call("DELETE", sandbox.path)
    yield Row("E2B's API: a sandbox to its first DataFrame, import pandas", ours, imported, "s")
