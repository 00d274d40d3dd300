"""A kernel process like those that Jupyter's server starts for notebooks, and a client of it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
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
        words: Other words for the command line.
        variables: Environment variables.
        log: A file for its standard error.
        traits: Settings of `WasmKernel` for the command line.
    """

    def __init__(
        self,
        sessions: Path,
        notebook: Path | None = None,
        name: str = "wasm-python",
        *,
        words: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        log: Path | None = None,
        **traits: str,
    ) -> None:
        self.sessions = sessions
        env = {**os.environ, "WASM_KERNEL_WORKSPACE_ROOT": str(sessions), **(variables or {})}
        if notebook is not None:
            env["JPY_SESSION_NAME"] = str(notebook)
        self.manager = KernelManager(kernel_name=name)
        set_ = [f"--WasmKernel.{name}={value}" for name, value in traits.items()]
        with (log or Path(os.devnull)).open("wb") as written:
            streams = {} if log is None else {"stdout": written, "stderr": written}
            self.manager.start_kernel(env=env, extra_arguments=[*set_, *words], **streams)
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

    def send(self, code: str, **options: Any) -> str:
        """Sends a cell and does not wait for it; returns the message's id."""
        return str(self.client.execute(code, **options))

    def reply(self, sent: str) -> dict[str, Any]:
        """The content of the reply to a request on the shell channel."""
        while True:
            message = self.client.get_shell_msg(timeout=SECONDS)
            if message["parent_header"].get("msg_id") == sent:
                return dict(message["content"])

    def heard(self, sent: str) -> list[dict[str, Any]]:
        """The messages that are published under a request, up to idle."""
        found: list[dict[str, Any]] = []
        while True:
            message = self.client.get_iopub_msg(timeout=SECONDS)
            if message["parent_header"].get("msg_id") == sent:
                found.append(message)
                if message["content"].get("execution_state") == "idle":
                    return found

    def told(self, code: str, **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Runs a cell; returns its reply's content and its messages."""
        sent = self.send(code, **options)
        return self.reply(sent), self.heard(sent)

    def hear(self, kind: str) -> dict[str, Any]:
        """The content of the next published message of a kind."""
        while (message := self.client.get_iopub_msg(timeout=SECONDS))["msg_type"] != kind:
            pass
        return dict(message["content"])

    def control(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        """Sends a request on the control channel; returns its reply's content."""
        sent = self.client.session.msg(kind, content)
        self.client.control_channel.send(sent)
        while True:
            message = self.client.get_control_msg(timeout=SECONDS)
            if message["parent_header"].get("msg_id") == sent["header"]["msg_id"]:
                return dict(message["content"])

    def comm(self, kind: str, comm_id: str, data: Any, buffers: Any = None, **fields: Any) -> str:
        """Sends a page's message on a comm; returns its id."""
        content = {"comm_id": comm_id, "data": data} | fields
        session = self.client.session
        message = session.msg(f"comm_{kind}", content, metadata={"version": "1.0.0"})
        session.send(self.client.shell_channel.socket, message, buffers=buffers)
        return str(message["header"]["msg_id"])

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
