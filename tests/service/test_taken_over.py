"""A worker that was taken over can end its own calls, and do no other harm to its service."""

from __future__ import annotations

import logging
import mmap
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faces import PATIENCE, error_of, fall_asleep, happens, wait_for
from tests.peak import Peak
from tests.service.traitors import (
    A_QUERY,
    BRIEF,
    Making,
    Script,
    Traitor,
    answers_pings_alone,
    ended,
    lost,
    request,
    says,
    serves,
)
from wasm_kernel.engine.clock import StopReason
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.interfaces import Cell
from wasm_kernel.guests.protocol import CallFunction, Display, Stream
from wasm_kernel.linux.broker import BrokerCancel, BrokerRequest, EmptyReply
from wasm_kernel.linux.channel import Channel
from wasm_kernel.linux.task import Task
from wasm_kernel.policy import MIB, ExecutionPolicy
from wasm_kernel.result import CellResult
from wasm_kernel.service import calls, messages
from wasm_kernel.service.fork_server import Worker
from wasm_kernel.service.host_function import HostFunction
from wasm_kernel.service.sandbox import Sandbox


@pytest.mark.parametrize(
    "call",
    [
        lambda sandbox: sandbox.start().result(PATIENCE),
        lambda sandbox: sandbox.query(A_QUERY).result(PATIENCE),
        lambda sandbox: sandbox.undo(),
        lambda sandbox: sandbox.fork_into(["fork"], reseed=True),
    ],
    ids=["start", "query", "undo", "fork"],
)
def test_a_call_that_its_worker_never_answers_has_an_end(
    homes: Making, call: Callable[[Sandbox], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly, only cells had a limit: a worker that answered `Ping` kept its caller for ever."""
    monkeypatch.setattr(calls, "_CALL_SECONDS", 0.2)
    policy = ExecutionPolicy(query_seconds=0.1, grace_seconds=0.05)
    sandbox = homes(answers_pings_alone).session(policy)
    assert "went on after the call's time was over" in lost(lambda: call(sandbox))


@pytest.mark.parametrize(
    "said",
    [
        messages.failure(0, WasmKernelError("the session is gone")),
        messages.OutputShown(1, Stream("stdout", "half a cell")),
        messages.Stuck(StopReason("grace", 1.0), is_kept=True),
        messages.Closed({}),
    ],
    ids=["refusal", "output", "stuck", "rubbish"],
)
def test_no_other_worker_gets_the_calls_of_one_that_said_why_or_tells_of_a_call(
    homes: Making, said: Any
) -> None:
    """Formerly, three workers were forked for a session that can't be opened or was taken over."""
    begun = []

    def is_gone_soon(channel: Channel) -> None:
        begun.append(request(channel))
        request(channel)
        channel.send(said)

    cell = homes(is_gone_soon).session().submit("x")
    wait_for(cell.done)
    assert len(begun) == 1


@pytest.mark.parametrize("is_kept", [True, False])
def test_errors_of_guests_that_must_be_ended_say_what_is_kept(homes: Making, is_kept: bool) -> None:
    stuck = messages.Stuck(StopReason("grace", 1.0), is_kept)
    error = error_of(homes(says(messages.Opened(), stuck)).session().execute("x"))
    assert error.startswith("Interrupted")
    assert ("before this cell" if is_kept else "the last cell that was kept") in error


def test_cells_of_silent_workers_end(homes: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_CALL_SECONDS", 0.2)
    home = homes(answers_pings_alone)
    error = error_of(home.session(BRIEF).submit("x").result(PATIENCE))
    assert "went on after the call's time was over" in error
    unlimited = home.session(ExecutionPolicy(cell_timeout=None, grace_seconds=0.05))
    cell = unlimited.submit("x")
    assert not happens(cell.done, 0.5)
    cell.interrupt()
    assert not happens(cell.done, 0.5)  # the cell may have caught the interrupt
    cell.interrupt()
    assert cell.result(PATIENCE).error is not None


@pytest.mark.parametrize(
    "script",
    [
        says(ended, ended),
        says(messages.Ended(99, msgspec.Raw(b"null"), messages.Figures())),
        says(messages.Failed(99, "TravelError", "x")),
        says(lambda call: ended(call, [1])),
        says(messages.Pong()),
        says(messages.Closed({})),
        says(*[messages.OutputShown(99, Stream("stdout", "x" * 2**20))] * 5),
        says(*[messages.OutputShown(99, Stream("stdout", ""))] * 20_000),
        says(*[BrokerCancel(1)] * 20_000),
        says(*[messages.MaySleep()] * 20_000),
        says(*[BrokerRequest(n, "ForkSession", msgspec.Raw(b"{}")) for n in range(999)]),
        says(messages.Logged(30, "x" * 20_000)),
        says(messages.Logged(10**9, "x")),
        says(lambda call: messages.Failed(call.call, "LimitReached", "x", {"limit": "any"})),
        says(messages.Failed(0, "OutOfMemory", "x", {"happened": "x", "kept": "x"})),
    ],
    ids=[
        *("answered twice", "answer to nothing", "failure of nothing", "other type"),
        *("unasked pong", "unasked end", "stray text", "empty stray text"),
        *("unwanted", "too tired", "too many wishes", "long log", "level", "limit", "lost guest"),
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


@pytest.mark.parametrize(
    "part",
    [Sandbox.offer_pip, lambda sandbox: sandbox.worker.sleep(discard_variables=True)],
    ids=["options", "reset"],
)
def test_no_worker_answers_a_call_that_waits_for_the_next_worker(
    homes: Making, part: Callable[[Sandbox], object]
) -> None:
    """Formerly, a worker that was taken over answered calls that came after its session's reset."""
    is_waiting = threading.Event()

    def forges(channel: Channel) -> None:
        request(channel)
        call = request(channel)
        is_waiting.wait(PATIENCE)
        home.script = serves
        later = messages.Call(call.call + 1, call.request)
        channel.send(messages.OutputShown(later.call, Stream("stdout", "forged")))
        channel.send(ended(later))
        answers_pings_alone(channel)

    home = homes(forges)
    sandbox = home.session()
    first = sandbox.submit("x")
    wait_for(lambda: sandbox.worker.worker is not None)
    part(sandbox)
    later = sandbox.submit("y")
    is_waiting.set()
    assert not first.result(PATIENCE).success
    assert later.result(PATIENCE).stdout == ""


def test_no_worker_calls_a_function_that_is_offered_to_later_cells(homes: Making) -> None:
    """Formerly, the running cell's worker could call the first functions that were offered."""
    called: list[Any] = []
    answers: list[str] = []
    is_offered = threading.Event()

    def asks(channel: Channel) -> None:
        request(channel)
        call = request(channel)
        is_offered.wait(PATIENCE)
        asked = msgspec.json.encode(CallFunction("note", [1]))
        channel.send(BrokerRequest(1, "CallFunction", msgspec.Raw(asked)))
        answers.append(request(channel).why)
        channel.send(ended(call))
        answers_pings_alone(channel)

    sandbox = homes(asks).session()
    cell = sandbox.submit("x")
    wait_for(lambda: sandbox.worker.worker is not None)
    sandbox.offer_functions([HostFunction(called.append, name="note")])
    is_offered.set()
    assert cell.result(PATIENCE).success
    assert "offers no such function" in answers[0]
    assert called == []


@pytest.mark.parametrize("data", [{}, {"a/json": [[]] * 100_000}], ids=["many", "nested"])
def test_outputs_are_counted_as_they_are_kept(
    homes: Making, data: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly, one byte of a taken-over worker took 20 bytes of its service's memory."""

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


def test_figures_of_a_worker_are_no_more_than_they_can_be(homes: Making) -> None:
    """A worker's figures count in the sums and the memory of the whole service."""

    def boasts(channel: Channel) -> None:
        request(channel)
        call = request(channel)
        value = CellResult(True, 0, None, 2**61, 0, 1e300, (), (), (), {})
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
    fall_asleep(sandbox)
    assert len(sandbox.worker.opened.verified) < 5_000
    metered = home.session(ExecutionPolicy(cell_timeout=PATIENCE, fuel_budget=10))
    home.script = boasts
    assert metered.execute("x").fuel_consumed == 10


def test_states_that_no_history_has_are_refused(homes: Making) -> None:
    """A state 0 that follows itself kept the timeline's panel, and so the page, busy for ever."""
    state = {"name": "", "cell": 0, "label": "", "time": 0.0, "bytes": 0, "here": False}
    states = {"states": [{**state, "id": 0, "parent": 0}]}
    sandbox = homes(says(lambda call: ended(call, states))).session()
    assert "sent what it must not" in lost(sandbox.checkpoints)


def test_a_workers_requests_are_handled_and_counted_for_each_call(homes: Making) -> None:
    def wants(channel: Channel) -> None:
        number = 0
        request(channel)
        while not isinstance(call := request(channel), messages.Close):
            for _ in range(99):
                number += 1
                names = msgspec.json.encode({"unread": "x" * 65536})  # more than strays may have
                channel.send(BrokerRequest(number, "EmptyReply", msgspec.Raw(names)))
                assert request(channel).number == number
            channel.send(ended(call))

    home = homes(wants)
    sandbox = home.session()
    for _ in range(3):
        sandbox.query(A_QUERY).result(PATIENCE)
    assert len(home.asked) == 3 * 99


def test_workers_requests_end_with_the_cell(homes: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    """Formerly, in a kernel, the end of a cell waited for a request to the network: up to 90 s."""
    ends: list[bool] = []

    def waits(request: EmptyReply, task: Task) -> EmptyReply:
        ends.append(happens(lambda: task.cancelled, PATIENCE))
        return request

    def asks(channel: Channel) -> None:
        request(channel)
        call = request(channel)
        channel.send(BrokerRequest(1, "EmptyReply", msgspec.Raw(b"{}")))
        channel.send(ended(call))
        answers_pings_alone(channel)

    home = homes(asks)
    monkeypatch.setattr(home, "handlers", lambda session: {EmptyReply: waits})
    assert home.session().execute("x").success
    wait_for(lambda: ends == [True])


def test_a_worker_that_answers_and_never_closes_its_session_is_ended(
    homes: Making, caplog: pytest.LogCaptureFixture
) -> None:
    """Formerly, closing such a session took more than two minutes."""

    def stays(channel: Channel) -> None:
        request(channel)
        channel.send(ended(request(channel)))
        answers_pings_alone(channel)

    sandbox = homes(stays).session()
    sandbox.query(A_QUERY).result(PATIENCE)
    sandbox.close()
    assert sandbox.worker.state == "asleep"
    assert "did not close its session within 1 seconds" in caplog.text


def test_a_worker_that_takes_more_memory_than_it_may_is_ended(
    homes: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Traitor, "resident_bytes", 2**50)
    result = homes(answers_pings_alone).session().execute("x")
    assert "took more memory than its session's limits allow" in error_of(result)


def test_shared_memory_of_a_worker_counts_as_its_own() -> None:
    """Formerly, code that had taken over a worker could take all memory unnoticed."""
    worker = Worker.of(socket.socket(), os.getpid(), -1)
    before = worker.resident_bytes
    with mmap.mmap(-1, 64 * MIB) as shared:
        shared.write(b"x" * 64 * MIB)
        assert worker.resident_bytes - before > 48 * MIB
    worker.channel.close()


def test_workers_that_wait_are_heard_once(homes: Making, caplog: pytest.LogCaptureFixture) -> None:
    """Formerly, 14,000 messages wrote as many warnings, and as many sentences for waiting users."""
    sandbox = homes(says(*[messages.Waiting(1.0)] * 9, ended)).session()
    assert sandbox.execute("x").success
    assert caplog.text.count("an earlier process still saves") == 1


def test_an_event_of_a_worker_with_odd_fields_is_logged(
    homes: Making, caplog: pytest.LogCaptureFixture
) -> None:
    """Formerly, a field named `self` was a fault of the service."""
    event = messages.Event("session.forked", {"self": 1, "level": 2})
    sandbox = homes(says(event, ended)).session()
    sandbox.worker.logger = SandboxLogger(logging.getLogger("heard"))
    caplog.set_level("INFO", "heard")
    assert sandbox.execute("x").success
    assert "session.forked self=1" in caplog.text


def test_the_text_of_a_workers_error_does_nothing_to_a_terminal() -> None:
    failed = messages.Failed(1, "HostFailed", "\x1b]0;owned\x07said", {"why": "\x1b[2Jwhy"})
    failed.fields["with_traceback"] = 1
    error = messages.error_of(failed)
    assert callable(error.with_traceback)
    assert "\x1b" not in f"{error}{vars(error)}"
    assert "said" in str(error)


NUMBERS, NAMES = st.integers(0, 3), st.sampled_from(["stdout", "stderr", "x"])
REPORTS = st.one_of(
    st.builds(messages.OutputShown, NUMBERS, st.builds(Stream, NAMES, st.text(max_size=9))),
    st.builds(messages.InputRequest, NUMBERS, st.text(max_size=9), st.booleans()),
    st.builds(messages.Failed, NUMBERS, st.sampled_from(["CellTimeout", "x"]), st.text(max_size=9)),
    st.builds(BrokerRequest, NUMBERS, st.just("EmptyReply"), st.just(msgspec.Raw(b"[]"))),
    st.builds(BrokerCancel, NUMBERS),
    st.builds(messages.Event, st.just("session.forked"), st.just({"level": 1, "self": 2})),
    st.builds(messages.Logged, st.integers(-9, 99), st.text(max_size=9)),
    st.just(messages.Pong()),
    st.just(messages.Terminating(1)),
    st.builds(lambda call: ended(messages.Call(call, messages.Query({}))), NUMBERS),
    st.builds(lambda call: ended(messages.Call(call, Cell(code=""))), NUMBERS),
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
