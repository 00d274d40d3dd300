"""Helpers for tests of every room: run a cell, wait for something."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

from wasm_kernel import Sandbox, SandboxResult, TravelError

A_UUID = "8d0f2a52-9c4e-4a3b-8a52-5d8f0e6b7c11"
"""The name of a session; it is the same in every run, so that names of tests are."""
BEGINNING = "the beginning of a test"
PATIENCE = 60.0
"""Seconds that a busy machine may take for something that an idle one does at once."""
_WAITS = re.compile(r"^(preparing \w+ for this machine|waiting for a session: ).*\n", re.MULTILINE)

AnySandbox = TypeVar("AnySandbox", bound="Remembers")


class Executes(Protocol):
    """A sandbox, or an object with its `execute`."""

    def execute(self, code: str, **options: Any) -> SandboxResult: ...


class Remembers(Executes, Protocol):
    """A sandbox whose memory can be brought back."""

    def checkpoint(self, name: str) -> None: ...

    def restore(self, where: str | int, *, files: bool = False) -> object: ...


def says(sandbox: Executes, code: str) -> str:
    """The output of a cell that must succeed."""
    result = sandbox.execute(code)
    assert result.success, result.error
    return result.stdout.strip()


def error_of(result: SandboxResult) -> str:
    """The error of a cell, its name before its words; empty if it had none."""
    return "" if result.error is None else f"{result.error.ename}: {result.error.evalue}"


def traceback_of(result: SandboxResult) -> list[str]:
    """The parts of the traceback of a cell's error; none if it had no error."""
    return [] if result.error is None else [*result.error.traceback]


def process_of(sandbox: Sandbox) -> int:
    """The process that a sandbox's guest lives in."""
    assert sandbox.worker.worker is not None
    return sandbox.worker.worker.process


def fall_asleep(sandbox: Sandbox) -> None:
    """Waits until a sandbox has given its worker back, with everything on disk."""
    sandbox.worker.sleep()
    sandbox.worker.wait_asleep()


def put_back(sandbox: AnySandbox) -> AnySandbox:
    """Gives the sandbox the variables and files that it had at the first call."""
    try:
        sandbox.restore(BEGINNING, files=True)
        sandbox.execute("", silent=True)  # clears notices, and comms that the page forgot
    except TravelError:
        sandbox.checkpoint(BEGINNING)
    return sandbox


def open_files(process: int | str = "self") -> list[str]:
    """The paths of all files that a process has open, as the system lists them."""
    found = []
    for link in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since, or the listing's own one
            found.append(str(link.readlink()))
    return found


def is_gone(process: int) -> bool:
    """Returns whether a process has ended."""
    try:
        return ") Z" in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return True


def ends(process: int) -> None:
    """Waits until a process is gone."""
    wait_for(lambda: is_gone(process), f"the end of process {process}")


def completed(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, and keeps its output."""
    given: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 2 * PATIENCE}
    return subprocess.run(command, check=False, **{**given, **options})


def host_tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below a folder of the host, with the facts that would show a change."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        content, changed = b"", 0 if path.is_dir() else status.st_mtime_ns
        if path.is_symlink():
            content = os.fsencode(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        found[str(path)] = (status.st_mode, changed, content)
    return found


def raising(problem: BaseException) -> Callable[..., NoReturn]:
    """A function that fails, in the place of another one."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise problem

    return fail


def full_disk(*args: object, **options: object) -> NoReturn:
    """Replaces a function that writes, in tests of a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


def tells_of_start(text: str) -> bool:
    """True for the notice of a slow start: a kernel shows it in a line and removes it again."""
    return text.startswith(("\r[wasm-kernel]", "\r  "))


def without_waits(text: str) -> str:
    """The standard error of a program, without the lines about waits on a busy machine."""
    return _WAITS.sub("", text)


def happens(condition: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Waits until a condition holds; False if it does not within the time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def wait_for(condition: Callable[[], object], what: str = "it") -> None:
    """Waits until a condition holds, since the sandbox's writer works after the cell."""
    assert happens(condition), f"{what} never happened"
