"""The launch of a kernel's process: Jupyter started it, or it was forked from a process that has
everything loaded. The differences between the two are here and in `forker.py`.
"""

# mypy: disable-error-code="no-untyped-call"
# (ipykernel carries no types)

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from wasm_kernel.frontends.jupyter.ports import Ports
from wasm_kernel.kernels.settings import LAUNCHER

if TYPE_CHECKING:
    import asyncio

    from wasm_kernel.service.fork_process import ForkProcess


class KernelLaunch(Protocol):
    """The way in which a kernel's process was started.

    Attributes:
        ports: The ports on which it already listens.
        nursery: The process that this kernel's workers are forked from, such as the forker; None if
            there was no room for one.
    """

    ports: Ports
    nursery: ForkProcess | None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends the process when its owner, a launcher or a parent, is gone. On the main thread."""


class StandaloneLaunch:
    """A `KernelLaunch`: Jupyter or a person started this process, which has started its nursery."""

    def __init__(self, nursery: ForkProcess | None = None, ports: Ports | None = None) -> None:
        self.nursery = nursery
        self.ports = ports or Ports()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends with the process that started this kernel, if it asked for that."""
        parent = int(os.environ.get(LAUNCHER) or 0)
        if parent > 1:  # process 1 never ends, and orphans become its children
            from ipykernel.parentpoller import ParentPollerUnix

            ParentPollerUnix(parent_pid=parent).start()
