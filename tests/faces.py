"""What tests of every room say to the faces: run a cell, wait for something."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Protocol

from tests.local import LocalSandbox
from wasm_kernel import SandboxResult, TravelError

A_UUID = "8d0f2a52-9c4e-4a3b-8a52-5d8f0e6b7c11"
"""As sessions are named; the same in every run, so that parameters are."""
BEGINNING = "the beginning of a test"
PATIENCE = 60.0
"""Seconds that a busy machine may take for what happens at once on a quiet one."""


class Executes(Protocol):
    """A sandbox, or what stands before one."""

    def execute(self, code: str, **options: Any) -> SandboxResult: ...


def says(sandbox: Executes, code: str) -> str:
    """What a cell that must succeed prints."""
    result = sandbox.execute(code)
    assert result.success, result.error
    return result.stdout.strip()


def put_back(sandbox: LocalSandbox) -> LocalSandbox:
    """The sandbox with the variables and files that it had when this was called first."""
    try:
        sandbox.restore(BEGINNING, files=True)
        sandbox.execute("", silent=True)  # notices, and comms that the page forgets
    except TravelError:
        sandbox.checkpoint(BEGINNING)
    return sandbox


def open_files() -> list[str]:
    """The paths of all that this process has open, as the system tells them."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, or the list's own
            found.append(str(link.readlink()))
    return found


def full_disk(*args: object, **options: object) -> NoReturn:
    """What a test puts in the place of a function that writes."""
    raise OSError(errno.ENOSPC, "No space left on device")


def tells_of_start(text: str) -> bool:
    """A kernel that takes long to start says so in a line, and takes it back: before any output."""
    return text.startswith(("\r[wasm-kernel]", "\r  "))


def happens(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Waits until a condition holds; False when it does not within the time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def wait_for(condition: Callable[[], object], what: str = "it") -> None:
    """Waits until a condition holds; what the sandbox's writer does comes after the cell."""
    assert happens(condition), f"{what} never happened"
