"""A hostile cell tries to repeat random numbers, to fork unasked, and to ruin a fork."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.attacks.conftest import Making, Victim
from tests.faces import full_disk, open_files, wait_for
from wasm_kernel import ForkError
from wasm_kernel.linux.files import FileCopier

DRAWS = """
import json, os, random, secrets, sqlite3, tempfile, uuid
import numpy as np
from multiprocessing.process import current_process
def draws():
    return {
        "random": random.random(),
        "gauss": random.gauss(),
        "system": random.SystemRandom().random(),
        "numpy": np.random.random(),
        "numpy normal": np.random.standard_normal(),
        "numpy generator": np.random.default_rng().random(),
        "urandom": os.urandom(8).hex(),
        "secrets": secrets.token_hex(),
        "uuid1": str(uuid.uuid1())[-17:],
        "uuid4": str(uuid.uuid4()),
        "uuid7": str(uuid.uuid7())[-21:],
        "sqlite": sqlite3.connect(":memory:").execute("select random()").fetchone()[0],
        "temporary": tempfile.mktemp(),
        "authkey": current_process().authkey.hex(),
    }
"""
SHOW = "print(json.dumps(draws()))"


def drawn(victim: Victim, code: str = SHOW) -> dict[str, object]:
    found: dict[str, object] = json.loads(victim.says(code))
    return found


def repeated(draws: list[dict[str, object]]) -> set[str]:
    """The values that are equal in any two of them."""
    return {name for name in draws[0] if max(Counter(str(one[name]) for one in draws).values()) > 1}


Forked = Callable[..., list[Victim]]


@pytest.fixture
def forks_of() -> Iterator[Forked]:
    """Forks a victim, and closes the forks after the test."""
    made: list[Victim] = []

    def some(victim: Victim, n: int = 1, *, deterministic: bool = False) -> list[Victim]:
        forks = [Victim(one) for one in victim.sandbox.fork(n, deterministic=deterministic)]
        made.extend(forks)
        return forks

    yield some
    for victim in made:
        victim.sandbox.close()


def test_case_29_two_sessions_draw_different_numbers_ids_and_names(fresh_victim_of: Making) -> None:
    victims = [fresh_victim_of(name) for name in ("first", "second", "third")]
    assert repeated([drawn(victim, DRAWS + SHOW) for victim in victims]) == set()


def test_forks_of_forks_back_or_lost_draw_anew(victim_of: Making, forks_of: Forked) -> None:
    parent = victim_of()
    parent.says(DRAWS)
    parent.says("x = 1")
    (child,) = forks_of(parent)
    (grandchild,) = forks_of(child)
    back, further, lost = forks_of(parent, 3)
    for each in (back, further):
        each.sandbox.undo(1)
    assert lost.fails("import os; os._exit(3)") == "GuestExited"
    victims = (parent, child, grandchild, back, further, lost)
    assert repeated([drawn(each) for each in victims]) == set()


def test_a_deterministic_fork_repeats_what_lies_in_memory_and_nothing_else(
    victim_of: Making, forks_of: Forked
) -> None:
    parent = victim_of()
    parent.says(DRAWS)
    (fork,) = forks_of(parent, deterministic=True)
    same = repeated([drawn(fork), drawn(parent)])
    assert {"random", "gauss", "numpy", "numpy normal"} <= same
    assert not same & {"system", "urandom", "secrets", "uuid4", "numpy generator"}


SABOTAGE = {
    "random is gone": "import sys, random; sys.modules['random'] = None; random._inst = None",
    "os.urandom is constant": "import os; os.urandom = lambda n: bytes(n)",
    "the agent's seeds are gone": (
        "import sys; vars(sys.modules['wasm_kernel_agent.reseed']).clear()"
    ),
}


@pytest.mark.parametrize("name", SABOTAGE)
def test_a_guest_that_broke_its_own_seeds_can_be_forked_still(
    victim_of: Making, forks_of: Forked, name: str
) -> None:
    parent = victim_of()
    parent.says("x = [1]")
    parent.run(SABOTAGE[name])
    (fork,) = forks_of(parent)
    assert fork.says("x.append(2); print(x)") == "[1, 2]"
    fork.lives()
    parent.lives()


def test_a_reseeding_that_never_ends_costs_the_fork_alone(fresh_victim_of: Making) -> None:
    parent = fresh_victim_of()
    parent.says(
        "import numpy as np, sys\n"
        "class Endless(np.random.PCG64):\n"
        "    def __setstate__(self, state):\n        while True: pass\n"
        "    @property\n    def state(self):\n        while True: pass\n"
        "    @state.setter\n    def state(self, value):\n        while True: pass\n"
        "bits = Endless(5)"
    )
    (fork,) = parent.sandbox.fork()
    cell = fork.submit("1")
    wait_for(lambda: fork.process_usage().cpu_seconds > 1, "the reseeding")
    parent.lives()
    assert not cell.done()
    fork.close()
    error = cell.result().error
    assert error is not None and "before it began" in error.evalue
    parent.lives()


def test_forks_that_fail_leave_nothing_behind_and_the_parent_as_it_was(
    fresh_victim_of: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = fresh_victim_of()
    victim.says("x = 1; open('a', 'w').write('a'); open('b', 'w').write('b')")
    copied, copy = [], FileCopier.copy

    def full(self: FileCopier, *args: int) -> None:
        copied.append(args)
        if len(copied) % 4 == 0:  # in the second fork
            full_disk()
        copy(self, *args)

    monkeypatch.setattr(FileCopier, "copy", full)
    for _ in range(3):
        with pytest.raises(ForkError, match=r"No space left on device\). Nothing of it is left"):
            victim.sandbox.fork(3)
    assert len(copied) == 12
    assert [path for path in open_files() if "/.removed-" in path] == []
    assert [path.name for path in victim.app.parent.iterdir()] == ["app"]
    assert victim.says("print(x)") == "1"
    victim.lives()
