"""F7, F21, ATTACKS 46: what a cell leaves behind for its next turn never costs the session."""

from __future__ import annotations

import time

import pytest

from tests.attacks.conftest import Making, Victim
from tests.faces import PATIENCE, error_of, wait_for
from tests.sampled import sampled
from wasm_kernel import NeverBegan

pytestmark = pytest.mark.usefixtures("hasty_workers")

LIMIT, GRACE = 0.5, 0.2  # seconds, for cells that would not end; other cells have plenty

SPIN = "\n  while True: pass\n"
LEFTOVERS = {
    "audit hook that spins": f"import sys\ndef h(e, a):{SPIN}sys.addaudithook(h)",
    "audit hook that raises": "import sys\ndef h(e, a): raise OSError\nsys.addaudithook(h)",
    "agent that spins": (f"def f(*a):{SPIN}type(get_ipython().agent).turn = f"),
    "descriptors": (
        "import os\nfd = os.open('q', os.O_RDWR | os.O_CREAT)\nfor n in range(60):\n"
        "  try: os.dup2(fd, n)\n  except OSError: pass"
    ),
    "tasks": (
        "import asyncio\nasync def f():\n  while True: await asyncio.sleep(0)\n"
        "l = [asyncio.create_task(f()) for i in range(500)]"
    ),
    "tasks that exit": (
        "import asyncio\nasync def f():\n  await asyncio.sleep(0.01)\n  raise SystemExit\n"
        "l = [asyncio.create_task(f()) for i in range(50)]"
    ),
    "broken loop": (
        "import asyncio; l = asyncio.get_event_loop(); l._selector = None; l.call_soon(id)"
    ),
    "running loop": "import asyncio; asyncio._set_running_loop(object())",
    "audit hook that swallows": (
        "import sys\ndef h(e, a):\n  while True:\n    try:\n      while True: pass\n"
        "    except BaseException: pass\nsys.addaudithook(h)"
    ),
    "trace function": f"import sys\ndef t(*a):{SPIN}sys.settrace(t)",
    "stdout that spins": (
        f"import sys\nclass S:\n def write(self, t):\n  if not t: return\n{SPIN}"
        " def flush(self): pass\nsys.stdout = S()"
    ),
    "collector's callback": (
        "import gc\ndef c(*a):\n  while True: pass\ngc.callbacks.append(c)\ngc.set_threshold(1)"
    ),
    "builtins": "import builtins\nfor n in list(vars(builtins)): setattr(builtins, n, None)",
    "an import that spins": f"import builtins\ndef f(*a, **k):{SPIN}builtins.__import__ = f",
    "meta path": (
        "import sys\nclass F:\n def find_spec(self, *a):\n  while True: pass\n"
        "sys.meta_path.insert(0, F())\nsys.modules.clear()"
    ),
    "full memory": (
        "big = []\ntry:\n  while True: big.append(bytes(1 << 20))\n"
        "except MemoryError: pass\ntry:\n  while True: big.append(bytes(1 << 8))\n"
        "except MemoryError: pass"
    ),
}


@pytest.fixture
def one(victim_of: Making) -> Victim:
    """A sandbox whose cells set x to 1 and 2, with a checkpoint after each."""
    made = victim_of(grace_seconds=GRACE, memory_bytes=512 << 20)
    for name in ("1st", "2nd"):
        made.says(f"x = {name[0]}")
        made.sandbox.checkpoint(name)
    return made


def ended(victim: Victim, code: str, seconds: float | None = None) -> str:
    """Runs a cell and returns what it printed, or the name of its error."""
    result = victim.run(code, timeout_seconds=seconds)
    return result.stdout if result.error is None else result.error.ename


@pytest.mark.parametrize("code", sampled(LEFTOVERS, 5))
def test_f7_travelling_needs_no_guest_whatever_was_left(one: Victim, code: str) -> None:
    kept = one.run(code, timeout_seconds=LIMIT).success
    assert "Checkpoint 'here'" in one.says("%checkpoint here")
    assert one.run("%checkpoints").outputs
    assert one.run("%timeline").outputs
    if kept:
        assert ended(one, "%undo").startswith("Undone: In[")
    else:
        assert ended(one, "%restore 2nd").startswith("Restored")
    assert ended(one, "print(x)") == "2\n"
    assert ended(one, "%restore 1st").startswith("Restored")
    assert ended(one, "print(x)") == "1\n"


@pytest.mark.parametrize("code", sampled(LEFTOVERS, 15))
def test_f7_other_cells_end_at_their_limit_and_sessions_come_back(one: Victim, code: str) -> None:
    one.run(code, timeout_seconds=LIMIT)
    for _ in range(3):  # a cell that can't begin leads to an earlier state
        if ended(one, "print(x)", LIMIT) == "2\n":
            break
    else:
        assert ended(one, "%restore 2nd").startswith("Restored")
        assert ended(one, "print(x)") == "2\n"


