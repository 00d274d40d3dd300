"""F5, F14, ATTACKS 45, 48: whatever a cell shows, the kernel answers, and its memory is bounded."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.conftest import Making
from tests.end_to_end.real_kernel import RealKernel
from tests.faces import happens
from tests.peak import MB, Peak, of_process
from tests.sampled import sampled

DISPLAYED, WRITTEN = 64 * MB, 4 * MB
BOUND = DISPLAYED + 4 * 2 * WRITTEN + 512 * MB  # as the documentation of `display_bytes` explains
KEPT = 64 * MB  # bytes that a busy allocator may keep
RESTING = 128 * MB  # bytes of a worker whose guest rests
GUEST = 1024 * MB  # bytes of the guest's own memory, to make such outputs

SEND = "import _host, os\ndef send(data):\n    return _host.call(data)\n"
FLOODS = {
    "wide text in other words": 'd = b\'{"op":"display","data":{"text/plain":"\'\n'
    "d += b'x' * (30 << 20)\n"
    "for _ in range(6): send(d + b'\\\\ud83d\\\\ude00\"}}')",
    "lists": 'd = b\'{"op":"display","data":{"x/json":[\' + b\',\'.join([b\'[]\'] * 240_000)\n'
    "for _ in range(12): send(d + b']}}')",
    "keys": "d = ','.join(f'\"{i:x}\\u0416\":{i}' for i in range(400_000))\n"
    'd = (\'{"op":"display","data":{"x/json":{\' + d + \'}}}\').encode()\n'
    "for _ in range(12): send(d)",
    "large frames": 'd = b\'{"op":"done","reply":{"a":"\' + b\'x\' * (63 << 20) + b\'"}}\'\n'
    "for _ in range(4): send(b'x' + d); send(d[:-3] + b'\\xf0\\x9f\\x98\\x80\"}}')",
    "small pieces": "c = '\\u0416'.encode()\n"
    "for _ in range(400_000): os.write(1, c); os.write(2, c)",
    "one write": "os.write(1, bytes(500 << 20))",
    "comms": 'd = b\'{"op":"comm_open","comm_id":"c","target_name":"t","data":{"a":[\'\n'
    "d += b','.join([b'{\"\":0}'] * 160_000) + b']}}'\nfor _ in range(12): send(d)",
}


@pytest.mark.parametrize("flood", sampled(FLOODS, 7))
def test_f14_a_cells_output_is_bounded_in_the_host_and_given_back(
    victim_of: Making, flood: str
) -> None:
    victim = victim_of(
        display_bytes=DISPLAYED,
        stdout_bytes=WRITTEN,
        stderr_bytes=WRITTEN,
        memory_bytes=2048 << 20,
        cell_timeout=120.0,
    )
    # grows the guest's own memory before the measurement
    victim.run(SEND + flood.replace("range(12)", "range(1)"))
    gc.collect()
    gc.disable()
    try:
        peak, own = victim.peak(), Peak()
        result = victim.run(flood)
        assert peak.grown < BOUND
        del result
        assert own.held < KEPT
        # the worker has a copy of changed variables until they are written, and then rests
        assert happens(lambda: of_process(victim.process, "VmRSS") < RESTING)
    finally:
        gc.enable()
    victim.lives()


@pytest.mark.soak
@pytest.mark.usefixtures("started")
def test_f14_a_kernel_keeps_nothing_of_what_it_sent(tmp_path: Path) -> None:
    flood = FLOODS["lists"]
    with RealKernel(tmp_path, display_bytes=str(DISPLAYED), cell_timeout="120") as kernel:
        kernel.run(SEND)
        before = of_process(kernel.pid, "VmRSS")
        kernel.run(flood)
        kernel.run("")  # waits for the commit of the cell before
        once = of_process(kernel.pid, "VmRSS")
        kernel.run(flood)
        kernel.run("")
        assert of_process(kernel.pid, "VmRSS") - once < KEPT
        assert of_process(kernel.pid, "VmHWM") - before < BOUND + GUEST


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
