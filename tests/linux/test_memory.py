"""The available memory, copies of many ranges at once, and the heap that forked processes share."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peak import MB, Peak
from tests.state.stretch import PAGES, Stretch
from wasm_kernel.linux import memory
from wasm_kernel.linux.memory import read_ranges
from wasm_kernel.state.pages import PAGE


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system with 8 GB available, and this process in the group `a/b`."""
    (tmp_path / "meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable:  8000000 kB\n")
    (tmp_path / "cgroup").write_text("1:cpu:/x\n0::/a/b\n")
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "groups")
    (tmp_path / "groups" / "a" / "b").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("group", "most", "current", "left"),
    [
        ("a", "max", 10**9, 8_000_000 * 1024),  # without a limit it is what the system has
        ("a", str(3 * 10**9), 10**9, 2 * 10**9),
        ("a/b", str(3 * 10**9), 10**9, 2 * 10**9),
        ("a", "1000", 2000, 0),
    ],
)
def test_groups_limit_counts(system: Path, group: str, most: str, current: int, left: int) -> None:
    (system / "groups" / group / "memory.max").write_text(f"{most}\n")
    (system / "groups" / group / "memory.current").write_text(f"{current}\n")
    assert memory.available_memory() == left


def test_a_system_that_tells_nothing(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (system / "meminfo").unlink()
    (system / "cgroup").unlink()
    assert memory.available_memory() >= 0


@pytest.fixture
def stretch() -> Iterator[Stretch]:
    made = Stretch()
    for page in range(PAGES):
        made.write(page * PAGE, page.to_bytes(2, "little") * (PAGE // 2))
    yield made
    made.close()


@pytest.mark.parametrize("most_pages", [1000, 5])
def test_ranges_come_one_after_the_other_in_any_number_of_calls(
    monkeypatch: pytest.MonkeyPatch, stretch: Stretch, most_pages: int
) -> None:
    monkeypatch.setattr(memory, "COPIED_MOST", most_pages * PAGE)
    many = [(at, at + 8) for at in range(0, 16 * (memory.RANGES_MOST + 500), 16)]
    for pages in ([], [(9, 10), (2, 3), (250, 251)], [(0, 3), (10, 40), (50, 51)]):
        ranges = [(first * PAGE, end * PAGE) for first, end in pages] or many
        expected = b"".join(stretch.read(a, b - a) for a, b in ranges)
        assert bytes(read_ranges(stretch.address, ranges)) == expected
    assert not read_ranges(stretch.address, [])


def test_room_for_a_copy_is_not_filled(monkeypatch: pytest.MonkeyPatch, stretch: Stretch) -> None:
    """Formerly, all other threads of a worker stood still: one with 1.2 GB seemed to hang."""
    read, held = memory._read, []

    def noting(*args: int) -> int:
        held.append(before.held)
        return read(*args)

    monkeypatch.setattr(memory, "_read", noting)
    ranges = [(0, PAGES * PAGE)] * (64 * MB // (PAGES * PAGE))
    before = Peak()
    copy = read_ranges(stretch.address, ranges)
    assert len(copy) > 60 * MB and before.held > 32 * MB > held[0]


def test_memory_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="process_vm_readv"):
        read_ranges(PAGE, [(0, PAGE)])


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


COPIED_AHEAD = """
import ctypes, mmap, os, resource, signal
from wasm_kernel.linux import memory, shared_heap

PAGE, PAGES = 4096, 1024
shared = mmap.mmap(-1, PAGES * PAGE, mmap.MAP_PRIVATE)
address = ctypes.addressof(ctypes.c_char.from_buffer(shared))

def write(pages):
    for page in pages:
        shared[page * PAGE] ^= 1

def write_in_fork(pages):
    told, tell = os.pipe()
    if not (child := os.fork()):
        write(pages)
        os.write(tell, b"!")
        signal.pause()
    os.read(told, 1)
    return child

write(range(PAGES))
children = [write_in_fork(range(100, 900)), write_in_fork(range(300, 1000))]
copied = shared_heap.copied(children)
here = [each for each in copied if address <= each[0] < address + PAGES * PAGE]
print([((start - address) // PAGE, (end - address) // PAGE) for start, end in here])
if not os.fork():
    for start, end in here:
        memory.copy_ahead(start, end - start)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    write(range(300, 900))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 300)
    os._exit(0)
os.wait()
for child in children:
    os.kill(child, signal.SIGKILL)
"""


def test_a_forked_process_copies_ahead_what_others_have_written() -> None:
    ran = subprocess.run(
        [sys.executable, "-uc", COPIED_AHEAD], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[(300, 900)]\nTrue\n"
