"""What the host's look at each file call costs: `python -m tests.benchmarks.files`.

The same guest twice, by turns: as it is, and with wasmtime's own calls in the place of ours. The
guest takes the time itself, so a sample is what a program in a cell waits for.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from unittest.mock import patch

from tests.local import create_sandbox
from wasm_kernel import BaseSandbox
from wasm_kernel.engine import abi

SOME = 2_000  # wasmtime's own listing takes four times as long for twice the names
MANY = 10_000
BEGIN = """
import os, time
os.makedirs('/app/few/sub', exist_ok=True)
for name in ('file', *(f'few/{i}' for i in range(10)), *(f'/tmp/{i}' for i in range(3))):
    open(os.path.join('/app', name), 'w').close()
HOW = os.O_CREAT | os.O_WRONLY
block, small = bytes(1_000_000), bytes(8192)
def took(work, times):
    begun = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - begun) / times * 1e6
def opened(path, how, data=None, count=1):
    fd = os.open(path, how, 0o666)
    for _ in range(count if data else 0):
        os.write(fd, data)
    os.close(fd)
def made():
    opened('/app/new', os.O_CREAT | os.O_WRONLY); os.remove('/app/new')
"""
CALLS = {  # what, code, how often
    "open and close": ("opened('/app/file', os.O_RDONLY)", 1000),
    "open and close, two folders deep": ("opened('/app/few/1', os.O_RDONLY)", 1000),
    "stat": ("os.stat('/app/file')", 1000),
    "stat of what is not there": ("os.access('/app/nothing', 0)", 1000),
    "list 11 names": ("os.listdir('/app/few')", 300),
    "make and remove a file": ("made()", 300),
    "rename": ("os.rename('/app/file', '/app/other'); os.rename('/app/other', '/app/file')", 300),
    "write 8 KB into a new file": ("opened('/app/out', HOW | os.O_TRUNC, small)", 300),
    "write 100 times 8 KB": ("opened('/app/out', HOW, small, 100)", 20),
    "write 1 MB": ("opened('/app/out', HOW, block)", 100),
    "write 10 times 1 MB": ("opened('/app/out', HOW, block, 10)", 10),
}
LARGE = {
    f"list {SOME:,} names": ("os.listdir('/app/many')", 1),
    f"{SOME:,} names with their sizes": (
        "[e.stat(follow_symlinks=False).st_size for e in os.scandir('/app/many')]",
        1,
    ),
}


@contextmanager
def bare() -> Iterator[None]:
    """Guests that begin now have wasmtime's own file calls."""
    with patch.dict(abi.SHAPES, clear=True, values={"poll_oneoff": abi.SHAPES["poll_oneoff"]}):
        yield


def microseconds(sandbox: BaseSandbox, code: str, times: int) -> float:
    """The time of one call, as the guest measured it."""
    result = sandbox.execute(f"took(lambda: ({code.replace('; ', ', ')}), {times})")
    assert result.error is None, result.error
    return float(result.outputs[-1].data["text/plain"])


def compare(sandboxes: tuple[BaseSandbox, BaseSandbox], rounds: int) -> None:
    """Each call in both guests, by turns."""
    print(f"{'':40} {'ours':>10} {'bare':>10} {'more':>10}")
    for what, (code, times) in {**CALLS, **LARGE}.items():
        samples: tuple[list[float], list[float]] = ([], [])
        for _ in range(1 if what in LARGE else rounds):
            for which, sandbox in enumerate(sandboxes):
                samples[which].append(microseconds(sandbox, code, times))
        ours, theirs = median(samples[0]), median(samples[1])
        print(f"{what:40} {ours:>7.0f} us {theirs:>7.0f} us {ours - theirs:>7.0f} us")


def beside_many(folder: Path, rounds: int) -> None:
    """What a large workspace costs: its listing, and the look at it before a cell's first write."""
    fill(folder / "many", MANY)
    with create_sandbox(workspace=folder) as sandbox:
        sandbox.execute(BEGIN)
        samples = []
        for _ in range(rounds):
            code = "took(lambda: open('/app/x', 'w').close() or os.remove('/app/x'), 1)"
            samples.append(microseconds(sandbox, code, 1) / 1e3)
        listed = microseconds(sandbox, "os.listdir('/app/many')", 1) / 1e3
    print(f"\nbeside {MANY:,} files: {listed:.0f} ms to list them")
    print(f"a cell's first file: {samples[0]:.1f} ms, in later cells {median(samples[1:]):.1f} ms")


def fill(folder: Path, count: int) -> None:
    """Put so many empty files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        (folder / f"file{i:05}").touch()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.files", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="samples of each call")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="wasm-kernel-bench-") as name:
        folders = Path(name, "ours"), Path(name, "bare")
        for folder in folders:
            fill(folder / "many", SOME)
        with create_sandbox(workspace=folders[0]) as ours:
            ours.execute(BEGIN)
            with bare(), create_sandbox(workspace=folders[1]) as theirs:
                theirs.execute(BEGIN)
                compare((ours, theirs), rounds)
        beside_many(folders[0], rounds)


if __name__ == "__main__":
    main()
