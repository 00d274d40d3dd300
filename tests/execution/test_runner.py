"""The life of a sandbox with the real guest: started, used from threads, lost, revived, closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.execution.conftest import Opening
from tests.faces import PATIENCE, error_of, process_of, says, wait_for
from tests.listening import Page
from wasm_kernel import Sandbox, SandboxClosed, create_sandbox
from wasm_kernel.execution.interfaces import InputRefused
from wasm_kernel.folders.locks import Resume
from wasm_kernel.guests import protocol


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


def test_a_question_that_is_refused_says_why(module_sandbox: Sandbox) -> None:
    class Refusing(Page):
        def ask(self, prompt: str, password: bool) -> str:
            raise InputRefused("The page is gone.")

    result = module_sandbox.execute("input()", allow_stdin=True, listener=Refusing())
    assert "The page is gone." in error_of(result)


def test_text_that_was_printed_before_an_output_comes_before_it(module_sandbox: Sandbox) -> None:
    page = Page()
    code = "for i in range(3):\n  print(i, end='')\n  display(i)"
    module_sandbox.execute(code, listener=page)
    kinds = [type(output).__name__ for output in page.heard]
    assert kinds == ["Stream", "Display"] * 3


def test_a_query_leaves_no_variable(module_sandbox: Sandbox) -> None:
    before = says(module_sandbox, "print(sorted(k for k in globals() if k[0] != '_'))")
    module_sandbox.query({"op": "complete", "code": "impo", "cursor_pos": 4}).result(PATIENCE)
    assert says(module_sandbox, "print(sorted(k for k in globals() if k[0] != '_'))") == before


def test_nothing_starts_before_it_is_needed(tmp_path: Path) -> None:
    before = threading.active_count()
    sandbox = create_sandbox(workspace=tmp_path / "app")
    assert threading.active_count() == before
    sandbox.close()


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


def test_no_variable_of_the_host_reaches_the_guest(module_sandbox: Sandbox) -> None:
    worker = Path(f"/proc/{process_of(module_sandbox)}/environ").read_bytes()
    assert b"XDG_STATE_HOME=" in worker
    assert says(module_sandbox, "import os; print('XDG_STATE_HOME' in os.environ)") == "False"


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


def test_the_workspace_holds_nothing_but_the_hosts_folder(tmp_path: Path) -> None:
    with create_sandbox(workspace=tmp_path / "app") as sandbox:
        sandbox.execute("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()")
        assert list(sandbox.workspace.iterdir()) == []
