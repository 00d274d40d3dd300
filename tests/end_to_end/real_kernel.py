"""A kernel process as Jupyter's server starts one for a notebook, and a client of it."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

from tests.faces import tells_of_start

SECONDS = 60


def heard(client: Any, code: str) -> dict[str, str]:
    """Returns what a cell wrote, by stream; `value` is its result, `error` its error's name.

    `page` is what the pager shows.
    """
    said: dict[str, str] = {"stdout": "", "stderr": "", "value": "", "error": "", "page": ""}

    def hear(message: Any) -> None:
        content = message["content"]
        if message["msg_type"] == "stream" and not tells_of_start(content["text"]):
            said[content["name"]] += content["text"]
        elif message["msg_type"] == "execute_result":
            said["value"] = content["data"]["text/plain"]
        elif message["msg_type"] == "error":
            said["error"] = content["ename"]

    reply = client.execute_interactive(code, timeout=SECONDS, output_hook=hear)
    for part in reply["content"].get("payload", ()):
        if part["source"] == "page":
            said["page"] += part["data"]["text/plain"]
    return said


class RealKernel:
    """A running kernel.

    Args:
        sessions: The folder of the sessions' folders.
        notebook: The notebook that it belongs to, as the server tells it.
        traits: What the command line sets on `WasmKernel`.
    """

    def __init__(self, sessions: Path, notebook: Path | None = None, **traits: str) -> None:
        self.sessions = sessions
        env = {**os.environ, "WASM_KERNEL_WORKSPACE_ROOT": str(sessions)}
        if notebook is not None:
            env["JPY_SESSION_NAME"] = str(notebook)
        self.manager = KernelManager(kernel_name="wasm-python")
        self.manager.start_kernel(
            env=env,
            extra_arguments=[f"--WasmKernel.{name}={value}" for name, value in traits.items()],
        )
        self._connect()

    def _connect(self) -> None:
        self.client: Any = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)

    def run(self, code: str) -> dict[str, str]:
        """Returns what a cell wrote, as `heard` does."""
        return heard(self.client, code)

    @property
    def pid(self) -> int:
        """The process's number."""
        provisioner: Any = self.manager.provisioner
        return int(provisioner.pid)

    def send(self, code: str) -> None:
        """Send a cell and do not wait for it."""
        self.client.execute(code)

    def kill(self) -> None:
        """The process is gone from one moment to the next."""
        self.manager.signal_kernel(signal.SIGKILL)

    def autorestart(self) -> None:
        """What Jupyter's server does where a kernel is gone; it also tries five times."""
        for _ in range(5):
            self.client.stop_channels()
            self.manager.restart_kernel(now=True)
            # an error: it ended at once, since its port was taken meanwhile
            with contextlib.suppress(RuntimeError):
                self._connect()
                return
        raise AssertionError("the kernel does not start again")

    def restart(self) -> None:
        """What "Restart kernel" does."""
        self.client.stop_channels()
        self.manager.restart_kernel()
        self._connect()

    def shut_down(self) -> None:
        """What "Shut down kernel" does; idempotent."""
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel()

    def end(self) -> None:
        """The process is gone, without more waiting than that takes."""
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
