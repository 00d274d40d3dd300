"""F15: named states count in the history's limit on disk, and names beyond it are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.attacks.conftest import Making, Victim
from tests.faces import happens
from tests.sampled import sampled
from tests.stored import state_of
from wasm_kernel.errors import TravelError

MB = 1 << 20
MOST, STATE = 64 * MB, 8 * MB
TOUCHED = 3 * STATE  # the data, and the copies from which it is made
FILL = f"import os; data = bytearray(os.urandom({STATE}))"
ASK = """
import _host, json
def ask(**frame): return json.loads(_host.call(json.dumps(frame | {'op': 'command'}).encode()))
"""


def by_call(victim: Victim, name: str) -> str:
    """Names the state from outside."""
    victim.says(FILL)
    try:
        victim.sandbox.checkpoint(name)
    except TravelError as problem:
        return str(problem)
    return ""


def by_magic(victim: Victim, name: str) -> str:
    victim.says(FILL)
    result = victim.run(f"%checkpoint {name}")
    return "" if result.success else f"{result.stderr}{result.error}"


def by_host_call(victim: Victim, name: str) -> str:
    """Names states as a hostile cell does it, with the data that it fills in the same turn."""
    result = victim.run(f"{FILL}\n{ASK}\nprint(ask(name='checkpoint', line={name!r}))")
    assert result.success
    words = result.stdout + result.stderr
    return words if "not made" in words else ""


def on_disk(victim: Victim) -> int:
    folder = state_of(victim.app) / "contents"
    return sum(path.stat().st_size for path in folder.iterdir())


def settled(victim: Victim, most: int) -> int:
    """The bytes on disk as soon as they are below a bound, or after some seconds."""
    happens(lambda: on_disk(victim) <= most, 20)
    return on_disk(victim)


@pytest.mark.parametrize(
    "way", sampled({way.__name__: way for way in (by_host_call, by_magic, by_call)}, 3)
)
def test_named_states_take_no_more_than_the_limit(
    fresh_victim_of: Making, way: Callable[[Victim, str], str]
) -> None:
    victim = fresh_victim_of(history_bytes=MOST)
    told = {f"state {number}": way(victim, f"state {number}") for number in range(9)}
    named = [one.name for one in victim.sandbox.checkpoints() if one.name]
    assert named == [name for name, words in told.items() if not words]
    assert 2 <= len(named) <= 8
    assert all("history_bytes" in words for words in told.values() if words)
    victim.lives()
    assert settled(victim, MOST + 2 * TOUCHED) <= MOST + 2 * TOUCHED
    for name in named:
        victim.sandbox.restore(name)
        assert victim.says("print(len(data))") == str(STATE)


def test_a_name_that_is_used_again_makes_room(fresh_victim_of: Making) -> None:
    victim = fresh_victim_of(history_bytes=MOST)
    for number in range(9):
        victim.says(f"{FILL}\nnumber = {number}")
        victim.sandbox.checkpoint("best")
    victim.says("number = 'lost'")
    victim.sandbox.restore("best")
    assert victim.says("print(number)") == "8"


def test_a_thousand_names_are_enough(fresh_victim_of: Making) -> None:
    victim = fresh_victim_of()
    names = "print(sum('refused' in ask(name='checkpoint', line=f'n{i}') for i in range(*most)))"
    assert victim.says(f"{ASK}\nmost = 0, 600\n{names}") == "0"
    assert victim.says(f"most = 600, 1200\n{names}") == "200"
    assert len([one for one in victim.sandbox.checkpoints() if one.name]) == 1000
    victim.lives()


def test_going_back_and_forth_for_ever_takes_time_in_proportion(fresh_victim_of: Making) -> None:
    """One cell travels to its own state over and over."""
    victim = fresh_victim_of()
    victim.says("x = 1")
    victim.says("x = 2")
    took = []
    for count in (250, 1000):
        code = f"for i in range({count}): ask(how='restore', line=str(i % 2 + 1))"
        begun = victim.sandbox.process_usage().cpu_seconds
        victim.says(f"{ASK}\n{code}")
        took.append(victim.sandbox.process_usage().cpu_seconds - begun)
    assert took[1] < 8 * took[0] + 1
