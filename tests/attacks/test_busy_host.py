"""F5, ATTACKS 45: whatever a cell shows, the kernel answers, and the cell's time limit ends it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.real_kernel import RealKernel
from tests.sampled import sampled

TIMEOUT, GRACE = 1, 0.5  # seconds that a cell may take
LATE = 60  # seconds by which a busy machine may miss a limit; an idle one misses it by one
ANSWER = 20.0  # seconds for the control channel; on an idle machine it takes less than one
SHOW = "while True: display({{{mime!r}: {content}}}, raw=True)"
HUGE = {
    "blanks as a picture": SHOW.format(mime="image/png", content="' ' * (40 << 20) + '!'"),
    "a fence of blanks": SHOW.format(mime="text/markdown", content="'```' + ' ' * 900_000 + '!'"),
    "formulas": SHOW.format(mime="text/markdown", content="'\\\\begin{align}\\n' * 6000"),
    "attributes": SHOW.format(mime="text/html", content="'<b title=x id=y></b>' * 240_000"),
    "calls in an attribute": SHOW.format(
        mime="text/html", content="'<svg><g transform=\"' + 'a(' * (7 << 20) + '\"></g></svg>'"
    ),
    "a Plotly path": SHOW.format(
        mime="application/vnd.plotly.v1+json",
        content="{'data': [], 'layout': {'a.' * (10 << 20): 1}}",
    ),
    "ampersands": SHOW.format(mime="text/html", content="'&' * (15 << 20)"),
    "a style sheet": SHOW.format(
        mime="text/html", content="'<style>' + 'a{color:red}' * 80_000 + '</style>'"
    ),
    "control characters": SHOW.format(mime="text/plain", content="'\\x07' * (40 << 20)"),
    "values": SHOW.format(mime="application/json", content="[{'': 0}] * 160_000"),
    "one write": "import os\nwhile True: os.write(1, bytes(500 << 20))",
}


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKernel]:
    folder: Path = tmp_path_factory.mktemp("busy")
    with RealKernel(
        folder / "sessions",
        cwd=folder,
        cell_timeout=str(TIMEOUT),
        grace_seconds=str(GRACE),
        stdout_bytes="1000000000",
    ) as opened:
        yield opened


def waits(notebook: RealKernel) -> list[float]:
    """The seconds that each answer of the control channel takes while a cell runs."""
    taken: list[float] = []
    client: Any = notebook.client
    end = time.monotonic() + TIMEOUT + GRACE + LATE
    while time.monotonic() < end:
        begun = time.monotonic()
        notebook.control("kernel_info_request", {})
        taken.append(time.monotonic() - begun)
        time.sleep(0.1)
        if client.shell_channel.is_alive() and client.shell_channel.msg_ready():
            client.get_shell_msg(timeout=1)
            return taken
    raise AssertionError("the cell does not end")


@pytest.mark.parametrize("code", sampled(HUGE, 11))
def test_f5_the_kernel_answers_and_the_limit_ends_the_cell(notebook: RealKernel, code: str) -> None:
    late, slow = 0.0, 0.0
    for _ in range(3):
        notebook.client.execute(code, stop_on_error=False)
        begun = time.monotonic()
        slow = max(waits(notebook))
        late = time.monotonic() - begun - TIMEOUT - GRACE
        if slow < ANSWER and late < LATE:
            break
    assert slow < ANSWER
    assert late < LATE
    assert notebook.run("print(40 + 2)").stdout.endswith("42\n")
