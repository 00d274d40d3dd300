"""A session whose worker begins late, falls asleep, is slow or ends: no call hangs or is lost."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec import Raw

from tests.faces import PATIENCE, error_of, fall_asleep, happens, raising, wait_for
from tests.service.traitors import (
    A_QUERY,
    Making,
    Traitor,
    answers_starts_alone,
    ended,
    lost,
    request,
    says,
    serves,
)
from wasm_kernel.errors import HostFailed, LimitReached, SandboxClosed, WasmKernelError
from wasm_kernel.execution.interfaces import Cell, InputInterrupted, NoListener
from wasm_kernel.guests.protocol import Output, Stream
from wasm_kernel.linux import memory
from wasm_kernel.linux.broker import BrokerRequest, EmptyReply
from wasm_kernel.linux.channel import Channel
from wasm_kernel.linux.task import Task
from wasm_kernel.policy import MIB, ExecutionPolicy
from wasm_kernel.result import CommMessage
from wasm_kernel.service import awake, messages, session_worker, worker_line
from wasm_kernel.service.fork_server import Worker
from wasm_kernel.service.open_message import Open
from wasm_kernel.service.session_worker import SessionWorker


def test_a_worker_that_is_killed_before_it_begins_a_call_costs_none(homes: Making) -> None:
    """Formerly, a session's first cell was lost with the fork server."""

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
    fall_asleep(sandbox)
    assert "has ended, or was killed" in error_of(sandbox.execute("x"))
    home.script = is_killed_at_an_interrupt
    fall_asleep(sandbox)
    cells = [sandbox.submit("x"), sandbox.submit("y")]
    wait_for(lambda: sandbox.worker.worker is not None)
    cells[1].interrupt()  # an interrupted cell does not run after all
    assert [cell.result(PATIENCE).success for cell in cells] == [False, False]
    home.script = lambda channel: None
    fall_asleep(sandbox)
    assert "has ended, or was killed" in lost(lambda: sandbox.query(A_QUERY).result(PATIENCE))


