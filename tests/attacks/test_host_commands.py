"""Guest code can't make the host run a command that the cell's text does not contain."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attacks.conftest import Making, Victim
from tests.attacks.knocking import MAGICS
from tests.faces import PATIENCE, error_of, happens, wait_for
from tests.faults import faulty


@pytest.fixture(scope="module", autouse=True)
def _knocking() -> Iterator[None]:
    """Gives workers two more commands."""
    with faulty("tests.attacks.knocking"):
        yield


def with_magics(victim: Victim) -> Victim:
    (victim.app / "knocked").unlink(missing_ok=True)
    victim.says(MAGICS)
    return victim


@pytest.fixture
def knocker(victim: Victim) -> Victim:
    """The sandbox that the tests here share, with the magics of `knocking.MAGICS`."""
    return with_magics(victim)


def done(victim: Victim) -> list[str]:
    """The lines for which the host ran the command `knock`."""
    path = victim.app / "knocked"
    return path.read_text().splitlines() if path.exists() else []


def test_a_command_in_the_cells_text_is_done_and_gives_its_value(knocker: Victim) -> None:
    said = knocker.says("print('before')\n%knock {a} $b\nx = %knock again\nprint(x)")
    assert said.splitlines() == ["before", "knocked {a} $b", "knocked again", "2"]
    assert done(knocker) == ["{a} $b", "again"]
    knocker.says("%%time\n%knock timed")
    knocker.says("knock bare")
    knocker.says("%%capture\n%knock captured")
    knocker.says("%%limit seconds=9\n%knock limited")
    assert done(knocker)[2:] == ["timed", "bare", "captured", "limited"]


SNEAKING = {
    "run_line_magic": "get_ipython().run_line_magic('knock', 'in')",
    "a function": "def f():\n    %knock in\nf()",
    "a string that is run": "get_ipython().run_cell('%knock in')",
    "a file": "open('k.ipy', 'w').write('%knock in')\n%run k.ipy",
    "the helper": "from wasm_kernel_agent.host import run_host_command\n"
    "run_host_command(get_ipython(), 'knock', 'in')",
    "another line than stands there": "%knock out\n"
    "get_ipython().run_line_magic('knock', 'out --apply')",
    "once more than it stands there": "%knock out\nget_ipython().run_line_magic('knock', 'out')",
    "a loop around it": "%%timeit -n 2 -r 1\n%knock in",
    "a user's alias": "%alias_magic knack knock\n%knack in",
}


@pytest.mark.parametrize("code", SNEAKING.values(), ids=SNEAKING)
def test_a_command_that_the_text_does_not_name_is_refused(victim_of: Making, code: str) -> None:
    sneak = with_magics(victim_of())
    result = sneak.run(code)
    assert done(sneak) in ([], ["out"])
    assert "at top level" in result.stderr or "done already" in result.stderr


FORGED = """
import _host, json
def forge(**frame):
    return json.loads(_host.call(json.dumps(frame | {"op": "command"}).encode()))
answers = [
    forge(name="knock", line="in"),
    forge(name="knock", line=["out"]),
    forge(name={}, line="out"),
    forge(name="knock"),
    forge(name="knock", line="x" * 20_000_000),
    forge(name="no such thing", line=""),
    forge(name="knock", line="in", cell="%knock in"),
    forge(name="knock\\n%knock", line="in"),
]
print(all("refused" in answer for answer in answers))
"""


def test_forged_frames_and_a_command_after_a_forged_end_are_refused(knocker: Victim) -> None:
    assert knocker.says(FORGED) == "True"
    assert done(knocker) == []
    knocker.run(
        "import _host, json\n"
        "_host.call(json.dumps({'op': 'done', 'reply': {'status': 'ok'}}).encode())\n"
        "%knock in"
    )
    assert done(knocker) == []


def test_a_slow_command_ends_at_an_interrupt_and_at_the_cells_deadline(knocker: Victim) -> None:
    code = f"kept = 1\ntry:\n    pass\nfinally:\n    kept = 2\nprint('begun')\n%wait {PATIENCE}"
    result = knocker.run(code, interrupt="begun")
    assert error_of(result).startswith("KeyboardInterrupt:")
    assert result.duration < PATIENCE
    assert knocker.says("print(kept)") == "2"
    result = knocker.run(f"%wait {PATIENCE}", timeout_seconds=0.3)
    assert error_of(result).startswith("CellTimeout:")
    assert result.duration < PATIENCE


def test_work_before_a_cell_can_be_interrupted(victim: Victim) -> None:
    victim.says("x = 1")
    (victim.app / "busy").touch()
    cell = victim.sandbox.submit("x = 2")
    wait_for(lambda: victim.sandbox.busy)
    assert not happens(cell.done, 0.1)
    assert victim.sandbox.interrupt()
    assert error_of(cell.result(PATIENCE)).startswith("KeyboardInterrupt:")
    (victim.app / "busy").unlink()
    assert victim.says("print(x)") == "1"


def test_a_slow_command_burns_no_fuel(warm_metered: None, victim_of: Making) -> None:
    metered = with_magics(victim_of(fuel_budget=10**9))
    burnt = [metered.run(f"%wait {each}").fuel_consumed or 0 for each in (0.0, 0.5)]
    assert 0 < burnt[1] < burnt[0] * 1.5


def test_f6_texts_that_are_too_long_or_ask_for_too_much_are_refused(knocker: Victim) -> None:
    result = knocker.run("%knock long\n#" + "x" * 300_000)
    assert "not done in a cell of more than 250,000 characters" in result.stderr
    assert "cell of its own" in result.stderr
    assert done(knocker) == []
    # before, its worker was ended as one that had been taken over, and the cell was lost
    told = knocker.says("kept = 1\ntold = %ask 300\nprint(*told, sep='\\n')").splitlines()
    assert told[0].startswith("64 times: ")
    assert told[1].startswith("236 times: work beyond the sandbox was asked for 64 times already.")
    assert knocker.says("told = %ask 1\nprint(kept, *told)") == "1 1 times: there is no such codec."
