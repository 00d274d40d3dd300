"""A worker that was taken over can end its own calls, and do no other harm to its service.

The workers here are threads that speak the worker's side of the protocol.
"""

from __future__ import annotations

import mmap
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faces import PATIENCE, error_of, happens, wait_for
from tests.peak import Peak
from wasm_kernel.engine.clock import StopReason
from wasm_kernel.errors import SandboxClosed, WasmKernelError, WorkerLost
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.interfaces import Cell, InputInterrupted, NoListener
from wasm_kernel.folders.private import OpenFolder
from wasm_kernel.guests.protocol import Display, Output
from wasm_kernel.linux.broker import BrokerCancel, BrokerRequest, EmptyReply, Handlers
from wasm_kernel.linux.channel import Channel
from wasm_kernel.policy import MIB, ExecutionPolicy
from wasm_kernel.result import CommMessage
from wasm_kernel.service import awake, calls, messages, session_worker
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

    def mounted(self, session: SessionWorker, policy: ExecutionPolicy) -> dict[str, Any]:
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


@pytest.fixture
def homes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Making]:
    """Makes services with short time-outs."""
    monkeypatch.setattr(calls, "_LATE_SECONDS", 0.1)
    monkeypatch.setattr(session_worker, "START_SECONDS", 0.0)
    monkeypatch.setattr(session_worker, "SLOW_SECONDS", PATIENCE)
    monkeypatch.setattr(session_worker, "_CLOSE_SECONDS", 0.6)
    with ExitStack() as ending:

        def make(script: Script, most: int | None = None) -> Home:
            home = Home(script, most)
            ending.callback(home.close)
            return home

        yield make


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
    if isinstance(call.request, messages.Execute):
        value = messages.CellResult(True, 0, None, None, 0.0, (), (), (), {})
    elif isinstance(call.request, messages.Query) and value is None:
        value = {}
    raw = msgspec.Raw(msgspec.json.encode(value))
    return messages.Ended(call.call, raw, messages.Figures())