def test_f7_a_cell_that_never_began_says_what_was_kept(one: Victim) -> None:
    spin = f"def f(*a):\n  open('begun', 'w').close(){SPIN}"
    one.run(f"{spin}type(get_ipython().agent).turn = f")
    cell = one.sandbox.submit("x = 3")
    wait_for((one.app / "begun").exists)
    while not cell.done():
        one.sandbox.interrupt()
        time.sleep(0.05)
    result = cell.result()
    assert error_of(result).startswith("NeverBegan:")
    assert "An earlier cell had left the interpreter unable to run another" in error_of(result)
    assert "this cell was not run" in error_of(result)
    assert one.says("print(x)") == "2"


@pytest.mark.parametrize("name", ["tasks that exit", "broken loop", "running loop"])
def test_f7_leftovers_in_the_event_loop_fail_no_later_cell(victim_of: Making, name: str) -> None:
    one = victim_of()
    one.says("x = 2")
    one.says(LEFTOVERS[name])
    for value in range(3):
        assert one.says(f"print({value})") == str(value)
        assert one.says("await asyncio.sleep(0)\nprint(x)") == "2"


def test_f7_a_limit_of_an_hour_is_not_waited_for_and_a_tiny_one_is_kept(victim_of: Making) -> None:
    patient = victim_of(cell_timeout=None, grace_seconds=GRACE)
    patient.says("x = 1")
    patient.run(LEFTOVERS["audit hook that spins"])
    assert error_of(patient.sandbox.submit("x = 2").result(PATIENCE)).startswith("NeverBegan:")
    assert patient.says("print(x)") == "1"
    tiny = victim_of(cell_timeout=0.001)
    tiny.run("x = 1")
    for _ in range(3):
        assert error_of(tiny.run("while True: pass")).startswith("CellTimeout:")


def test_f7_fuel_that_runs_out_too_early_leads_back(warm_metered: None, victim_of: Making) -> None:
    metered = victim_of(fuel_budget=10**8, cell_timeout=None)
    metered.says("x = 1")
    metered.run(LEFTOVERS["audit hook that spins"])
    result = metered.run("x = 2")
    assert error_of(result).startswith("OutOfFuel:")
    assert error_of(result).endswith("this cell was not run.")
    assert metered.says("print(x)") == "1"
    assert metered.run("%checkpoints").fuel_consumed == 0


def test_f7_a_session_whose_first_state_is_of_no_use_begins_fresh(fresh_victim_of: Making) -> None:
    """A hook that spins if a file exists is part of every state that is kept."""
    short = fresh_victim_of(grace_seconds=GRACE, history_cells=1)
    short.says(
        "import os, sys\nexists = os.path.exists\ndef h(e, a):\n"
        "  while exists('/app/spin'): pass\nsys.addaudithook(h)"
    )
    for value in range(3):
        short.says(f"x = {value}")
    (short.app / "spin").touch()
    for _ in range(5):
        result = short.run("print('x' in globals())")
        if result.error is None:
            break
    assert result.stdout == "False\n"
    assert "The variables begin fresh" in result.stderr
    assert short.run("%checkpoints").outputs
    short.lives()


def test_f7_widgets_that_never_say_their_state_hold_up_no_cell(one: Victim) -> None:
    one.says(
        "import ipywidgets\nclass W(ipywidgets.IntSlider):\n  def get_state(self, *a, **k):\n"
        "    while True:\n      try:\n        while True: pass\n      except BaseException: pass\n"
        "w = ipywidgets.IntSlider()\nw.__class__ = W"
    )
    assert ended(one, "while True: pass", LIMIT) in ("CellTimeout", "Interrupted")
    assert ended(one, "print(x)") == "2\n"
    assert ended(one, "%undo 2").startswith("Undone")


def test_f7_a_question_that_never_began_leaves_the_way_back_to_a_cell(one: Victim) -> None:
    """A completion does not lead to an earlier state; the next cell does."""
    one.run(LEFTOVERS["audit hook that spins"])
    with pytest.raises(NeverBegan):
        one.sandbox.query({"op": "complete", "code": "pri", "cursor_pos": 3}).result(PATIENCE)
    assert ended(one, "print(x)") == "NeverBegan"
    assert ended(one, "print(x)") == "2\n"


def test_f7_a_cell_asks_for_travels_a_limited_number_of_times(fresh_victim_of: Making) -> None:
    result = fresh_victim_of().run(
        "for i in range(5_000):\n  try: get_ipython().run_line_magic('checkpoint', f'n{i}')\n"
        "  except Exception as e: print(i, e); break"
    )
    assert "A cell can ask this 1,000 times" in result.stdout + result.stderr


STREAMS = {
    "none": "import sys; sys.stdout = sys.stderr = None",
    "fd 1": "import os; os.close(1)",
    "range of fds": "import os; os.closerange(0, 9)",
    "dup2": "import os; os.dup2(os.open('f', os.O_WRONLY | os.O_CREAT), 1)",
    "a file at 1": "import os; os.close(1); f = open('g', 'w'); f.write('g'); f.flush()",
}


def test_f21_later_cells_print_whatever_was_done_to_the_streams(victim: Victim) -> None:
    for code in STREAMS.values():
        victim.run(code)
        result = victim.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\n1 + 1")
        assert (result.stdout, result.stderr) == ("out\n", "err\n"), code
        assert result.outputs[0].data["text/plain"] == "2"
    assert victim.fails("import sys; sys.stdout.detach()") == "UnsupportedOperation"
    assert victim.says("print('on')") == "on"
