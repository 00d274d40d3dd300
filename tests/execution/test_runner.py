"""The life of a sandbox: started once, used from threads, lost, revived, closed; its jobs."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.execution.conftest import Opening
from tests.faces import PATIENCE, error_of, happens, process_of, raising, says, wait_for
from tests.listening import Page
from wasm_kernel import BaseSandbox, Sandbox, SandboxClosed, create_sandbox
from wasm_kernel.engine.clock import Clock
from wasm_kernel.errors import CompileError, HostFailed
from wasm_kernel.execution.interfaces import InputRefused
from wasm_kernel.execution.jobs import GuestJobs
from wasm_kernel.folders.locks import Resume
from wasm_kernel.guests import protocol
from wasm_kernel.result import CellResult


def test_cells_from_many_threads_run_one_at_a_time(module_sandbox: Sandbox) -> None:
    module_sandbox.execute("count = 0")
    code = "before = count; import time; time.sleep(0.005); count = before + 1"
    threads = [threading.Thread(target=module_sandbox.execute, args=(code,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert says(module_sandbox, "print(count)") == "8"


def test_output_is_heard_while_the_cell_runs(module_sandbox: Sandbox) -> None:
    class Answering(Page):
        def emit(self, output: protocol.Output) -> None:
            (module_sandbox.workspace / "heard").touch()

    code = "import os, time\nprint(1)\nwhile not os.path.exists('heard'): time.sleep(0.01)"
    result = module_sandbox.execute(code, listener=Answering(), timeout_seconds=PATIENCE)
    assert result.success, result.error


def test_the_user_time_of_a_question_does_not_count(module_sandbox: Sandbox) -> None:
    class Slow(Page):
        def ask(self, prompt: str, password: bool) -> str:
            time.sleep(0.8)
            return "late"

    asked = {"allow_stdin": True, "listener": Slow(), "timeout_seconds": 0.7}
    result = module_sandbox.execute("print(input())", **asked)
    assert result.success, result.error


def test_refused_questions_say_why_and_text_keeps_its_place(module_sandbox: Sandbox) -> None:
    class Refusing(Page):
        def ask(self, prompt: str, password: bool) -> str:
            raise InputRefused("The page is gone.")

    result = module_sandbox.execute("input()", allow_stdin=True, listener=Refusing())
    assert "The page is gone." in error_of(result)
    page = Page()
    code = "for i in range(3):\n  print(i, end='')\n  display(i)"
    module_sandbox.execute(code, listener=page)
    kinds = [type(output).__name__ for output in page.heard]
    assert kinds == ["Stream", "Display"] * 3


def test_no_query_and_no_host_puts_a_variable_into_the_guest(module_sandbox: Sandbox) -> None:
    before = says(module_sandbox, "print(sorted(k for k in globals() if k[0] != '_'))")
    module_sandbox.query({"op": "complete", "code": "impo", "cursor_pos": 4}).result(PATIENCE)
    assert says(module_sandbox, "print(sorted(k for k in globals() if k[0] != '_'))") == before
    worker = Path(f"/proc/{process_of(module_sandbox)}/environ").read_bytes()
    assert b"XDG_STATE_HOME=" in worker
    assert says(module_sandbox, "import os; print('XDG_STATE_HOME' in os.environ)") == "False"


def test_nothing_starts_before_it_is_needed_or_is_left_in_the_workspace(tmp_path: Path) -> None:
    before = threading.active_count()
    sandbox = create_sandbox(workspace=tmp_path / "app")
    assert threading.active_count() == before
    sandbox.close()
    with create_sandbox(workspace=tmp_path / "app") as sandbox:
        sandbox.execute("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()")
        assert list(sandbox.workspace.iterdir()) == []


def test_the_environment_is_there_in_states_of_an_earlier_process(opened: Opening) -> None:
    earlier = opened(env={"COLOUR": "blue", "TASTE": "sweet"})
    earlier.execute("import os; os.environ['TASTE'] = 'sour'")
    earlier.execute("1")
    earlier.close()
    later = opened(resume=Resume.ALWAYS, env={"COLOUR": "red", "TASTE": "sweet"})
    ask = "print(os.environ['COLOUR'], os.environ['TASTE'])"
    assert says(later, ask) == "red sour"
    later.undo(2)
    assert says(later, ask) == "red sour"


def test_two_sandboxes_run_at_once(tmp_path: Path) -> None:
    with (
        create_sandbox(workspace=tmp_path / "a") as one,
        create_sandbox(workspace=tmp_path / "b") as other,
    ):
        waiting = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('one')"
        long = one.submit(waiting)
        assert says(other, "print('other')") == "other"
        assert not long.done()
        (one.workspace / "go").touch()
        assert long.result(PATIENCE).stdout == "one\n"


USES: list[Callable[[Sandbox], object]] = [
    lambda s: s.execute("1"),
    lambda s: s.start(),
    lambda s: s.submit("1"),
    lambda s: s.query({"op": "is_complete", "code": "1"}),
]


@pytest.mark.parametrize("use", USES)
def test_a_closed_sandbox_says_so(tmp_path: Path, use: Callable[[Sandbox], object]) -> None:
    sandbox = create_sandbox(workspace=tmp_path / "app")
    sandbox.close()
    with pytest.raises(SandboxClosed):
        use(sandbox)


def test_closing_ends_what_runs_and_what_waits(tmp_path: Path) -> None:
    before = threading.active_count()
    sandbox = create_sandbox(workspace=tmp_path / "app")
    sandbox.start().result(600)
    futures = [sandbox.submit("while True: pass") for _ in range(3)]
    wait_for(lambda: sandbox.busy)
    sandbox.close()
    assert [future.result(PATIENCE).success for future in futures] == [False] * 3
    wait_for(lambda: threading.active_count() <= before)


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


def test_guests_are_started_once_or_after_a_failure(made: Callable[[Begin], GuestJobs]) -> None:
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


def test_interrupts_between_cells_are_for_the_next(made: Callable[[Begin], GuestJobs]) -> None:
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


ENDLESS = "begun = True\nprint('begun', flush=True)\nwhile True: pass"


async def test_wait_for_interrupts_its_cell_without_a_traceback(
    sandbox: BaseSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox.execute("kept = 5")
    with pytest.raises(TimeoutError):
        page = Page()
        cell = asyncio.wrap_future(sandbox.submit(ENDLESS, listener=page))
        assert await asyncio.to_thread(happens, lambda: page.heard)
        await asyncio.wait_for(cell, 0.05)
    assert says(sandbox, "print(kept, begun)") == "5 True"
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_a_cancelled_cell_that_waits_leaves_the_running_one_alone(sandbox: BaseSandbox) -> None:
    page = Page()
    code = (
        "import os, time\nprint('begun', flush=True)\n"
        "while not os.path.exists('go'): time.sleep(0.01)\nran = ['first']"
    )
    running = sandbox.submit(code, listener=page)
    waiting, last = sandbox.submit("ran.append('second')"), sandbox.submit("ran.append('third')")
    wait_for(lambda: page.heard)
    assert waiting.cancel()
    assert waiting.cancelled()
    (sandbox.workspace / "go").touch()
    assert running.result(PATIENCE).success
    assert last.result(PATIENCE).success
    assert says(sandbox, "print(ran)") == "['first', 'third']"


async def test_cancelled_aexecute_comes_back_when_the_cell_has_ended(sandbox: BaseSandbox) -> None:
    tidy = (
        "import time\ntry:\n  print('begun', flush=True)\n  while True: pass\n"
        "finally:\n  time.sleep(0.3); tidied = True"
    )
    page = Page()
    cell = asyncio.create_task(sandbox.aexecute(tidy, listener=page))
    assert await asyncio.to_thread(happens, lambda: page.heard)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(cell, 0.05)
    assert not sandbox.busy
    assert (await sandbox.aexecute("print(tidied)")).stdout == "True\n"


async def test_aexecute_returns_results_and_raises_as_execute_does(sandbox: BaseSandbox) -> None:
    first, second = await asyncio.gather(
        sandbox.aexecute("a = 1"), sandbox.aexecute("print(a)", timeout_seconds=20)
    )
    assert (first.success, second.stdout) == (True, "1\n")
    with pytest.raises(ValueError, match="timeout"):
        await sandbox.aexecute("1", timeout_seconds=0)


def test_a_timeout_lowers_the_limit_of_one_call(sandbox: BaseSandbox) -> None:
    result = sandbox.execute("while True: pass", timeout_seconds=0.2)
    assert (error_of(result).partition(":")[0], result.success) == ("CellTimeout", False)
    assert [output.kind for output in result.outputs] == ["error"], "none of the interrupt too"
    assert "its limit of 0.2 seconds" in error_of(result)
    assert error_of(result).endswith("Raise timeout_seconds to allow more.")
    assert sandbox.execute("import time\ntime.sleep(0.3)").success


def test_a_timeout_never_raises_the_limit(opened: Opening) -> None:
    error = error_of(opened(cell_timeout=0.3).execute("while True: pass", timeout_seconds=60))
    assert "its limit of 0.3 seconds." in error
    assert error.endswith("Raise cell_timeout to allow more.")


@pytest.mark.parametrize("code", [None, 5, b"1"])
def test_code_that_is_not_text_is_misuse(sandbox: BaseSandbox, code: Any) -> None:
    with pytest.raises(TypeError, match="str"):
        sandbox.execute(code)


PROGRAM = """
import json, resource, sys
from wasm_kernel import OutOfDescriptors, create_sandbox

