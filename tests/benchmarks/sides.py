"""The two sides of every comparison, and a running kernel of either side, over ZMQ."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

import zmq
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

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


class Kernel:
    """A running kernel and its client, which measures from the outside like a front end."""

    def __init__(self, side: Side) -> None:
        specs = KernelSpecManager(kernel_dirs=[str(side.kernels)], ensure_native_kernel=False)
        self.manager = KernelManager(kernel_name=side.kernel_name, kernel_spec_manager=specs)
        spec = self.manager.kernel_spec
        assert spec is not None
        spec.argv[0] = str(side.python)  # a spec from a wheel says "python", which may be any
        with side.log.open("ab") as log:
            self.manager.start_kernel(
                cwd=str(side.folder),
                extra_arguments=list(side.arguments),
                stderr=log,
                env=side.environment(),
            )
        self.client: BlockingKernelClient = self.manager.blocking_client()
        # By default a socket that finds no kernel tries again after 100 to 200 ms, which would
        # round every start up to that. So the client has a context of its own.
        self.client.context.setsockopt(zmq.RECONNECT_IVL, 2)
        self.client.start_channels()

    @property
    def pid(self) -> int:
        """The kernel's process."""
        pid = getattr(self.manager.provisioner, "pid", None)
        assert isinstance(pid, int)
        return pid

    def connect(self) -> None:
        """Waits until the kernel answers and its outputs are received."""
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

    def run(self, code: str) -> list[dict[str, Any]]:
        """Runs a cell; returns its output messages once its reply and its idle status are there."""
        sent = self.client.execute(code)
        outputs = []
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") != sent:
                continue
            if message["content"].get("execution_state") == "idle":
                break
            outputs.append(message)
        while True:
            reply = self.client.get_shell_msg(timeout=PATIENCE)
            if reply["parent_header"].get("msg_id") == sent:
                break
        if reply["content"]["status"] != "ok":
            raise RuntimeError(f"{reply['content']['ename']}: {reply['content']['evalue']}")
        return outputs

    def show(self, code: str) -> None:
        """Runs a cell by the client's own way to show outputs."""
        self.client.execute_interactive(code, timeout=PATIENCE, output_hook=lambda message: None)

    def printed(self, code: str) -> str:
        """The cell's text on standard output."""
        return "".join(
            message["content"]["text"]
            for message in self.run(code)
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout"
        )

    def stop(self) -> None:
        """Ends the kernel and frees its ports."""
        self.client.stop_channels()
        self.manager.shutdown_kernel()
        self.manager.cleanup_resources()


@contextmanager
def running(side: Side) -> Iterator[Kernel]:
    """A connected kernel of `side`."""
    kernel = Kernel(side)
    try:
        kernel.connect()
        yield kernel
    finally:
        kernel.stop()
