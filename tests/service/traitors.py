"""Workers that are threads of the test and speak the worker's side of the protocol."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.faces import PATIENCE
from wasm_kernel.errors import WorkerLost
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.interfaces import Cell
from wasm_kernel.folders.private import OpenFolder
from wasm_kernel.linux.broker import EmptyReply, Handlers
from wasm_kernel.linux.channel import Channel
from wasm_kernel.policy import MIB, ExecutionPolicy
from wasm_kernel.result import CellResult
from wasm_kernel.service import messages
from wasm_kernel.service.awake import AwakeSessions
from wasm_kernel.service.fork_server import Worker
from wasm_kernel.service.open_message import Open, plain_policy
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.service.sandbox_home import SandboxHome
from wasm_kernel.service.session_worker import SessionWorker

A_QUERY = {"op": "is_complete", "code": ""}
BRIEF = ExecutionPolicy(memory_bytes=512 * MIB, cell_timeout=0.2, grace_seconds=0.05)
PATIENT = replace(BRIEF, cell_timeout=PATIENCE, query_seconds=PATIENCE)
"""Limits for tests that don't measure silence, as a busy machine may take long to answer."""
Script = Callable[[Channel], None]
"""The work of a worker, which ends when this returns."""


class Traitor(Worker):
    """A worker that is a thread of the test."""

    def __init__(self, script: Script) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(Channel(ours), 0, -1, (-1, -1, -1))
        self._theirs, self._is_over = theirs, False
        threading.Thread(target=self._run, args=(script,), daemon=True).start()

    def _run(self, script: Script) -> None:
        with self._theirs, self._theirs.dup() as line:
            with suppress(EOFError, OSError):
                script(Channel(line))
            self._is_over = True
            self.kill()

    @property
    def has_ended(self) -> bool:
        return self._is_over

    def kill(self) -> None:
        with suppress(OSError):
            self._theirs.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.kill()
        self.channel.close()


class Home(SandboxHome[Sandbox]):
    """The service of some sessions, whose workers are traitors."""

    def __init__(self, script: Script, most: int | None = None) -> None:
        self.script = script
        self.awake = AwakeSessions(most)
        self.sandboxes: list[Sandbox] = []
        self.asked: list[object] = []
        self._ending = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._looking.start()

    def session(self, policy: ExecutionPolicy = PATIENT) -> Sandbox:
        opened = Open("python", "s", "/nowhere", None, plain_policy(policy), False, "off")
        worker = SessionWorker(
            opened, self, SandboxLogger.of(None), queue=9, answer_seconds=PATIENCE
        )
        self.sandboxes.append(Sandbox(worker, self, Path(opened.workspace), policy))
        return self.sandboxes[-1]

    def fork(self, sandbox: Sandbox, n: int, *, reseed: bool) -> list[Sandbox]:
        return []

    def spawn(self, session: SessionWorker, progress: Callable[[str], None]) -> Worker:
        self.awake.admit(session)
        return Traitor(self.script)

    def release(self, session: SessionWorker) -> None:
        self.awake.release(session)

    def handlers(self, session: SessionWorker) -> Handlers:
        def done(request: EmptyReply, task: object) -> EmptyReply:
            self.asked.append(request)
            return request

        return {EmptyReply: done}

    def check_mounts(self, session: SessionWorker, policy: ExecutionPolicy) -> dict[str, Any]:
        return {}

    def exchanges(self, session: SessionWorker) -> OpenFolder:
        raise NotImplementedError

    def _look(self) -> None:
        while not self._ending.wait(0.02):
            for sandbox in [*self.sandboxes]:
                sandbox.worker.look_after()

    def close(self) -> None:
        for sandbox in self.sandboxes:
            session = sandbox.worker
            session.sleep("the test is over")
            session.wait_asleep()
        self._ending.set()
        self._looking.join()


Making = Callable[..., Home]


def request(channel: Channel) -> Any:
    """Returns the service's next message, and answers its pings on the way."""
    while True:
        found = messages.read_request(channel.receive())
        if not isinstance(found, messages.Ping):
            return found
        channel.send(messages.Pong())


def answers_pings_alone(channel: Channel) -> None:
    while True:
        request(channel)


def answers_starts_alone(channel: Channel) -> None:
    request(channel)
    channel.send(ended(request(channel)))
    request(channel)


def serves(channel: Channel) -> None:
    """Works like an honest worker whose cells do nothing."""
    while not isinstance(found := request(channel), messages.Close):
        if isinstance(found, messages.Call):
            channel.send(ended(found))
    channel.send(messages.Closed({}))


def ended(call: messages.Call, value: object = None) -> messages.Ended:
    if isinstance(call.request, Cell):
        value = CellResult(True, 0, None, None, 0, 0.0, (), (), (), {})
    elif isinstance(call.request, messages.Query) and value is None:
        value = {}
    raw = msgspec.Raw(msgspec.json.encode(value))
    return messages.Ended(call.call, raw, messages.Figures())


def lost(outcome: Callable[[], Any]) -> str:
    with pytest.raises(WorkerLost) as raised:
        outcome()
    return str(raised.value)


def says(*reports: Any) -> Script:
    """A worker that opens its session, reads the first call, and sends these messages."""

    def script(channel: Channel) -> None:
        request(channel)
        call = request(channel)
        for report in reports:
            channel.send(report(call) if callable(report) else report)
        answers_pings_alone(channel)

    return script
