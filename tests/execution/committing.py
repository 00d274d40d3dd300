"""A process that commits until it is killed: `python -m tests.execution.committing FOLDER`.

Each cell changes many pages and some files together, so that a mixture of two commits would be
noticed. `KILL_AT=N` kills at the N-th operation of the writer on a file (open, write, rename,
link).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from tests.local import create_sandbox
from wasm_kernel.folders.locks import Resume
from wasm_kernel.policy import ExecutionPolicy

SETUP = """
import numpy as np, os
for name in os.listdir():
    if name[0] in 'abcd': os.remove(name)
n = 0
def write(n):
    for name in 'abc':
        with open(name, 'r+' if os.path.exists(name) else 'w') as file:
            file.write(f'{n:06}' * 500)
    os.replace('c', f'd{n}')
    if os.path.exists(f'd{n - 1}'): os.remove(f'd{n - 1}')
a = np.zeros((64, 512), dtype='i8'); b = {i: 0 for i in range(2000)}; c = [[0] * 50 for _ in b]
"""
CELL = """
n += 1; write(n); a[:] = n; a = a.copy()
for i in b: b[i] = n
c = [[n] * 50 for _ in b]
"""
FILES = """
names = sorted(name for name in os.listdir() if name[0] in 'abcd')
print(names == (['a', 'b', f'd{n}'] if n else []), {open(name).read() for name in names})
"""
WHOLE = (
    "print(n, a.min() == a.max() == n, set(b.values()) == {n}, {x for y in c for x in y} == {n})"
)


class Killer:
    """Counts the writer's operations, and kills this process at one of them."""

    def __init__(self, at: int) -> None:
        self._left = at

    def count(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.count()
            return function(*args, **options)

        return counted


class Watched:
    """A file that counts the writes to it and brings each to the disk at once."""

    def __init__(self, file: BinaryIO, killer: Killer) -> None:
        self._file, self._killer = file, killer

    def write(self, data: bytes) -> int:
        self._killer.count()
        half = len(data) // 2
        written = self._file.write(data[:half])
        self._file.flush()
        self._killer.count()
        return written + self._file.write(data[half:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()


def arm(killer: Killer) -> None:
    """Let the killer count before each open, write and rename of a commit or a bookmark."""
    opened: Any = os.fdopen

    def fdopen(fd: int, mode: str, **options: Any) -> Any:
        if mode != "wb":
            return opened(fd, mode, **options)
        killer.count()
        return Watched(opened(fd, mode, **options), killer)

    os.fdopen = fdopen  # type: ignore[assignment]
    os.link, os.write = killer.before(os.link), killer.before(os.write)
    os.rename, os.unlink = killer.before(os.rename), killer.before(os.unlink)
    Path.replace = killer.before(Path.replace)  # type: ignore[method-assign]
    Path.unlink = killer.before(Path.unlink)  # type: ignore[method-assign]


def main(folder: str) -> None:
    """Run cells until all of them ran, or until this process is killed."""
    policy = ExecutionPolicy(history_cells=2)
    if "KILL_AT" in os.environ:
        arm(Killer(int(os.environ["KILL_AT"])))
    with create_sandbox(workspace=folder, policy=policy, resume=Resume.CRASH) as sandbox:
        sandbox.execute(SETUP)
        print("ready", flush=True)
        for number in range(int(os.environ.get("CELLS", "1000000"))):
            sandbox.execute(CELL)
            if number % 5 == 4:
                sandbox.undo(1, files=number % 2 == 0)
            if number % 7 == 6:
                sandbox.checkpoint(f"at {number % 3}")


if __name__ == "__main__":
    main(sys.argv[1])