def test_the_error_names_memory_if_the_system_has_ended_processes_for_it(
    homes: Making, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (figures := tmp_path / "vmstat").write_text("nr_free_pages 7\noom_kill 3\n")
    monkeypatch.setattr(memory, "VMSTAT", figures)

    def is_killed_for_memory(channel: Channel) -> None:
        channel.send(messages.Opened())
        request(channel)
        figures.write_text("oom_kill 4\n")

    sandbox = homes(is_killed_for_memory).session()
    assert "was killed, probably by the system" in error_of(sandbox.execute("x"))
    assert "has ended, or was killed" in error_of(sandbox.execute("x"))


def test_a_session_goes_on_after_the_system_had_no_thread_for_it(
    homes: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly, all later cells of the session waited for ever."""
    sent: list[int] = []

    def records(channel: Channel) -> None:
        while not isinstance(found := request(channel), messages.Close):
            if isinstance(found, messages.Call):
                sent.append(found.call)
                channel.send(ended(found))

    sandbox = homes(records).session()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
        with pytest.raises(HostFailed, match="ulimit -u"):
            sandbox.submit("x")
    assert sandbox.submit("y").result(PATIENCE).success
    assert sent == [2]


def test_calls_that_come_while_a_session_falls_asleep_wait_for_the_next_worker(
    homes: Making, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_line, "_CLOSE_SECONDS", PATIENCE)
    monkeypatch.setattr(worker_line, "_TELL_SECONDS", 0.1)
    told: list[str] = []
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
    started = sandbox.start(told.append)
    assert not happens(pending.done, 0.5)
    wait_for(lambda: told, "a sentence about the wait")
    slow.set()
    assert pending.result(PATIENCE) == {}
    started.result(PATIENCE)
    (sentence,) = told
    assert re.fullmatch(r"its process still saves it: \d+ s at most", sentence)
    assert caplog.text.count(f"waiting for a session: {sentence}") == 1


def test_a_reset_is_never_lost(homes: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    """Formerly, a reset was lost if the session fell asleep at this moment, or its worker died."""
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
    monkeypatch.setattr(worker_line, "_CLOSE_SECONDS", PATIENCE)
    home = homes(leaves)
    home.session().reset()
    assert told == [False, True, True]
    home.script = answers_starts_alone
    assert "The session may be as it was" in lost(home.session().reset)


def test_a_stopped_session_keeps_its_room_from_others_for_a_moment_only(
    homes: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly, other sessions waited 130 seconds for the room, one after the other."""
    for module in (worker_line, awake):
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


def test_no_caller_waits_for_a_worker_that_reads_nothing(
    homes: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly, a kernel's only thread waited for the worker, and no signal reached the kernel."""
    monkeypatch.setattr(worker_line, "_CLOSE_SECONDS", PATIENCE)
    is_over = threading.Event()

    def reads_nothing(channel: Channel) -> None:
        request(channel)
        is_over.wait(PATIENCE)

    sandbox = homes(reads_nothing).session()
    large = CommMessage("msg", "c", {"text": "x" * 3_000_000})
    sandbox.submit("x")
    wait_for(lambda: sandbox.worker.worker is not None)
    for work in (lambda: sandbox.comm(large), lambda: sandbox.worker.sleep("it is closed")):
        caller = threading.Thread(target=work, daemon=True)
        caller.start()
        caller.join(PATIENCE / 2)
        assert not caller.is_alive()
    is_over.set()


def test_an_interrupt_while_a_worker_is_long_in_coming_is_for_the_waiting_cells_alone(
    homes: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first guest of a machine is compiled for a minute."""
    home, is_there = homes(serves), threading.Event()

    def spawn(*_: object) -> Worker:
        is_there.wait(PATIENCE)
        return Traitor(serves)

    monkeypatch.setattr(home, "spawn", spawn)
    sandbox = home.session()
    started = sandbox.start()
    assert not sandbox.interrupt()
    cell = sandbox.submit("x")
    assert sandbox.interrupt()
    assert error_of(cell.result(PATIENCE / 2)).startswith("KeyboardInterrupt")
    is_there.set()
    started.result(PATIENCE)


def test_a_question_and_a_request_of_a_worker_that_has_ended_end(
    homes: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, cancelled = threading.Event(), threading.Event()

    def asks_and_ends(channel: Channel) -> None:
        request(channel)
        call = request(channel).call
        channel.send(BrokerRequest(1, "EmptyReply", Raw(b"{}")))
        begun.wait(PATIENCE)
        channel.send(messages.InputRequest(call, 1, "name?", False))

    def handle(asked: EmptyReply, task: Task) -> EmptyReply:
        begun.set()
        wait_for(lambda: task.cancelled)
        cancelled.set()
        return asked

    class Patient(NoListener):
        def ask(self, prompt: str, password: bool) -> str:
            wait_for(lambda: sandbox.interrupted)
            raise InputInterrupted

    home = homes(asks_and_ends)
    monkeypatch.setattr(home, "handlers", lambda session: {EmptyReply: handle})
    sandbox = home.session()
    cell = sandbox.submit("x", allow_stdin=True, listener=Patient())
    assert error_of(cell.result(PATIENCE)).startswith("WorkerLost")
    assert cancelled.wait(PATIENCE)


def test_a_session_that_needs_more_than_all_memory_is_refused_at_once(homes: Making) -> None:
    large = homes(serves, 1200 * MIB).session(ExecutionPolicy(memory_bytes=2048 * MIB))
    with pytest.raises(LimitReached, match="lower the policy's"):
        large.start().result(awake.ROOM_SECONDS / 2)


def test_a_listener_may_close_its_own_session(homes: Making) -> None:
    """Formerly, the session's thread waited for itself."""
    closed = threading.Event()

    class Closes(NoListener):
        def emit(self, output: Output) -> None:
            sandbox.close()
            closed.set()

    home = homes(says(lambda call: messages.OutputShown(call.call, Stream("stdout", "x"))))
    sandbox = home.session()
    cell = sandbox.submit("x", listener=Closes())
    assert closed.wait(PATIENCE)
    with pytest.raises(SandboxClosed):
        cell.result(PATIENCE)


def test_a_service_that_fails_itself_ends_the_call_in_words(
    homes: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = homes(serves)

    fails = raising(MemoryError())
    with monkeypatch.context() as patch:
        patch.setattr(home, "spawn", fails)
        with pytest.raises(WasmKernelError, match="no memory is left"):
            home.session().start().result(PATIENCE)
        patch.setattr(home, "spawn", lambda *_: Traitor(serves))
        patch.setattr(SessionWorker, "_ended", fails)
        sandbox = home.session()
        assert "as its service failed" in lost(lambda: sandbox.start().result(PATIENCE))


def test_options_change_between_two_calls_without_a_wait(homes: Making) -> None:
    """Formerly, the first call after a change waited in its caller for the running cell."""
    told: list[tuple[bool, list[str]]] = []
    may_end = threading.Event()

    def serves_slowly(channel: Channel) -> None:
        opened = request(channel)
        assert isinstance(opened, Open)
        served: list[str] = []
        told.append((opened.pip, served))
        waiting: list[messages.Call] = []
        while not isinstance(found := request(channel), messages.Close):
            if isinstance(found, messages.Call) and isinstance(found.request, Cell):
                served.append(found.request.code)
                waiting.append(found)
            while waiting and may_end.is_set():
                channel.send(ended(waiting.pop(0)))
        channel.send(messages.Closed({}))

    sandbox = homes(serves_slowly).session()
    first = sandbox.submit("a")
    wait_for(lambda: told == [(False, ["a"])])
    second = sandbox.submit("b")
    sandbox.offer_pip()
    held = [sandbox.submit(code) for code in "cd"]
    sandbox.offer_functions([len_of])
    last = sandbox.submit("e")
    assert not happens(second.done, 0.2)
    assert held[0].interrupt()
    assert held[0].result(PATIENCE).success is False, "it never ran"
    may_end.set()
    sandbox.interrupt()  # the worker hears it, and ends its cells
    assert all(cell.result(PATIENCE).success for cell in (first, second, held[1], last))
    assert told == [(False, ["a", "b"]), (True, ["d"]), (True, ["e"])]
    sandbox.offer_pip()
    assert sandbox.execute("f").success
    assert told[2:] == [(True, ["e", "f"])], "nothing has changed, so its worker goes on"


def len_of(text: str) -> int:
    """Returns a text's length."""
    return len(text)


def test_no_worker_is_lost_because_its_owner_was_stopped(
    homes: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that goes on after Ctrl-Z finds its cell's worker neither silent nor overdue."""
    slept = 0.0
    clock = SimpleNamespace(time=time.time, monotonic=lambda: time.monotonic() + slept)
    monkeypatch.setattr(session_worker, "time", clock)
    may_end = threading.Event()

    def is_slow(channel: Channel) -> None:
        request(channel)
        call = request(channel)
        assert may_end.wait(PATIENCE)
        channel.send(ended(call))
        request(channel)

    cell = homes(is_slow).session().submit("x")
    for _ in range(5):
        assert not happens(cell.done, 0.1)
        slept += 10 * PATIENCE
    may_end.set()
    assert cell.result(PATIENCE).success
