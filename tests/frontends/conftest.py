"""Kernel processes on the fake sandbox, driven by Jupyter's own client."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60


class Driven:
    """A running kernel and a client of it."""

    def __init__(self, folder: Path, *arguments: str, **env: str) -> None:
        self.km = KernelManager(kernel_name="fake")
        self.log = folder / "said"
        self._said = self.log.open("wb")
        # not in the test's folder: an ipc socket's path may have 107 bytes
        self._runtime = tempfile.TemporaryDirectory(prefix="wk-")
        self.km.connection_file = str(Path(self._runtime.name, f"kernel-{uuid.uuid4()}.json"))
        name = Path(self.km.connection_file).stem.removeprefix("kernel-")
        self.workspace = folder / "sessions" / name
        self.km.start_kernel(
            extra_arguments=list(arguments),
            env=os.environ | {"WASM_KERNEL_WORKSPACE_ROOT": str(folder / "sessions")} | env,
            stdout=self._said,
            stderr=self._said,
        )
        self.kc: Any = self.km.blocking_client()
        self.kc.start_channels()

    def run(self, code: str, **options: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The reply's content and the IOPub messages of one cell."""
        return self.wait(self.kc.execute(code, **options))

    def wait(self, sent: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        reply = self.reply(sent)
        heard: list[dict[str, Any]] = []
        while True:
            message = self.kc.get_iopub_msg(timeout=SECONDS)
            if message["parent_header"].get("msg_id") != sent:
                continue
            heard.append(message)
            if message["content"].get("execution_state") == "idle":
                return reply, heard

    def reply(self, sent: str) -> dict[str, Any]:
        while True:
            message = self.kc.get_shell_msg(timeout=SECONDS)
            if message["parent_header"].get("msg_id") == sent:
                content: dict[str, Any] = message["content"]
                return content

    def control(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        """Sends a request on the control channel and returns the reply's content."""
        sent = self.kc.session.msg(kind, content)
        self.kc.control_channel.send(sent)
        while True:
            message = self.kc.get_control_msg(timeout=SECONDS)
            if message["parent_header"].get("msg_id") == sent["header"]["msg_id"]:
                answer: dict[str, Any] = message["content"]
                return answer

    def hear(self, kind: str) -> dict[str, Any]:
        """The next IOPub message of this kind."""
        while True:
            message = self.kc.get_iopub_msg(timeout=SECONDS)
            if message["msg_type"] == kind:
                content: dict[str, Any] = message["content"]
                return content

    def value(self, expression: str) -> str:
        """The value of an expression in the cells' namespace, as its repr."""
        reply, _ = self.run("pass", user_expressions={"it": expression})
        return str(reply["user_expressions"]["it"]["data"]["text/plain"])

    def settle(self) -> None:
        """Wait until everything is done that was requested, and discard the messages about it."""
        self.control("interrupt_request", {})
        self.run("pass", silent=True)
        for channel in (self.kc.iopub_channel, self.kc.shell_channel, self.kc.stdin_channel):
            while channel.msg_ready():
                channel.get_msg(timeout=SECONDS)

    def close(self) -> None:
        self.kc.stop_channels()
        self.km.shutdown_kernel(now=True)
        self._said.close()
        self._runtime.cleanup()


@contextmanager
def starting_in(folder: Path) -> Iterator[Callable[..., Driven]]:
    """Starts kernels on the fake sandbox, with arguments and, by name, environment variables.

    `up=False` does not wait until they listen.
    """
    spec = folder / "share" / "kernels" / "fake"
    spec.mkdir(parents=True)
    argv = [sys.executable, "-m", "tests.frontends.fake_kernel", "-f", "{connection_file}"]
    argv += ["--WasmKernel.confinement=off"]  # cells run in the kernel's own process
    facts: dict[str, Any] = {"argv": argv, "display_name": "fake", "language": "python"}
    facts |= {"interrupt_mode": "message", "env": {"PYTHONPATH": str(ROOT)}}
    facts["metadata"] = {"supported_encryption": ["curve"]}
    (spec / "kernel.json").write_text(json.dumps(facts))
    started: list[Driven] = []

    def starting(*arguments: str, up: bool = True, **env: str) -> Driven:
        started.append(Driven(folder, *arguments, **env))
        if up:
            # a client misses messages that are published before it has subscribed
            started[-1].hear("iopub_welcome")
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder / "share"))
        yield starting
        for kernel in started:
            kernel.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Driven]]:
    """Starts kernels like `starting_in`, for one test."""
    with starting_in(tmp_path) as start:
        yield start


@pytest.fixture
def fresh(start: Callable[..., Driven]) -> Driven:
    """A new kernel for tests of its start, its end or its first cell."""
    return start()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    """One kernel for a file."""
    with starting_in(tmp_path_factory.mktemp("kernel")) as start:
        yield start()


@pytest.fixture
def kernel(lasting: Driven) -> Iterator[Driven]:
    """The file's kernel; after the test, it must answer."""
    yield lasting
    lasting.settle()
