"""The launch of a kernel's process: Jupyter started it, or it was forked from a process that has
everything loaded. The differences between the two are here and in `forker.py`.
"""

# mypy: disable-error-code="no-untyped-call"
# (ipykernel carries no types)

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wasm_kernel.frontends.jupyter.ports import Ports

if TYPE_CHECKING:
    import asyncio

    from wasm_kernel.service.fork_process import ForkProcess


class KernelLaunch:
    """The way in which a kernel's process was started: here, by Jupyter or a person.

    Attributes:
        nursery: The process that this kernel's workers are forked from, such as the forker; None if
            there was no room for one.
        ports: The ports on which it already listens.
    """

    def __init__(self, nursery: ForkProcess | None = None, ports: Ports | None = None) -> None:
        self.nursery = nursery
        self.ports = ports or Ports()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends this process when the one that owns it is gone. Call it on the main thread."""
        from wasm_kernel.kernels.settings import LAUNCHER

        parent = int(os.environ.get(LAUNCHER) or 0)  # set if Jupyter asks for that
        if parent > 1:  # process 1 never ends, and orphans become its children
            from ipykernel.parentpoller import ParentPollerUnix

            ParentPollerUnix(parent_pid=parent).start()
