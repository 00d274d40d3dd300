"""A session's variables over traps, travels, restarts and resumptions, in the real guest."""

from __future__ import annotations

import errno
import logging
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.execution.story import Story
from tests.faces import error_of, open_files, process_of, says, wait_for
from tests.faults import Does, Faults, faulty
from tests.private import kept_sandbox, opening, private_of
from tests.sampled import lasting, sampled
from tests.stored import commits_in, content_of, flip, names_in, rewritten, state_of
from wasm_kernel import Sandbox, SandboxLogger
from wasm_kernel.errors import Door, HistoryError, TravelError
from wasm_kernel.folders.locks import Holder, Resume, note_evicted
from wasm_kernel.linux.folders import Folder
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.state.index import Head
from wasm_kernel.state.pages import Compare, WriteProtect

FAULTS = (
    "fcntl:flock",
    "wasm_kernel.linux.memory:read_ranges",
    "wasm_kernel.state.commits:write_content",
    "wasm_kernel.state.file_journal:FileJournal.append",
    "wasm_kernel.state.index:Index.append",
    "wasm_kernel.state.index:Index.rewrite",
    "wasm_kernel.state.session_state:SessionState.catch_up",
    "wasm_kernel.state.stored:StateFolder.read",
)
VALUES = {"execution__jobs__JOIN_SECONDS": 0.05}

Opening = Callable[..., Sandbox]
TRAP = "import os; os._exit(3)"


@pytest.fixture
def opened(faults: Faults, tmp_path: Path, ending: ExitStack) -> Opening:
    """Opens sandboxes on one workspace."""
    return opening(ending, tmp_path, resume=Resume.ALWAYS)


@pytest.fixture
def sandbox(opened: Opening) -> Sandbox:
    return opened()


def stories(folder: Path, seed: int, steps: int) -> None:
    (folder / "app").mkdir(parents=True)
    story = Story(folder / "app", seed)
    try:
        for _ in range(steps):
            story.step()
        story.check_all()
    finally:
        story.close()


@pytest.mark.parametrize("seed", sampled({str(seed): seed for seed in range(2)}, 2))
def test_random_programs_agree_with_a_model(tmp_path: Path, seed: int) -> None:
    stories(tmp_path, seed, 25)


def test_tracking_agrees_with_the_model(tmp_path: Path) -> None:
    with faulty(state__pages__best=f"{Compare.__module__}:{Compare.__name__}"):
        stories(tmp_path, 99, 6)


@pytest.mark.soak
@pytest.mark.parametrize("kind", [WriteProtect, Compare], ids=lambda kind: str(kind.name))
def test_thousands_of_steps_agree_with_the_model(tmp_path: Path, kind: type) -> None:
    with faulty(state__pages__best=f"{kind.__module__}:{kind.__name__}"):
        for number in lasting(2):
            stories(tmp_path / str(number), 100 + number, 200)


def test_a_servers_session_runs_without_locks(faults: Faults, tmp_path: Path) -> None:
    """The session is not taken for one that another server has awake."""
    policy = ExecutionPolicy().at(Door.AGENT)
    with (
        faults["flock"].on(errno.ENOLCK),
        kept_sandbox(workspace=tmp_path / "app", policy=policy, resume="always") as sandbox,
    ):
        result = sandbox.execute("print(1)")
    assert (result.stdout, result.error) == ("1\n", None)
    assert "variables begin fresh" in result.stderr


def test_after_a_trap_everything_is_as_before_the_cell(sandbox: Sandbox) -> None:
    says(sandbox, "x = [1]; y = x")
    before = says(sandbox, "print(id(x), x is y, len(In))").split()
    result = sandbox.execute(f"x.append(2); del y; {TRAP}")
    assert "variables are as they were before this cell" in error_of(result)
    after = says(sandbox, "print(id(x), x is y, len(In))").split()
    assert (after[0], after[1], int(after[2])) == (before[0], "True", int(before[2]) + 2)


def test_the_clock_does_not_go_back(opened: Opening) -> None:
    """The clock goes on after a trap, and in another process."""
    sandbox = opened()
    says(sandbox, "import time; time.sleep(0.2); t = time.monotonic(); p = time.perf_counter()")
    sandbox.execute(TRAP)
    assert says(sandbox, "print(time.monotonic() >= t, time.perf_counter() >= p)") == "True True"
    sandbox.close()
    again = opened()
    assert says(again, "print(time.monotonic() >= t, time.perf_counter() >= p)") == "True True"


