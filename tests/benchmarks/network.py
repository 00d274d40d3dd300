"""The network: its cost while nothing uses it, and requests against those of a native kernel."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

from tests.benchmarks.sides import Kernel, Side
from tests.benchmarks.table import Row, by_turns
from tests.network.servers import serving

SIZE = 100_000_000
TRIPS = 100
PREPARED = "%pip install --quiet requests\nimport requests, time\nclient = requests.Session()"
LATENCY = """
begun = time.perf_counter()
for _ in range(20): client.get({url!r} + '/status/200').text
print((time.perf_counter() - begun) / 20 * 1000)
"""
THROUGHPUT = """
begun = time.perf_counter()
got = sum(map(len, client.get({url!r} + '/zeros/{size}', stream=True).iter_content(2**20)))
assert got == {size}
print(time.perf_counter() - begun)
"""


def network(sides: tuple[Side, Side], rounds: int) -> Iterator[Row]:
    """A tiny cell with a network that it does not use; small requests; a large answer."""
    ours, theirs = sides
    with ExitStack() as ending:
        url = f"http://127.0.0.1:{ending.enter_context(serving()).port}"
        allowed = (f"--WasmKernel.network={url}",)
        reaching = replace(ours, arguments=(*ours.arguments, *allowed))
        kernels = [ending.enter_context(Kernel(each)) for each in (reaching, ours, theirs)]
        open_, closed, native = kernels
        trips = by_turns((open_, closed), TRIPS, _trip)
        yield Row("tiny cell, network allowed and unused, against none", *trips, "ms")
        for each in (open_, native):
            each.execute(PREPARED)
        for what, code, unit in (
            ("a small request by requests, kept alive", LATENCY, "ms"),
            ("100 MB by requests", THROUGHPUT, "s"),
        ):
            asked = code.format(url=url, size=SIZE)

            def sample(kernel: Kernel, asked: str = asked) -> float:
                return float(kernel.execute(asked).stdout)

            yield Row(what, *by_turns((open_, native), rounds, sample), unit)


def _trip(kernel: Kernel) -> float:
    begun = time.perf_counter()
    kernel.execute("x = 1")
    return (time.perf_counter() - begun) * 1000
