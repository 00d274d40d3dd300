"""The launch of a kernel's process: Jupyter started it, or it was forked from a process that has
everything loaded. The differences between the two are here and in `forker.py`.
"""

# mypy: disable-error-code="no-untyped-call"
# (ipykernel carries no types)

from __future__ import annotations

import fcntl
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from wasm_kernel.frontends.jupyter import launcher
from wasm_kernel.frontends.jupyter.ports import Ports
from wasm_kernel.frontends.jupyter.settings import LAUNCHER

if TYPE_CHECKING:
    import asyncio
    import subprocess


FORKER = "wasm_kernel.frontends.jupyter.forker"
"""The program of the process that kernels are forked from."""

_SECONDS = 0.5  # from a kernel's start to that of the forker: by then the kernel is up
_END_SECONDS = 0.3  # seconds; a broker has little time at its end


class KernelLaunch(Protocol):
    """The way in which a kernel's process was started.

    Attributes:
        ports: The ports on which it already listens.
    """

    ports: Ports

    def begin(self) -> None:
        """Begins the work beside the kernel. In the broker's process, if there is one."""

    def end(self) -> None:
        """Finishes that work when the kernel has ended. In the process of `begin`."""

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends the process when its owner, a launcher or a parent, is gone. On the main thread."""


class StandaloneLaunch:
    """A `KernelLaunch`: Jupyter or a person started this process.

    `forker` is the name of the forker to start; empty if there must be none.
    """

    def __init__(self, forker: str = "", ports: Ports | None = None) -> None:
        self._forker = forker
        self.ports = ports or Ports()
        self._variables = launcher.variables()  # before this process adds to them
        self._is_over, self._is_begun = threading.Event(), threading.Event()

    def begin(self) -> None:
        """Starts a forker, once this kernel is up, so that the next kernel can be forked."""
        if self._forker:
            threading.Thread(target=self._start_forker, daemon=True).start()

    def end(self) -> None:
        """Ensures that the forker is started, even after a short run of the kernel."""
        self._is_over.set()
        if self._forker:
            self._is_begun.wait(_END_SECONDS)

    def _start_forker(self) -> None:
        """Starts the forker, unless another kernel that began at the same time has done so."""
        self._is_over.wait(_SECONDS)
        started = None
        with suppress(OSError):  # this user can't have a forker
            lock = _lock()
            try:
                if not _is_running(self._forker):
                    started = self._forker_process(lock)
            finally:
                os.close(lock)  # the forker holds the lock until it listens
        self._is_begun.set()
        if started is not None:
            started.wait()  # it ends soon, as it forks itself

    def _forker_process(self, lock: int) -> subprocess.Popen[bytes]:
        import subprocess

        quiet = subprocess.DEVNULL
        command = [sys.executable, *(launcher.options() or ()), "-P", "-m", FORKER]
        return subprocess.Popen(  # noqa: S603 - the command is fixed
            [*command, self._forker, str(lock)],
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            pass_fds=[lock],
            env=self._variables,
            start_new_session=True,
        )

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends with the process that started this kernel, if it asked for that."""
        parent = int(os.environ.get(LAUNCHER) or 0)
        if parent > 1:  # process 1 never ends, and orphans become its children
            from ipykernel.parentpoller import ParentPollerUnix

            ParentPollerUnix(parent_pid=parent).start()


def _lock() -> int:
    """Waits until no other forker is being started; returns the lock's descriptor."""
    folder = Path(launcher.place()).parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        os.close(lock)
        raise
    return lock


def _is_running(forker: str) -> bool:
    try:
        launcher.connect(forker).close()
    except OSError:
        return False
    return True
