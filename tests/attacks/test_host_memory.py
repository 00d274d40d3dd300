"""F14, ATTACKS 48: a cell's outputs take bounded memory in the host, and it is given back."""

from __future__ import annotations

import gc
from pathlib import Path

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
