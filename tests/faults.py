"""Faults in the workers of sandboxes: functions that fail, wait or are counted, as a test says.

A fork server of the test's own replaces the functions before it forks. Tests and workers share a
page of memory, by which a test switches a fault on and off while its sandboxes go on.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

from tests.faces import wait_for
from wasm_kernel.service import fork_loop, fork_process
from wasm_kernel.service.fork_server import ForkServer
from wasm_kernel.service.program_home import own_workers

VARIABLE = "WASM_KERNEL_TEST_FAULTS"
_WORDS = 5  # words of memory a function; see the properties of `Fault`


class Does(IntEnum):
    """An act of a function with a fault; any positive number is an error of the system to raise."""

    NOTHING_ELSE = 0
    WAIT = -1
    KILL = -2
    RETURN_NONE = -3
    RAISE_MEMORY_ERROR = -4
    RAISE_RUNTIME_ERROR = -5


class Fault:
    """One function of the workers that are forked in a block of `faulty`."""

    def __init__(self, board: memoryview, number: int) -> None:
        self._words = board[number * _WORDS : (number + 1) * _WORDS]

    @contextmanager
    def on(self, does: int, *, at: int = 0) -> Iterator[None]:
        """Lets the function do this in the block; a call that waits goes on at the block's end.

        `at` is the number of the call that kills the worker.
        """
        self._words[0], self._words[1] = does, at
        try:
            yield
        finally:
            self._words[0] = 0

    @contextmanager
    def held(self) -> Iterator[Callable[[], None]]:
        """Lets calls wait in the block; yields a function that waits for one."""
        before = self.calls
        with self.on(Does.WAIT):
            yield lambda: wait_for(lambda: self.calls > before, "the call")

    @property
    def calls(self) -> int:
        """The number of calls so far."""
        return int(self._words[2])

    @property
    def last(self) -> int:
        """The time at which the last call began, in nanoseconds."""
        return int(self._words[3])

    @property
    def seconds(self) -> float:
        """How long the last call took that ended."""
        return float(self._words[4] / 1e9)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function with this fault, for a worker."""

        @functools.wraps(function)
        def faulty(*args: Any, **options: Any) -> Any:
            if not self.passes():
                return None
            began = time.monotonic_ns()
            try:
                return function(*args, **options)
            finally:
                self._words[4] = time.monotonic_ns() - began

        return faulty

    def passes(self) -> bool:
        """Counts a call in a worker, and does what the test says; False if it returns None."""
        self._words[2] += 1
        self._words[3] = time.monotonic_ns()
        while self._words[0] == Does.WAIT:
            time.sleep(0.001)
        if self._words[0] not in (Does.NOTHING_ELSE, Does.RETURN_NONE):
            self._fail(self._words[0])
        return bool(self._words[0] != Does.RETURN_NONE)

    def _fail(self, does: int) -> None:
        match does:
            case Does.KILL:
                self._words[1] -= 1
                if not self._words[1]:
                    os.kill(os.getpid(), signal.SIGKILL)
            case Does.RAISE_MEMORY_ERROR:
                raise MemoryError
            case Does.RAISE_RUNTIME_ERROR:
                raise RuntimeError("a fault")
            case error:
                raise OSError(error, os.strerror(error))


Faults = dict[str, Fault]


@contextmanager
def faulty(*places: str, **values: float | str) -> Iterator[Faults]:
    """Sandboxes that are made in the block have workers with these faults, which are off at first.

    Args:
        places: The functions, each as `module:name` or `module:class.name`; the fault has the name
            behind the colon. A module alone has a function `arm`, which gets the fault.
        values: Other values of variables, by the name of a module in `wasm_kernel` and of its
            variable, with two underscores in place of each dot. A text is `module:name`, whose
            value it takes.
    """
    with (
        pytest.MonkeyPatch.context() as patch,
        NamedTemporaryFile() as file,
        closing(ForkServer()) as server,
    ):
        file.truncate(mmap.PAGESIZE)
        patch.setenv(VARIABLE, json.dumps([file.name, places, values]))
        patch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
        patch.setattr(fork_process, "PROGRAM", __name__)
        patch.setattr(own_workers(), "fork_server", server)
        yield {place.split(":")[-1]: fault for place, fault in _faults(file.name, places)}


def _faults(path: str, places: Sequence[str]) -> list[tuple[str, Fault]]:
    with Path(path).open("r+b") as file:
        board = memoryview(mmap.mmap(file.fileno(), mmap.PAGESIZE)).cast("q")
    return [(place, Fault(board, number)) for number, place in enumerate(places)]


def _found(place: str) -> tuple[Any, str]:
    module, _, names = place.partition(":")
    *owners, name = names.split(".")
    return functools.reduce(getattr, owners, import_module(module)), name


def main(line: int, owner: int) -> None:
    """Runs the fork server."""
    path, places, values = json.loads(os.environ[VARIABLE])
    for place, value in values.items():
        *modules, name = place.split("__")
        found = getattr(*_found(value)) if isinstance(value, str) else value
        setattr(import_module(".".join(["wasm_kernel", *modules])), name, found)
    for place, fault in _faults(path, places):
        there, name = _found(place)
        if not name:
            there.arm(fault)
        else:
            setattr(there, name, fault.around(getattr(there, name)))
    fork_loop.main(line, owner)
