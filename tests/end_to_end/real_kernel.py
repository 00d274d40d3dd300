"""A kernel process like those that Jupyter's server starts for notebooks, and a client of it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from jupyter_client.manager import KernelManager

from tests.faces import tells_of_start

SECONDS = 120
ROOT = "WASM_KERNEL_WORKSPACE_ROOT"
_COLOURS = re.compile(r"\x1b\[[\d;]*m")


class Shown:
    """The messages that were published under one request, up to idle, and its reply."""

    def __init__(self, messages: list[dict[str, Any]], asked: list[str]) -> None:
        self.messages = messages
        self.asked = asked
        self.reply: dict[str, Any] = {}

    @property
    def kinds(self) -> list[str]:
        return [message["msg_type"] for message in self.messages]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The contents of all messages of one kind."""
        return [message["content"] for message in self.messages if message["msg_type"] == kind]

    @property
    def stdout(self) -> str:
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        return self._stream("stderr")

    def _stream(self, name: str) -> str:
        texts = [each["text"] for each in self.of("stream") if each["name"] == name]
        return _COLOURS.sub("", "".join(text for text in texts if not tells_of_start(text)))

    def data(self, mime: str) -> list[Any]:
        """The contents of one type in displays and results, in order."""
        bundles = [message["content"].get("data", {}) for message in self.messages]
        return [bundle[mime] for bundle in bundles if mime in bundle]

    @property
    def value(self) -> str:
        """The text of the cell's value; empty if it has none."""
        return "".join(each["data"]["text/plain"] for each in self.of("execute_result"))

    @property
    def error(self) -> str:
        """The name of the cell's error; empty if it had none."""
        return "".join(each["ename"] for each in self.of("error"))

    @property
    def traceback(self) -> str:
        """The traceback of the error as text; empty if there was no error."""
        lines = [line for each in self.of("error") for line in each["traceback"]]
        return _COLOURS.sub("", "\n".join(lines))

    @property
    def page(self) -> str:
        """The pager's content."""
        pages = [p for p in self.reply.get("payload", ()) if p["source"] == "page"]
        return _COLOURS.sub("", "\n".join(page["data"]["text/plain"] for page in pages))


class RealKernel:
    """A running kernel.

    Args:
        sessions: The folder of the sessions' folders; by default that of the environment.
        notebook: The path of its notebook, as the server passes it.
        name: The name of its kernelspec.
        manager: The manager that starts it, in place of one for `name`.
        words: Other words for the command line.
        variables: Environment variables.
        cwd: The folder that it is started in.
        log: A file for the kernel's own output.
        traits: Settings of `WasmKernel` for the command line.
    """

    seconds: float = SECONDS

    def __init__(
        self,
        sessions: Path | None = None,
        notebook: Path | None = None,
        name: str = "wasm-python",
        *,
        manager: KernelManager | None = None,
        words: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        log: Path | None = None,
        **traits: str,
    ) -> None:
        self.sessions = sessions or Path(os.environ[ROOT])
        env = {**os.environ, ROOT: str(self.sessions), **(variables or {})}
        if notebook is not None:
            env["JPY_SESSION_NAME"] = str(notebook)
        self.manager = manager or KernelManager(kernel_name=name)
        set_ = [f"--WasmKernel.{name}={value}" for name, value in traits.items()]
        with (log or Path(os.devnull)).open("ab") as written:
            streams = {} if log is None else {"stdout": written, "stderr": written}
            self.manager.start_kernel(env=env, cwd=cwd, extra_arguments=[*set_, *words], **streams)
        self.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def connect(self) -> None:
        """Makes a client, and waits until the kernel answers it."""
        self.client: Any = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=self.seconds)

    def run(
        self, code: str, answers: Iterable[str] = (), *, interrupt: bool = False, **options: Any
    ) -> Shown:
        """Runs a cell; each question is answered by the next of `answers`.

        With `interrupt`, the stop button ends a question for which no answer is left.
        """
        left, shown = iter(answers), Shown([], [])

        def answer(question: Any) -> None:
            shown.asked.append(question["content"]["prompt"])
            if (text := next(left, None)) is not None:
                self.client.input(text)
                return
            self.manager.interrupt_kernel()
            assert interrupt, f"nobody answers {shown.asked}; before: {shown.messages}"

        options |= {"output_hook": shown.messages.append, "stdin_hook": answer}
        reply = self.client.execute_interactive(code, timeout=self.seconds, **options)
        shown.reply = dict(reply["content"])
        return shown

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
            message = self.client.get_shell_msg(timeout=self.seconds)
            if message["parent_header"].get("msg_id") == sent:
                return dict(message["content"])

    def heard(self, sent: str) -> Shown:
        """Returns the messages published under a request, up to idle."""
        found: list[dict[str, Any]] = []
        while True:
            message = self.client.get_iopub_msg(timeout=self.seconds)
            if message["parent_header"].get("msg_id") == sent:
                found.append(message)
                if message["content"].get("execution_state") == "idle":
                    return Shown(found, [])

    def hear(self, kind: str) -> dict[str, Any]:
        """The content of the next published message of a kind."""
        while (message := self.client.get_iopub_msg(timeout=self.seconds))["msg_type"] != kind:
            pass
        return dict(message["content"])

    def hear_comm(self, comm_id: str) -> dict[str, Any]:
        """The next published message on a comm."""
        while True:
            message: dict[str, Any] = self.client.get_iopub_msg(timeout=self.seconds)
            if message["content"].get("comm_id") == comm_id:
                return message

    def control(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        """Sends a request on the control channel; returns its reply's content."""
        sent = self.client.session.msg(kind, content)
        self.client.control_channel.send(sent)
        while True:
            message = self.client.get_control_msg(timeout=self.seconds)
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
            # the kernel ended at once with an error, since another process had taken its port
            with contextlib.suppress(RuntimeError):
                self.restart(now=True)
                return
        raise AssertionError("the kernel does not start again")

    def restart(self, *, now: bool = False) -> None:
        """Does what "Restart kernel" does."""
        self.client.stop_channels()
        self.manager.restart_kernel(now=now)
        self.connect()

    def shut_down(self, *, now: bool = False) -> None:
        """Does what "Shut down kernel" does. Safe to call twice."""
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=now)

    def end(self) -> None:
        """Ends the process without waiting longer than needed."""
        self.shut_down(now=True)
