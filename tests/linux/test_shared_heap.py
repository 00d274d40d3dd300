"""The heap that forked processes share: reading it copies no memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

READ_IN_A_FORK = """
import os
from pathlib import Path
from wasm_kernel.linux import shared_heap

def private_kib():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))

class Item:
    def __init__(self, number):
        self.text, self.pair = f"the text of item {number}", (number, -number)

items = {n: Item(n) for n in range(100_000)}
def count():
    for item in items.values():
        kept = item, item.text, item.pair, item.pair[1]

count()
shared_heap.freeze()
if not os.fork():
    before = private_kib()
    count()
    print(private_kib() - before)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python counts references to all objects")
def test_a_forked_process_reads_objects_without_a_copy_of_their_memory() -> None:
    read = subprocess.run(
        [sys.executable, "-c", READ_IN_A_FORK], capture_output=True, text=True, check=True
    )
    assert int(read.stdout) < 1024
