"""A kernel process like those that Jupyter's server starts for notebooks, and a client of it."""

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
    """Returns the texts that a cell wrote, by stream; `value` is its result, `error` its error's
    name.

    `page` is the text for the pager.
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
        notebook: The path of its notebook, as the server passes it.
        name: The name of its kernelspec.
        traits: Settings of `WasmKernel` for the command line.
    """

    def __init__(
        self, sessions: Path, notebook: Path | None = None, name: str = "wasm-python", **traits: str
    ) -> None:
        self.sessions = sessions
        env = {**os.environ, "WASM_KERNEL_WORKSPACE_ROOT": str(sessions)}
        if notebook is not None:
            env["JPY_SESSION_NAME"] = str(notebook)
        self.manager = KernelManager(kernel_name=name)
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
        """Runs a cell; returns what it wrote, as `heard` does."""
        return heard(self.client, code)

    @property
    def pid(self) -> int:
        """The process id."""
        provisioner: Any = self.manager.provisioner
        return int(provisioner.pid)

    def send(self, code: str) -> None:
        """Sends a cell and does not wait for it."""
        self.client.execute(code)

    def kill(self) -> None:
        """Kills the process at once."""
        self.manager.signal_kernel(signal.SIGKILL)

    def autorestart(self) -> None:
        """Restarts a dead kernel like Jupyter's server, which also tries five times."""
        for _ in range(5):
            self.client.stop_channels()
            self.manager.restart_kernel(now=True)
            # the kernel ended at once with an error, since another process had taken its port
            with contextlib.suppress(RuntimeError):
                self._connect()
                return
        raise AssertionError("the kernel does not start again")

    def restart(self) -> None:
        """Does what "Restart kernel" does."""
        self.client.stop_channels()
        self.manager.restart_kernel()
        self._connect()

    def shut_down(self) -> None:
        """Does what "Shut down kernel" does. Safe to call twice."""
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel()

    def end(self) -> None:
        """Ends the process without waiting longer than needed."""
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