@pytest.mark.parametrize("lost", [TRAP, "%undo", "x = 2\n%undo"])
def test_a_number_is_used_once_whatever_became_of_its_cell(opened: Opening, lost: str) -> None:
    sandbox = opened()
    numbers = [sandbox.execute(code).reply["execution_count"] for code in ("x = 1", lost)]
    sandbox.close()
    again = opened()
    numbers += [again.execute(code).reply["execution_count"] for code in (lost, "x = 3", "x")]
    assert numbers == [1, 2, 3, 4, 5]
    assert "no kept cell '2'" in str(again.execute("%restore 2").error)
    assert says(again, "print(In[3] != '')") == "True"
    again.restore(4)
    assert says(again, "print(x)") == "3"


def test_a_state_that_a_cell_asked_for_is_not_folded_away_during_the_cell(opened: Opening) -> None:
    sandbox = opened(history_cells=1)
    for _ in range(20):  # in a pause, the state may be folded before a cell asks for it
        first, *_ = [sandbox.execute(f"x = {value}") for value in range(3)]
        number = first.reply["execution_count"]
        if sandbox.execute(f"%restore {number}\nimport time; time.sleep(0.5)").success:
            break
    assert says(sandbox, "print(x)") == "0"


def test_names_outlive_variables(opened: Opening) -> None:
    """A sandbox that begins without the last one's variables still has its named states."""
    first = opened(resume=Resume.NEVER)
    for value in range(5):
        says(first, f"open('/app/f', 'w').write('{value}'); x = {value}")
        if value == 2:
            first.checkpoint("clean")
    first.close()

    second = opened(resume=Resume.NEVER)
    result = second.execute("'x' in globals()")
    assert (result.reply["execution_count"], result.stderr) == (1, "")
    listed = [(c.name, c.cell) for c in second.checkpoints()]
    assert ("clean", 0) in listed
    shown = second.execute("%checkpoints").outputs[0]
    assert "an earlier run" in str(shown)
    assert "no kept cell '3'" in str(second.execute("%restore 3").error)  # only of this run
    second.restore("clean", files=True)
    assert says(second, "print(x, open('/app/f').read())") == "2 2"
    second.close(discard_variables=True)

    third = opened(resume=Resume.ALWAYS)
    assert third.execute("x").error
    third.restore("clean")
    assert says(third, "print(x)") == "2"
    third.close()
    assert says(opened(resume=Resume.ALWAYS), "print(x)") == "2"


