"""Random numbers in forks: others than in the parent and other forks, unless asked for."""

from __future__ import annotations

from tests.execution.conftest import Forking
from tests.faces import says
from wasm_kernel import Sandbox

CHANCE = """
import random, sqlite3, uuid, numpy as np
own, rng, legacy = random.Random(5), np.random.default_rng(5), np.random.RandomState(5)
class Mine(random.Random): pass
mine, seeded = Mine(5), np.random.Generator(np.random.SFC64(5)); np.random.seed(5); random.seed(5)
_ = (legacy.standard_normal(), np.random.standard_normal(), own.gauss(), random.gauss())
def draw(): return [
    random.random(), random.gauss(), own.random(), own.gauss(), mine.random(),
    np.random.random(), np.random.standard_normal(), legacy.random(), legacy.standard_normal(),
    rng.random(), rng.integers(2**60), seeded.random(), rng.spawn(1)[0].random(),
    np.random.get_state()[1][0], uuid.uuid4().int, uuid.uuid1().int, uuid.uuid7().int % 2**60,
    sqlite3.connect(':memory:').execute('select random()').fetchone()[0],
]
"""
DRAW = "print([float(x) for x in draw()])"


def test_forks_draw_other_numbers_than_their_parent_and_each_other(parent: Sandbox) -> None:
    parent.execute(CHANCE)
    forks = parent.fork(3)
    try:
        drawn = [eval(says(sandbox, DRAW)) for sandbox in (parent, *forks)]
    finally:
        for fork in forks:
            fork.close()
    same = [n for n, values in enumerate(zip(*drawn, strict=True)) if len(set(values)) < 4]
    assert same == []


def test_the_parent_goes_on_with_its_own_numbers(parent: Sandbox, forked: Forking) -> None:
    parent.execute("import random; random.seed(5)")
    forked(parent)
    assert says(parent, "print(random.random())") == "0.6229016948897019"
