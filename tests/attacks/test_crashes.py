"""ATTACKS 5, 6, 28: the interpreter may die; the session and the process do not."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

import pytest

from tests.attacks.conftest import Making, Victim
from tests.faces import error_of, happens, open_files
from tests.peak import MB
from tests.private import private_of
from wasm_kernel import HostFailed, create_sandbox

DEEP = """
import sys
sys.setrecursionlimit(10**9)
def deeper(): deeper()
deeper()
"""
NESTED = "t = ()\nfor _ in range(2_000_000): t = (t,)\ndel t"


def test_case_05_recursion_of_every_depth_ends_with_an_error_or_is_survived(victim: Victim) -> None:
    victim.says("mine = 5")
    assert victim.fails(DEEP) in ("RecursionError", "StackExhausted", "MemoryError")
    assert victim.says("print(mine)") == "5"
    victim.says("import sys; sys.setrecursionlimit(3000)")
    victim.says("mine = 5")
    for code in DEPTHS:
        victim.run("import sys; sys.setrecursionlimit(10**9)\n" + code)
        assert victim.says("print(mine)") == "5", code
    victim.says("import sys; sys.setrecursionlimit(3000)")


DEPTHS = [
    "class A:\n  def __getattr__(self, n): return getattr(self, n + 'x')\nA().x",
    "eval('(' * 100_000 + ')' * 100_000)",
    "import json; json.loads('[' * 200_000)",
    NESTED,
]


def test_a_deep_recursion_fails_no_later_cell(tmp_path: Path) -> None:
    """Frames that a kept error holds are freed later: by the next error, or by the collector.

    Freeing some 44,000 of them at once overflows the guest's stack.
    """
    with create_sandbox(workspace=tmp_path / "app") as sandbox:
        dive = "import sys; sys.setrecursionlimit(44_000)\ndef f(n): f(n + 1)\nf(0)"
        assert sandbox.execute(dive).error is not None
        errors = [sandbox.execute("1 / 0").error for _ in range(2)]
        assert [each and each.ename for each in errors] == ["ZeroDivisionError"] * 2


def test_case_06_exit_of_the_process_is_one_clear_error_and_files_are_kept(victim: Victim) -> None:
    victim.says("mine = 6")
    result = victim.run("open('kept.txt', 'w').write('x'); import os; os._exit(3)")
    assert (error_of(result).partition(":")[0], result.exit_code) == ("GuestExited", 3)
    assert "status 3" in error_of(result)
    assert [output.kind for output in result.outputs].count("error") <= 1
    assert result.reply["status"] == "error"
    assert victim.says("print(mine)") == "6"
    assert (victim.app / "kept.txt").exists()


ENDS = [
    "import os; os.abort()",
    "import faulthandler; faulthandler._sigsegv()",
    "import faulthandler; faulthandler._stack_overflow()",
    "raise SystemExit",
    "import ctypes; ctypes.string_at(0)",
    "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "import _testcapi; _testcapi.crash_no_current_thread()",
]


def test_case_06_every_other_end_is_survived_and_open_files_do_not_pile_up(victim: Victim) -> None:
    victim.says("mine = 6")
    for code in ENDS:
        victim.run(code)
        assert victim.says("print(mine)") == "6", code
    victim.run("import os; os._exit(1)")
    mine, before = len(open_files()), len(open_files(victim.process))
    for _ in range(3):
        victim.run("files = [open(f'f{i}', 'w') for i in range(20)]; import os; os._exit(1)")
    # commits that are just folded are open as well
    assert happens(lambda: len(open_files(victim.process)) <= before + 5)
    assert len(open_files()) <= mine + 5


def test_case_28_a_list_too_large_is_a_memory_error(victim: Victim) -> None:
    victim.says("mine = 28")
    assert victim.fails("[0] * 10**9") == "MemoryError"
    assert victim.says("print(mine)") == "28"


def test_case_28_a_cell_that_eats_the_memory_is_undone(victim_of: Making) -> None:
    small = victim_of(memory_bytes=512 << 20)
    small.says("mine = 28")
    peak = small.peak()
    error = small.run("b = [0]\nwhile True: b += b").error
    grown = peak.grown
    assert error is not None and error.ename == "OutOfMemory"
    assert "The variables are as they were before this cell" in error.evalue
    assert "memory_bytes" in error.evalue
    assert "In[" in "".join(error.traceback[:-1]), "it says in which line"
    assert grown < (2 * 512 + 200) * MB, "the worker holds the guest's memory and one commit of it"
    assert small.says("room = bytes(200 << 20); print(mine)") == "28"


def test_error_of_memory_that_a_cell_raises_or_asks_for_undoes_nothing(victim_of: Making) -> None:
    small = victim_of(memory_bytes=512 << 20)
    assert small.fails("mine = 1; raise MemoryError('mine')") == "MemoryError"
    assert small.fails("mine += 1; raise MemoryError") == "MemoryError"
    assert small.fails("mine += 1; much = [0] * 10**8 * 3") == "MemoryError"
    assert small.says("print(mine)") == "3"
    words = small.run("bytearray(3 * 10**9)").error
    assert words is not None and "32 bits" in "".join(words.traceback)


def test_memory_that_an_earlier_cell_has_filled_is_named(victim_of: Making) -> None:
    small = victim_of(memory_bytes=512 << 20)
    code = "z = []\ntry:\n    while True: z.append(bytes(10**7))\nexcept MemoryError: print(len(z))"
    count = int(small.says(code))
    error = small.run("y = bytes(2 * 10**7)").error
    assert error is not None and error.ename == "MemoryError"
    assert f"z ({round(count * 10**7 / 2**20)} MiB)" in error.evalue
    assert int(small.says("print(len(z)); del z; y = bytes(2 * 10**7)")) == count


def test_f20_a_removed_workspace_costs_no_variable_and_is_told(fresh_victim_of: Making) -> None:
    """Formerly, calls after a crash raised a bare WasmtimeError, and the variables were lost."""
    victim = fresh_victim_of()
    victim.says("x = 1")
    shutil.rmtree(victim.app)
    told = victim.run("x = 2").stderr + victim.run("x = 3").stderr  # the commit says it
    assert told.count("removed the workspace folder") == 1
    assert "variables are kept" in told
    assert victim.fails("open('f', 'w')") == "FileNotFoundError"
    assert victim.fails("import os; os._exit(1)") == "GuestExited"
    assert victim.says("print(x)") == "3"
    victim.sandbox.undo(3)
    victim.sandbox.rollback(files=True)
    assert victim.says("print(x)") == "2"
    assert victim.says("%restore 1").startswith("Restored")
    assert victim.says("print(x)") == "1"


def test_removed_private_folder_costs_states_but_no_later_cell(fresh_victim_of: Making) -> None:
    """Formerly, no cell ran any more after an undo or the loss of the guest."""
    victim = fresh_victim_of()
    victim.says("x = 1")
    shutil.rmtree(private_of(victim.app))
    told = victim.run("x = 2").stderr
    victim.sandbox.checkpoints()  # waits for the commit, which comes after the result
    told += victim.run("x = 3").stderr
    assert "can't be saved to disk" in told
    victim.sandbox.undo()
    for exits in ("", "import os; os._exit(1)"):
        victim.run(exits)
        assert victim.says("y = 1; print(y)") == "1"


@pytest.mark.parametrize(
    ("limit", "low", "said"),
    [(resource.RLIMIT_NOFILE, 3, "open files"), (resource.RLIMIT_AS, 1 << 30, "ulimit -v")],
)
def test_f20_a_host_without_room_for_a_new_guest_says_so_and_keeps_the_variables(
    fresh_victim_of: Making, limit: int, low: int, said: str
) -> None:
    victim = fresh_victim_of()
    victim.says("x = 1")
    victim.sandbox.checkpoints()  # waits for the commit, which comes after the result
    process, before = victim.process, resource.prlimit(victim.process, limit)
    resource.prlimit(process, limit, (low, before[1]))
    for job in (
        lambda: victim.run("import os; os._exit(1)"),
        lambda: victim.run("print(x)"),
        lambda: victim.run("%undo"),
        victim.sandbox.rollback,
        victim.sandbox.undo,
        lambda: victim.sandbox.restore(1),
    ):
        with pytest.raises(HostFailed, match="The variables are kept") as told:
            job()
        assert said in str(told.value)
        assert str(victim.app.parent) not in str(told.value)
        assert "internal error" not in str(told.value)  # any other error of the worker would say so
    resource.prlimit(process, limit, before)
    assert victim.says("print(x)") == "1"
    assert victim.process == process


def test_case_05_fuel_that_runs_out_names_a_setting(warm_metered: None, victim_of: Making) -> None:
    metered = victim_of(fuel_budget=10**9)
    metered.says("mine = 1")
    result = metered.run("while True: pass")
    assert error_of(result).startswith("OutOfFuel:")
    assert "1,000,000,000" in error_of(result)
    assert "fuel_budget" in error_of(result)
    assert metered.says("print(mine)") == "1"