def lost(outcome: Callable[[], Any]) -> str:
    with pytest.raises(WorkerLost) as raised:
        outcome()
    return str(raised.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda sandbox: sandbox.start().result(PATIENCE),
        lambda sandbox: sandbox.query(A_QUERY).result(PATIENCE),
        lambda sandbox: sandbox.comms().result(PATIENCE),
        lambda sandbox: sandbox.checkpoint("name"),
        lambda sandbox: sandbox.checkpoints(),
        lambda sandbox: sandbox.undo(),
        lambda sandbox: sandbox.fork_into(["fork"], reseed=True),
    ],
    ids=["start", "query", "comms", "checkpoint", "checkpoints", "undo", "fork"],
)
def test_a_call_that_its_worker_never_answers_has_an_end(
    homes: Making, call: Callable[[Sandbox], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, only cells had a limit: a worker that answered `Ping` kept its caller for ever."""
    monkeypatch.setattr(calls, "_CALL_SECONDS", 0.2)
    policy = ExecutionPolicy(query_seconds=0.1, grace_seconds=0.05)
    sandbox = homes(answers_pings_alone).session(policy)
    assert "went on after the call's time was over" in lost(lambda: call(sandbox))


def test_a_worker_that_is_killed_before_it_begins_a_call_costs_none(homes: Making) -> None:
    """Before, a session's first cell was lost with the fork server."""

    def is_killed(channel: Channel) -> None:
        request(channel)
        request(channel)
        home.script = is_killed_again

    def is_killed_again(channel: Channel) -> None:
        request(channel)
        home.script = serves

    def is_killed_later(channel: Channel) -> None:
        request(channel)
        channel.send(messages.Opened())
        request(channel)
        home.script = serves

    def is_killed_at_an_interrupt(channel: Channel) -> None:
        while not isinstance(request(channel), messages.Interrupt):
            pass
        home.script = serves

    home = homes(is_killed)
    sandbox = home.session()
    cells = [sandbox.submit("x"), sandbox.submit("y")]
    assert [cell.result(PATIENCE).success for cell in cells] == [True, True]
    home.script = is_killed_later
    sandbox.worker.sleep()
    sandbox.worker.wait_asleep()
    assert "has ended, or was killed" in error_of(sandbox.execute("x"))
    home.script = is_killed_at_an_interrupt
    sandbox.worker.sleep()
    sandbox.worker.wait_asleep()
    cells = [sandbox.submit("x"), sandbox.submit("y")]
    wait_for(lambda: sandbox.worker.worker is not None)
    cells[1].interrupt()  # an interrupted cell does not run after all
    assert [cell.result(PATIENCE).success for cell in cells] == [False, False]
    home.script = lambda channel: None
    sandbox.worker.sleep()
    sandbox.worker.wait_asleep()
    assert "has ended, or was killed" in lost(lambda: sandbox.query(A_QUERY).result(PATIENCE))


@pytest.mark.parametrize(
    "said",
    [
        messages.failure(0, WasmKernelError("the session is gone")),
        messages.Text(1, "stdout", "half a cell"),
        messages.Stuck(StopReason("grace", 1.0), is_kept=True),
        messages.Closed({}),
    ],
    ids=["refusal", "output", "stuck", "rubbish"],
)
def test_no_other_worker_gets_the_calls_of_one_that_said_why_or_tells_of_a_call(
    homes: Making, said: Any
) -> None:
    """Before, three workers were forked for a session that can't be opened or was taken over."""
    begun = []

    def is_gone_soon(channel: Channel) -> None:
        begun.append(request(channel))
        request(channel)
        channel.send(said)

    cell = homes(is_gone_soon).session().submit("x")
    wait_for(cell.done)
    assert len(begun) == 1


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_error_of_a_guest_that_must_be_ended_says_what_is_kept(
    homes: Making, is_kept: bool
) -> None:
    stuck = messages.Stuck(StopReason("grace", 1.0), is_kept)
    error = error_of(homes(says(messages.Opened(), stuck)).session().execute("x"))
    assert error.startswith("Interrupted")
    assert ("before this cell" if is_kept else "the last cell that was kept") in error


def test_a_cell_that_its_worker_never_ends_has_an_end(homes: Making) -> None:
    home = homes(answers_pings_alone)
    error = home.session(BRIEF).submit("x").result(PATIENCE).error
    assert error is not None
    assert "went on after the call's time was over" in error.evalue
    unlimited = home.session(ExecutionPolicy(cell_timeout=None, grace_seconds=0.05))
    cell = unlimited.submit("x")
    assert not happens(cell.done, 0.5)
    cell.interrupt()
    assert not happens(cell.done, 0.5)  # the cell may have caught the interrupt
    cell.interrupt()
    assert cell.result(PATIENCE).error is not None


def says(*reports: Any) -> Script:
    """A worker that opens its session, reads the first call, and sends these messages."""

    def script(channel: Channel) -> None:
        request(channel)
        call = request(channel)
        for report in reports:
            channel.send(report(call) if callable(report) else report)
        answers_pings_alone(channel)

    return script


@pytest.mark.parametrize(
    "script",
    [
        says(ended, ended),
        says(messages.Ended(99, msgspec.Raw(b"null"), messages.Figures())),
        says(messages.Failed(99, "TravelError", "x")),
        says(lambda call: ended(call, [1])),
        says(messages.Pong()),
        says(messages.Closed({})),
        says(*[messages.Text(99, "stdout", "x" * 2**20)] * 5),
        says(*[messages.Text(99, "stdout", "")] * 20_000),
        says(*[BrokerCancel(1)] * 20_000),
        says(*[messages.MaySleep()] * 20_000),
        says(*[BrokerRequest(n, "ForkSession", msgspec.Raw(b"{}")) for n in range(999)]),
        says(messages.Logged(30, "x" * 20_000)),
        says(messages.Logged(10**9, "x")),
        says(lambda call: messages.Failed(call.call, "LimitReached", "x", {"limit": "any"})),
    ],
    ids=[
        *("answered twice", "answer to nothing", "failure of nothing", "other type"),
        *("unasked pong", "unasked end", "stray text", "empty stray text"),
        *("unwanted", "too tired", "too many wishes", "long log", "level", "limit"),
    ],
)
def test_a_worker_that_breaks_the_protocol_is_ended_and_replaced(
    homes: Making, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    home = homes(script)
    sandbox = home.session()
    with suppress(WasmKernelError):
        sandbox.query(A_QUERY).result(PATIENCE)
    wait_for(lambda: sandbox.worker.state == "asleep")
    assert "broke the protocol" in caplog.text
    home.script = serves
    sandbox.start().result(PATIENCE)


@pytest.mark.parametrize("data", [{}, {"a/json": [[]] * 100_000}], ids=["many", "nested"])
def test_outputs_are_counted_as_they_are_kept(
    homes: Making, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, one byte of a taken-over worker took 20 bytes of its service's memory."""

    def shows(channel: Channel) -> None:
        request(channel)
        call = request(channel).call
        shown = messages.OutputShown(call, Display(data=data))
        for _ in range(1_000_000):
            channel.send(shown)

    monkeypatch.setattr(calls, "_MARGIN_BYTES", 8 * MIB)
    limits = ExecutionPolicy(cell_timeout=PATIENCE, display_count=10, display_bytes=MIB)
    peak = Peak()
    assert "sent what it must not" in error_of(homes(shows).session(limits).execute("x"))
    assert peak.grown < 128 * MIB


def test_what_a_worker_says_of_itself_is_no_more_than_it_can_be(homes: Making) -> None:
    """Its figures count in the sums and the memory of the whole service."""

    def boasts(channel: Channel) -> None:
        request(channel)
        call = request(channel)
        value = messages.CellResult(True, 0, None, 2**61, 1e300, (), (), (), {})
        raw = msgspec.Raw(msgspec.json.encode(value))
        channel.send(messages.Ended(call.call, raw, messages.Figures(fuel=2**61)))
        request(channel)
        channel.send(messages.Closed({f"{number:064}": (1,) * 5 for number in range(50_000)}))

    home = homes(boasts)
    sandbox = home.session(ExecutionPolicy(cell_timeout=PATIENCE))
    result = sandbox.execute("x")
    assert (result.fuel_consumed, sandbox.worker.usage.fuel) == (None, 0)
    assert result.duration < PATIENCE
    home.script = serves
    sandbox.worker.sleep()
    sandbox.worker.wait_asleep()
    assert len(sandbox.worker.opened.verified) < 5_000
    metered = home.session(ExecutionPolicy(cell_timeout=PATIENCE, fuel_budget=10))
    home.script = boasts
    assert metered.execute("x").fuel_consumed == 10


def test_calls_that_come_while_a_session_falls_asleep_wait_for_the_next_worker(
    homes: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_worker, "_CLOSE_SECONDS", PATIENCE)
    slow = threading.Event()

    def leaves_slowly(channel: Channel) -> None:
        while not isinstance(found := request(channel), messages.Close):
            if isinstance(found, messages.Call):
                channel.send(ended(found))
        while not slow.is_set():  # a worker that is well, and has much to write
            if not channel.is_quiet(0.01):
                channel.receive()
                channel.send(messages.Pong())

    home = homes(leaves_slowly)
    sandbox = home.session()
    sandbox.query(A_QUERY).result(PATIENCE)
    assert sandbox.worker.sleep()
    home.script = serves
    began = time.monotonic()
    pending = sandbox.query(A_QUERY)
    assert time.monotonic() - began < PATIENCE / 2, "a call waits for nobody"
    assert not happens(pending.done, 0.5)
    slow.set()
    assert pending.result(PATIENCE) == {}


def test_a_reset_is_never_lost(homes: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it was lost if the session fell asleep at this moment, or if its worker died."""
    told: list[bool] = []

    def leaves(channel: Channel) -> None:
        while not isinstance(found := request(channel), messages.Close):
            if not isinstance(found, Open):
                channel.send(ended(found))
        told.append(found.discard_variables)
        if told != [False, True]:
            channel.send(messages.Closed({}))

    real = SessionWorker.sleep

    def sleep(worker: SessionWorker, why: str = "", *, discard_variables: bool = False) -> bool:
        if not told and discard_variables:
            real(worker)
            worker.wait_asleep()
        return real(worker, why, discard_variables=discard_variables)

    monkeypatch.setattr(SessionWorker, "sleep", sleep)
    monkeypatch.setattr(session_worker, "_CLOSE_SECONDS", PATIENCE)
    home = homes(leaves)
    home.session().reset()
    assert told == [False, True, True]
    home.script = answers_starts_alone
    assert "The session may be as it was" in lost(home.session().reset)


def test_a_worker_that_answers_and_never_closes_its_session_is_ended(
    homes: Making, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, closing it took more than two minutes."""

    def stays(channel: Channel) -> None:
        request(channel)
        channel.send(ended(request(channel)))
        answers_pings_alone(channel)

    sandbox = homes(stays).session()
    sandbox.query(A_QUERY).result(PATIENCE)
    sandbox.close()
    assert sandbox.worker.state == "asleep"
    assert "did not close its session within 1 seconds" in caplog.text


def test_a_stopped_session_keeps_its_room_from_others_for_a_moment_only(
    homes: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, other sessions waited 130 seconds for the room, one after the other."""
    for module in (session_worker, awake):
        monkeypatch.setattr(module, "SLOW_SECONDS", 0.2)
    is_over = threading.Event()

    def stops(channel: Channel) -> None:
        request(channel)
        channel.send(ended(request(channel)))
        is_over.wait(PATIENCE)  # the worker reads no more messages

    home = homes(stops, 1200 * MIB)
    stopped = home.session()
    stopped.query(A_QUERY).result(PATIENCE)
    home.script = serves
    others = [home.session() for _ in range(3)]
    for each in others:
        assert each.query(A_QUERY).result(PATIENCE / 2) == {}
    is_over.set()


def test_a_worker_that_takes_more_memory_than_it_may_is_ended(
    homes: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Traitor, "resident_bytes", 2**50)
    result = homes(answers_pings_alone).session().execute("x")
    assert "took more memory than its session's limits allow" in error_of(result)


def test_shared_memory_of_a_worker_counts_as_its_own() -> None:
    """Before, code that had taken over a worker could take all memory unnoticed."""
    worker = Worker.of(socket.socket(), os.getpid(), -1)
    before = worker.resident_bytes
    with mmap.mmap(-1, 64 * MIB) as shared:
        shared.write(b"x" * 64 * MIB)
        assert worker.resident_bytes - before > 48 * MIB
    worker.channel.close()


def test_no_caller_waits_for_a_worker_that_reads_nothing(homes: Making) -> None:
    """Before, a kernel's only thread waited in it, and no signal reached the kernel."""
    is_over = threading.Event()

    def reads_nothing(channel: Channel) -> None:
        request(channel)
        is_over.wait(PATIENCE)

    sandbox = homes(reads_nothing).session()
    large = CommMessage("msg", "c", {"text": "x" * 3_000_000})
    sent = threading.Thread(target=lambda: sandbox.comm(large), daemon=True)
    sandbox.submit("x")
    wait_for(lambda: sandbox.worker.worker is not None)
    sent.start()
    sent.join(PATIENCE / 2)
    assert not sent.is_alive()
    is_over.set()


def test_a_question_of_a_worker_that_has_ended_ends(homes: Making) -> None:
    def asks_and_ends(channel: Channel) -> None:
        request(channel)
        call = request(channel).call
        channel.send(messages.InputRequest(call, 1, "name?", False))

    class Patient(NoListener):
        def ask(self, prompt: str, password: bool) -> str:
            wait_for(lambda: sandbox.interrupted)
            raise InputInterrupted

    sandbox = homes(asks_and_ends).session()
    cell = sandbox.submit("x", allow_stdin=True, listener=Patient())
    assert error_of(cell.result(PATIENCE)).startswith("WorkerLost")


def test_the_text_of_a_workers_error_does_nothing_to_a_terminal() -> None:
    failed = messages.Failed(1, "HostFailed", "\x1b]0;owned\x07said", {"why": "\x1b[2Jwhy"})
    error = messages.error_of(failed)
    assert "\x1b" not in f"{error}{vars(error)}"
    assert "said" in str(error)


def test_a_listener_may_close_its_own_session(homes: Making) -> None:
    """Before, its thread waited for itself."""
    closed = threading.Event()

    class Closes(NoListener):
        def emit(self, output: Output) -> None:
            sandbox.close()
            closed.set()

    home = homes(says(lambda call: messages.Text(call.call, "stdout", "x")))
    sandbox = home.session()
    cell = sandbox.submit("x", listener=Closes())
    assert closed.wait(PATIENCE)
    with pytest.raises(SandboxClosed):
        cell.result(PATIENCE)


def test_a_service_that_fails_itself_ends_the_call_in_words(
    homes: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = homes(serves)

    def fails(*_: object) -> Worker:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(home, "spawn", fails)
        with pytest.raises(WasmKernelError, match="no memory is left"):
            home.session().start().result(PATIENCE)
        patch.setattr(home, "spawn", lambda *_: Traitor(serves))
        patch.setattr(SessionWorker, "_ended", fails)
        sandbox = home.session()
        assert "as its service failed" in lost(lambda: sandbox.start().result(PATIENCE))


NUMBERS = st.integers(0, 3)
REPORTS = st.one_of(
    st.builds(messages.Text, NUMBERS, st.sampled_from(["stdout", "stderr"]), st.text(max_size=9)),
    st.builds(messages.InputRequest, NUMBERS, st.text(max_size=9), st.booleans()),
    st.builds(messages.Failed, NUMBERS, st.sampled_from(["CellTimeout", "x"]), st.text(max_size=9)),
    st.builds(BrokerRequest, NUMBERS, st.just("EmptyReply"), st.just(msgspec.Raw(b"[]"))),
    st.builds(BrokerCancel, NUMBERS),
    st.builds(messages.Event, st.just("session.forked"), st.just({"level": 1, "self": 2})),
    st.builds(messages.Logged, st.integers(-9, 99), st.text(max_size=9)),
    st.just(messages.Pong()),
    st.just(messages.Terminating(1)),
    st.builds(lambda call: ended(messages.Call(call, messages.Query({}))), NUMBERS),
    st.builds(lambda call: ended(messages.Call(call, messages.Execute(Cell(code="")))), NUMBERS),
)
FRAMES = st.lists(st.one_of(REPORTS.map(msgspec.json.encode), st.binary(max_size=40)), max_size=6)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FRAMES)
def test_whatever_a_worker_says_its_calls_end_and_its_session_goes_on(
    homes: Making, frames: list[bytes]
) -> None:
    def script(channel: Channel) -> None:
        request(channel)
        for frame in frames:
            channel._write(frame)

    home = homes(script)
    sandbox = home.session()
    pending: list[Future[Any]] = [sandbox.submit("x"), sandbox.query(A_QUERY)]
    for each in pending:
        with suppress(WasmKernelError):
            each.result(PATIENCE)
    wait_for(lambda: sandbox.worker.state == "asleep")
    home.script = serves
    assert sandbox.query(A_QUERY).result(PATIENCE) == {}
    home.close()
