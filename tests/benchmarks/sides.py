"""The two sides of every comparison, and a running kernel of either, over ZMQ."""

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
    """One of the two: where its interpreter and its kernel are, and how it is started.

    `api` is a script that prints a rendered DataFrame; it gets `folder` as its argument. What its
    kernels say on standard error goes to `log`.
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

        Unless it is `forked`, each kernel is started anew, and is the process that Jupyter knows.
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
    """A running kernel and its client; measures from the outside, as a front end would."""

    def __init__(self, side: Side) -> None:
        specs = KernelSpecManager(kernel_dirs=[str(side.kernels)], ensure_native_kernel=False)
        self.manager = KernelManager(kernel_name=side.kernel_name, kernel_spec_manager=specs)
        spec = self.manager.kernel_spec
        assert spec is not None
        spec.argv[0] = str(side.python)  # a spec from a wheel says "python", whichever that is
        with side.log.open("ab") as log:
            self.manager.start_kernel(
                cwd=str(side.folder),
                extra_arguments=list(side.arguments),
                stderr=log,
                env=side.environment(),
            )
        self.client: BlockingKernelClient = self.manager.blocking_client()
        # By default a socket that finds no kernel yet tries again after 100 to 200 ms, which would
        # round every start to that. The client's context is its own.
        self.client.context.setsockopt(zmq.RECONNECT_IVL, 2)
        self.client.start_channels()

    @property
    def pid(self) -> int:
        """The kernel's process."""
        pid = getattr(self.manager.provisioner, "pid", None)
        assert isinstance(pid, int)
        return pid

    def connect(self) -> None:
        """Wait until the kernel answers and its output is heard."""
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
        """The output messages of a cell, once both its reply and its idle status are there."""
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

    def printed(self, code: str) -> str:
        """What a cell wrote to standard output."""
        return "".join(
            message["content"]["text"]
            for message in self.run(code)
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout"
        )

    def stop(self) -> None:
        """End the kernel and free its ports."""
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
