"""The pages that cells change: few in a small cell; after a large peak, none that were freed."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tests.execution.conftest import Opening
from tests.faces import process_of
from wasm_kernel import BaseSandbox, Sandbox
from wasm_kernel.guests.python.language import PythonLanguage
from wasm_kernel.state import pages

MIB = 1 << 20


@pytest.fixture
def sandbox(opened: Opening) -> Sandbox:
    sandbox = opened()
    sandbox.start().result()
    return sandbox


def used(sandbox: Sandbox) -> tuple[int, int, int]:
    """The bytes of the worker's own memory and of its reads, and the number of its page faults."""
    process = Path(f"/proc/{process_of(sandbox)}")
    resident, shared = (process / "statm").read_text().split()[1:3]
    read = (process / "io").read_text().split("rchar:", 1)[1].split()[0]
    faults = (process / "stat").read_text().rpartition(")")[2].split()[7]
    return (int(resident) - int(shared)) * resource.getpagesize(), int(read), int(faults)


def wait_saved(sandbox: Sandbox) -> None:
    """Waits until all states are on disk."""
    sandbox.checkpoint("saved")


def head_bytes(sandbox: Sandbox) -> int:
    return sandbox.checkpoints()[-1].bytes


def test_memory_of_deleted_variables_goes_back_to_the_machine(sandbox: Sandbox) -> None:
    sandbox.execute("import numpy as np; big = np.full(80 << 17, 1.5)")
    wait_saved(sandbox)
    assert head_bytes(sandbox) > 75 * MIB
    before, *_ = used(sandbox)
    sandbox.execute("del big")
    sandbox.checkpoints()  # waits until freed memory is given back, after the result
    assert before - used(sandbox)[0] > 60 * MIB
    assert head_bytes(sandbox) < 2 * MIB
    sandbox.undo()
    assert sandbox.execute("print(big.sum() / len(big))").stdout == "1.5\n"


def test_freed_objects_are_not_written_again(sandbox: Sandbox) -> None:
    """Freeing an object writes to its page: many small objects would be saved a second time."""
    sandbox.execute("many = [b'%d ' % i * 200 for i in range(70_000)]")
    assert head_bytes(sandbox) > 80 * MIB
    sandbox.execute("del many")
    assert head_bytes(sandbox) < 50 * MIB  # the holes of the base image, which are shared
    sandbox.undo()
    assert sandbox.execute("print(many[-1][:6], len(many))").stdout == "b'69999 ' 70000\n"


def test_an_undo_beside_a_large_array_costs_what_differs(sandbox: Sandbox) -> None:
    if pages.available() != pages.WriteProtect.name:
        pytest.skip("memory is only kept where the system tells what changed")
    sandbox.execute("import numpy as np; big = np.zeros(100 << 17); big[::5000] = 1")
    for leaves in (sandbox.undo, lambda: sandbox.execute("import os; os._exit(1)")):
        sandbox.execute("x = 1; big[5] = 3")
        wait_saved(sandbox)
        _, read, faults = used(sandbox)
        leaves()
        _, read_after, faults_after = used(sandbox)
        assert faults_after - faults < 10_000  # it would be 25,600
        assert read_after - read < 20 * MIB
    assert sandbox.execute("print(big[5], big.sum())").stdout == "3.0 2625.0\n"
    sandbox.undo(2)
    assert sandbox.execute("print(big[5], big.sum())").stdout == "0.0 2622.0\n"


LIES = """
import numpy as np
from numpy.lib.stride_tricks import as_strided

def address(array):
    return array.__array_interface__["data"][0]

spot, mine = np.zeros(1, "u4"), np.full(64 << 17, 7.0)
at = address(mine)
words = {{at + 4: 1 << 30 | 1, at + 8: at, at + 12: at, {root}: at}}
for where, word in words.items():  # a free piece that holds what is in use
    as_strided(spot, (2,), (where - address(spot),))[1] = word
print(mine[-1])
"""


def test_a_guest_that_lies_about_what_is_free_loses_its_own_data(sandbox: Sandbox) -> None:
    image = PythonLanguage.shared(None).prepared.image_at_hand()
    assert image is not None
    code = LIES.format(root=image.record.extra["allocator"] + 304 + 4 * 31)
    assert sandbox.execute("x = 5").success
    assert sandbox.execute(code).stdout == "7.0\n"
    assert sandbox.execute("print(mine[-1], x)").stdout == "0.0 5\n"
    sandbox.undo(2)
    assert sandbox.execute("print(x, 'mine' in dir())").stdout == "5 False\n"


PAGES = """
kept = [bytes(40) for _ in range(2000)]
print(len({id(one) >> 12 for one in kept}))
"""


def test_small_objects_share_pages_and_a_tiny_cell_changes_few(sandbox: BaseSandbox) -> None:
    pages = int(sandbox.execute(PAGES).stdout)
    assert pages < 100  # 24 at best; over 500 if they fill the holes of the image
    for _ in range(6):
        sandbox.execute("x = 1")
    head = sandbox.checkpoints()[-1]
    # over 480 pages without ballast, 280 with it, 170 if the code that a turn runs lies together
    assert 0 < head.bytes < 230 * 4096
