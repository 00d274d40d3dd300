"""The two sides of every comparison, and a running kernel of either side, over ZMQ."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from queue import Empty

import zmq
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

from tests.end_to_end.real_kernel import RealKernel, Shown
from wasm_kernel.frontends.jupyter.launcher import SETTING

PATIENCE = 300.0


@dataclass(frozen=True)
class Side:
    """One of the two sides: its interpreter, its kernel, and how that is started.

    `api` is a script that prints a rendered DataFrame; it gets `folder` as its argument. The
    standard error of its kernels goes to `log`.
    """

    name: str
    python: Path
    kernels: Path
    kernel_name: str
    folder: Path
    api: str
    log: Path
    arguments: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    forked: bool = True

    def environment(self) -> dict[str, str]:
        """The environment of its kernels, in which the packages of `hidden` can't be imported.

        Unless the side is `forked`, each kernel is a new process, started by Jupyter.
        """
        found = dict(os.environ)
        if not self.forked:
            found[SETTING] = "0"
        if self.hidden:
            place = self.folder / "hidden"
            place.mkdir(exist_ok=True)
            for name in self.hidden:
                (place / f"{name}.py").write_text("raise ImportError(__name__)")
            found["PYTHONPATH"] = str(place)
        return found


class Kernel(RealKernel):
    """A running kernel and its client, which measures from the outside like a front end."""

    seconds = PATIENCE

    def __init__(self, side: Side) -> None:
        specs = KernelSpecManager(kernel_dirs=[str(side.kernels)], ensure_native_kernel=False)
        manager = KernelManager(kernel_name=side.kernel_name, kernel_spec_manager=specs)
        spec = manager.kernel_spec
        assert spec is not None
        spec.argv[0] = str(side.python)  # a spec from a wheel says "python", which may be any
        super().__init__(
            side.folder / "workspace",
            manager=manager,
            words=side.arguments,
            variables=side.environment(),
            cwd=side.folder,
            log=side.log,
        )

    def connect(self) -> None:
        """Waits until the kernel answers and its outputs are received."""
        self.client = self.manager.blocking_client()
        # By default a socket that finds no kernel tries again after 100 to 200 ms, which would
        # round every start up to that. So the client has a context of its own.
        self.client.context.setsockopt(zmq.RECONNECT_IVL, 2)
        self.client.start_channels()
        self.client.kernel_info()
        self.client.get_shell_msg(timeout=PATIENCE)
        begun = time.monotonic()
        while time.monotonic() - begun < PATIENCE:
            try:
                self.client.get_iopub_msg(timeout=0.05)
                return
            except Empty:  # the subscription came too late for that answer: ask again
                self.client.kernel_info()
        raise TimeoutError("the kernel's output is not heard")

    def execute(self, code: str) -> Shown:
        """Runs a cell that must succeed, without asking; waits for its reply and its idle status.

        `run` is the client's own way to show outputs.
        """
        sent = self.send(code)
        shown = self.heard(sent)
        shown.reply = self.reply(sent)
        if shown.reply["status"] != "ok":
            raise RuntimeError(f"{shown.reply['ename']}: {shown.reply['evalue']}")
        return shown

    def end(self) -> None:
        """Ends the kernel and frees its ports."""
        self.shut_down()
        self.manager.cleanup_resources()
