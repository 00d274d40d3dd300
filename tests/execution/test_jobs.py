"""The jobs of a guest thread: it starts once, runs them one by one, refuses them when closed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.faces import raising
from wasm_kernel.engine.clock import Clock
from wasm_kernel.errors import CompileError, HostFailed
from wasm_kernel.execution.jobs import GuestJobs
from wasm_kernel.result import CellResult

Begin = Callable[[], None]
SECONDS = 10.0

UNRUN = CellResult(True, 0, None, None, 0, 0.0, (), (), (), {})


@pytest.fixture
def made(ending: ExitStack) -> Callable[[Begin], GuestJobs]:
    """Makes jobs whose thread ends with the test."""

    def make(begin: Begin = lambda: None) -> GuestJobs:
        jobs = GuestJobs("guest of a test", Clock(), begin)
        ending.callback(jobs.end, lambda: None, lambda: False)
        ending.callback(jobs.refuse_further, "over")
        return jobs

    return make


def test_the_guest_is_started_once_and_again_after_a_failure(
    made: Callable[[Begin], GuestJobs],
) -> None:
    heard: list[str] = []

    def begin() -> None:
        heard.append(f"start {len(heard)}")
        if len(heard) == 1:
            raise CompileError("no")

    jobs = made(begin)
    with pytest.raises(CompileError):
        jobs.start().result(SECONDS)
    jobs.start().result(SECONDS)
    assert jobs.start().result(SECONDS) is None
    assert heard == ["start 0", "start 1"]


@pytest.mark.parametrize("is_in_guest", [False, True])
def test_the_end_waits_for_the_host_and_not_for_a_guest_that_does_not_stop(
    made: Callable[[Begin], GuestJobs], monkeypatch: pytest.MonkeyPatch, is_in_guest: bool
) -> None:
    monkeypatch.setattr("wasm_kernel.execution.jobs.JOIN_SECONDS", 0.01)
    jobs, is_asked, ended = made(lambda: None), threading.Event(), threading.Event()
    jobs.start().result(SECONDS)
    gate = jobs.submit(lambda: is_asked.wait(SECONDS))

    def asked() -> bool:
        if is_in_guest:
            return True
        is_asked.set()
        return False

    jobs.end(ended.set, asked)
    assert ended.is_set() is not is_in_guest
    is_asked.set()
    assert gate.result(SECONDS)


def test_the_end_does_not_wait_for_a_start(
    made: Callable[[Begin], GuestJobs], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first start compiles for a minute, and there is nothing to save yet."""
    monkeypatch.setattr("wasm_kernel.execution.jobs.JOIN_SECONDS", 0.01)
    go_on = threading.Event()

    def begin() -> None:
        go_on.wait(SECONDS)

    jobs = made(begin)
    started = jobs.start()
    jobs.end(lambda: None, lambda: False)
    assert not started.done()
    go_on.set()
    started.result(SECONDS)


def test_only_cells_that_wait_are_cancelled(made: Callable[[Begin], GuestJobs]) -> None:
    jobs, gate, begun = made(lambda: None), threading.Event(), threading.Event()
    jobs.start().result(SECONDS)

    def run() -> CellResult:
        begun.set()
        gate.wait(SECONDS)
        return UNRUN

    running = jobs.queue(run)
    assert begun.wait(SECONDS)
    waiting, other = jobs.queue(lambda: UNRUN), jobs.submit(lambda: 2)
    assert jobs.cancel_cells()
    gate.set()
    assert (running.result(SECONDS), other.result(SECONDS)) == (UNRUN, 2)
    assert waiting.cancelled()
    assert not jobs.cancel_cells()


def test_an_interrupt_between_two_cells_is_for_the_first_that_waits(
    made: Callable[[Begin], GuestJobs],
) -> None:
    """The interrupt may come while the effects of the last cell are kept."""
    jobs, gate = made(lambda: None), threading.Event()
    jobs.start().result(SECONDS)
    jobs.submit(lambda: gate.wait(SECONDS))
    first, second = (jobs.queue(lambda: UNRUN) for _ in range(2))
    assert jobs.interrupt()
    gate.set()
    second.result(SECONDS)
    assert first.cancelled()
    assert not jobs.interrupt()


@pytest.mark.parametrize("problem", [OSError(24, "Too many open files", "/home/a"), MemoryError()])
def test_errors_of_the_system_are_said_in_words_without_paths(
    made: Callable[[Begin], GuestJobs], problem: Exception
) -> None:
    jobs = made(lambda: None)
    jobs.start().result(SECONDS)
    with pytest.raises(HostFailed) as caught:
        jobs.submit(raising(problem)).result(SECONDS)
    assert "/home" not in str(caught.value)