soft, hard, most = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
made, said = [], ""
while len(made) < most:
    try:
        made.append(create_sandbox(workspace=f"work/{len(made)}"))
        assert made[-1].execute("x = 1").success
    except OutOfDescriptors as problem:
        said = str(problem)
        break
full = sum(not sandbox.busy and sandbox.execute("x").success for sandbox in made)
made.pop().close()
made.pop(0).close()
made.append(create_sandbox(workspace="work/again"))
assert made[-1].execute("x = 1").success
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
print(json.dumps({"full": full, "said": said, "limit": limit}))
for sandbox in made:
    sandbox.close()
"""


def run(folder: Path, *limits: int) -> dict[str, object]:
    command = [sys.executable, "-c", PROGRAM, *map(str, limits)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_lack_of_descriptors_is_said_and_closing_a_sandbox_makes_room(tmp_path: Path) -> None:
    """The soft limit is raised first."""
    found = run(tmp_path, 60, 100, 20)
    assert found["limit"] == 100
    assert 5 <= int(str(found["full"])) < 20
    assert "of the 100 file descriptors that it may have are in use" in str(found["said"])
    assert "Nothing was run or changed" in str(found["said"])


@pytest.mark.soak
def test_a_hundred_sandboxes_live_in_one_process(tmp_path: Path) -> None:
    found = run(tmp_path, 1024, 16_384, 100)
    assert (found["full"], found["said"]) == (100, "")