def test_names_that_were_removed_for_room_are_told_of(
    opened: Opening, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = opened(resume=Resume.NEVER)
    says(first, "x = 1; print(x)")
    first.checkpoint("clean")
    first.close()
    shutil.rmtree(state_of(tmp_path / "app"))
    with Folder.open(private_of(tmp_path / "app")) as private:
        note_evicted(private, "room")
    second = opened(resume=Resume.NEVER)
    second.reconfigure(None, SandboxLogger(logging.getLogger("told")))
    assert second.execute("1").stderr == ""
    assert "the saved states were removed" in caplog.text


def test_states_without_a_name_do_not_outlive_variables(opened: Opening, tmp_path: Path) -> None:
    first = opened(resume=Resume.NEVER)
    says(first, "x = 'kept'")
    first.checkpoint("clean")
    says(first, "x = 'marked' * 1_000_000")
    first.close()
    opened(resume=Resume.NEVER).start().result()
    state = state_of(tmp_path / "app")
    held = b"".join(file.read_bytes() for file in state.rglob("*") if file.is_file())
    assert (b"kept" in held, b"markedmarked" in held) == (True, False)


def test_closing_waits_as_long_as_the_disk_takes_to_write_what_it_is_behind_with(
    opened: Opening, faults: Faults
) -> None:
    """Closing waits longer for the disk than for a guest that does not stop (0.05 s here)."""
    first = opened()
    with faults["write_content"].held():
        for value in range(20):
            first.execute(f"x = {value}")
        closing = threading.Thread(target=first.close)
        closing.start()
        closing.join(0.3)
        assert closing.is_alive()
    closing.join()
    assert says(opened(), "print(x)") == "19"


def test_a_state_that_does_not_fit_is_told_and_kept_later(opened: Opening, faults: Faults) -> None:
    sandbox = opened()
    sandbox.execute("x = bytearray(10**6); y = 1")
    sandbox.checkpoints()  # waits for the commit, which comes after the result
    with faults["read_ranges"].on(Does.RAISE_MEMORY_ERROR):
        assert sandbox.execute("x[9**6] = 2").stderr == ""
        sandbox.checkpoints()
    assert "In[2] (x[9**6] = 2) could not be kept" in sandbox.execute("y = 2").stderr
    assert sandbox.execute("pass").stderr == ""
    sandbox.execute(TRAP)
    assert says(sandbox, "print(x[9**6], y)") == "2 2"


@pytest.mark.parametrize("end", [TRAP, "while True:\n try:\n  while True: pass\n except: pass"])
def test_a_cell_whose_state_was_not_kept_is_not_said_to_be_kept(
    opened: Opening, faults: Faults, end: str
) -> None:
    sandbox = opened(grace_seconds=0.1)
    sandbox.execute("x = 1")
    sandbox.checkpoints()  # waits for the commit, which comes after the result
    with faults["read_ranges"].on(Does.RAISE_MEMORY_ERROR):
        sandbox.execute("x = 2")
        error = sandbox.execute(end, timeout_seconds=0.5).error
    assert error is not None and "as they were before this cell" not in error.evalue
    told = sandbox.execute("print(x)")
    assert told.stdout == "1\n"
    assert "the variables are as they were after In[1]" in told.stderr


def test_kept_states_are_saved_if_the_last_is_not(opened: Opening, faults: Faults) -> None:
    first = opened()
    first.execute("x = 1")
    first.checkpoints()  # waits for the commit, which comes after the result
    with faults["SessionState.catch_up"].on(Does.RAISE_RUNTIME_ERROR):
        first.close()
    result = opened().execute("print(x)")
    assert (result.stdout, "after a break" in result.stderr) == ("1\n", False)


def test_a_last_state_that_is_not_kept_is_logged_and_told_to_the_next_user(
    opened: Opening, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    first = opened()
    first.execute("x = 1")
    first.checkpoints()  # waits for the commit, which comes after the result
    with faults["read_ranges"].on(Does.RAISE_MEMORY_ERROR):
        first.execute("x = 2")
        with pytest.raises(HistoryError, match="given no name"):
            first.checkpoint("two")
        first.close()
    assert "Those after In[1]" in caplog.text
    second = opened()
    result = second.execute("print(x); x = 3")
    assert (result.stdout, "after a break" in result.stderr) == ("1\n", True)
    with faults["read_ranges"].on(Does.RAISE_MEMORY_ERROR):
        second.execute("x = 4")
        second.checkpoints()
    caplog.clear()
    second.close()  # there is room again
    assert (caplog.text, says(opened(), "print(x)")) == ("", "4")


def test_a_name_that_is_not_on_disk_in_time_is_no_success(tmp_path: Path) -> None:
    with (
        faulty(
            "wasm_kernel.state.commits:write_content", state__session_state___SAVE_SECONDS=0.05
        ) as faults,
        kept_sandbox(workspace=tmp_path) as sandbox,
    ):
        with faults["write_content"].held():
            assert "not on disk yet: one" in sandbox.execute("x = 1\n%checkpoint one").stderr
            with pytest.raises(HistoryError, match="not on disk yet: two"):
                sandbox.checkpoint("two")
        wait_for(lambda: "two" in names_in(state_of(tmp_path)))
        sandbox.execute("x = 2")
        sandbox.restore("one")
        assert says(sandbox, "print(x)") == "1"


def test_a_result_does_not_wait_for_its_commit(opened: Opening, faults: Faults) -> None:
    sandbox = opened()
    sandbox.execute("x = 1")
    sandbox.checkpoints()
    with faults["read_ranges"].held():
        assert sandbox.execute("x = 2").success
    sandbox.undo()
    assert says(sandbox, "print(x)") == "1"


def test_a_history_that_can_not_be_begun_is_closed(opened: Opening, faults: Faults) -> None:
    sandbox = opened()
    with faults["Index.rewrite"].on(errno.ENOSPC):
        assert "No space left on device" in sandbox.execute("x = 1").stderr
    state = str(private_of(sandbox.workspace) / "state")
    assert [path for path in open_files(process_of(sandbox)) if path.startswith(state)] == []
    assert says(sandbox, "print(x)") == "1"


@pytest.mark.parametrize("place", ["Index", "FileJournal"])
def test_an_unrecorded_end_counts_as_a_crash(opened: Opening, faults: Faults, place: str) -> None:
    sandbox = opened()
    sandbox.execute("x = 1; open('/app/file', 'w').write('old')")
    sandbox.execute("open('/app/file', 'w').write('new')")
    wait_for(lambda: 3 in commits_in(state_of(sandbox.workspace)))
    with faults[f"{place}.append"].on(errno.ENOSPC):
        sandbox.close()
    again = opened(resume=Resume.CRASH)
    told = again.execute("print(x)")
    assert told.stdout == "1\n"
    assert "damaged" not in told.stderr
    again.undo(2, files=True)
    assert (again.workspace / "file").read_text() == "old"


def test_a_failed_opening_leaves_the_crash_to_the_next(opened: Opening, faults: Faults) -> None:
    sandbox = opened()
    sandbox.execute("x = 1")
    private = private_of(sandbox.workspace)
    sandbox.close()
    with Folder.open(private) as folder:
        Holder(alive=True).write(folder)  # as after a crash
    with faults["StateFolder.read"].on(errno.EMFILE):
        sandbox = opened(resume=Resume.CRASH)
        assert "Too many open files" in sandbox.execute("x = 2").stderr
        sandbox.close()
    assert says(opened(resume=Resume.CRASH), "print(x)") == "1"


def test_many_threads_may_travel(sandbox: Sandbox) -> None:
    for value in range(6):
        sandbox.execute(f"x = {value}")
    failed: list[Exception] = []

    def travel() -> None:
        for _ in range(2):
            try:
                sandbox.undo(1)
                sandbox.redo()
            except TravelError:
                pass
            except Exception as problem:
                failed.append(problem)

    threads = [threading.Thread(target=travel) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert says(sandbox, "print(x in range(6))") == "True"


def test_a_commit_damaged_under_a_session_is_told_once_and_left(sandbox: Sandbox) -> None:
    for value in range(1, 6):
        sandbox.execute(f"x = {value}")
    state = state_of(sandbox.workspace)
    wait_for(lambda: 5 in commits_in(state))
    flip(content_of(state, 4))
    assert sandbox.execute(TRAP).error is not None
    told = sandbox.execute("print(x)")
    assert told.stdout == "2\n"
    assert told.stderr.count("can't be read any more") == 1
    assert "In[3] (x = 3)" in told.stderr
    sandbox.execute("x = 'on'")
    assert sandbox.undo().cells == ("x = 'on'",)


def test_a_cap_that_leaves_few_cells_to_undo_is_told_once(opened: Opening) -> None:
    sandbox = opened(history_bytes=64 << 20)
    told = [sandbox.execute(f"b = bytes([{number}]) * (12 << 20)").stderr for number in range(6)]

    def heard() -> bool:
        told.append(sandbox.execute("%checkpoints").stderr)
        return "history_bytes" in "".join(told)

    wait_for(heard)
    assert heard()
    assert "".join(told).count("take more room on disk than is allowed") == 1
    assert "Raise history_bytes to undo more." in "".join(told)
    assert "can be undone" in "".join(told)
    assert says(sandbox, "print(len(b), b[0])") == f"{12 << 20} 5"


def test_a_session_that_was_left_without_a_state_begins_fresh_and_says_so(opened: Opening) -> None:
    sandbox = opened()
    sandbox.execute("x = 1")
    workspace = sandbox.workspace
    sandbox.close()
    rewritten(
        state_of(workspace), lambda record: Head(0, 9, ()) if isinstance(record, Head) else record
    )
    again = opened()
    told = again.execute("print('x' in globals())")
    assert told.stdout == "False\n"
    assert "begin fresh" in told.stderr
    again.restore(1)
    assert says(again, "print(x)") == "1"
