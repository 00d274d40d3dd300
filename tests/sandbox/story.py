"""A random program over a session's life, and a model that says what its variables must be.

The model is a tree of states. Cells grow it, traps don't, journeys move in it; after any of them
the guest must say what the model says.
"""

from __future__ import annotations

import ast
import random
from dataclasses import dataclass, field, replace
from pathlib import Path

from wasm_kernel import BaseSandbox, SandboxResult, create_sandbox
from wasm_kernel.errors import TravelError
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.sandbox.claim import Resume

KEEP = 4
POLICY = ExecutionPolicy(history_cells=KEEP)
TEXT = "".join(chr(97 + i % 26) for i in range(2000))

SETUP = """
import os, random, sqlite3, sys
import numpy as np, pandas as pd
d = {}; alias = [d]
a = np.zeros(200_000, dtype='i8')
df = pd.DataFrame({'x': [0, 0, 0]})
g = (i * i for i in range(10**9))
db = sqlite3.connect(':memory:', isolation_level=None)
_ = db.execute('create table t(v)'); _ = db.execute('begin')
f = open('/app/text')
def counter():
    n = 0
    def step():
        nonlocal n
        n += 1
        return n
    return step
step = counter(); steps = 0; squares = 0
random.seed(1)
def digest():
    return (sorted(d.items()), alias[0] is d, int(a.sum()), len(a), df['x'].tolist(),
            len(df.columns), squares, db.execute('select count(*), total(v) from t').fetchone(),
            db.in_transaction, f.tell(), steps, step.__closure__[0].cell_contents,
            hash(random.getstate()), sorted(n for n in globals() if n.startswith('var_')))
"""


@dataclass(frozen=True)
class State:
    """What `digest` must tell, as far as the model knows it; the generator's state is opaque."""

    d: tuple[tuple[int, int], ...] = ()
    cells: tuple[tuple[int, int], ...] = ()
    length: int = 200_000
    x: tuple[int, int, int] = (0, 0, 0)
    columns: int = 1
    squares: int = 0
    rows: tuple[int, ...] = ()
    at: int = 0
    steps: int = 0
    dice: int | None = None
    names: frozenset[str] = frozenset()

    def digest(self) -> tuple[object, ...]:
        total, rows = float(sum(self.rows)), len(self.rows)
        numbers = (sorted(self.d), True, sum(v for _, v in self.cells), self.length, list(self.x))
        opened = ((rows, total), True, self.at, self.steps, self.steps)
        return (*numbers, self.columns, self.squares, *opened, self.dice, sorted(self.names))


@dataclass
class Node:
    """A state in the tree, and the one before it."""

    state: State
    parent: Node | None = None


@dataclass
class Story:
    """One session and its model; `step` goes on by one random act."""

    folder: Path
    seed: int
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        (self.folder / "text").write_text(TEXT)
        self.sandbox = self._open(Resume.NEVER)
        self.run(SETUP)
        self.node = Node(State())
        self.names: dict[str, Node] = {}
        self.undone: list[Node] = []
        self.sure = 0  # cells that can certainly be undone
        got = self._digest()
        self.node = Node(replace(self.node.state, dice=got[12]))  # type: ignore[arg-type]
        self._after_cell(self.node.state)

    def _open(self, resume: Resume) -> BaseSandbox:
        return create_sandbox(workspace=self.folder, policy=POLICY, resume=resume)

    def run(self, code: str) -> SandboxResult:
        self.told.append(code)
        return self.sandbox.execute(code)

    def close(self) -> None:
        self.sandbox.close()

    def step(self) -> None:
        acts = [self.cell] * 6 + [self.raises, self.trap, self.undo, self.redo, self.name]
        self.dice.choice([*acts, self.undo, self.restore, self.reopen, self.check])()

    def check(self) -> None:
        """The guest says what the model says."""
        got, expected = self._digest(), self.node.state.digest()
        assert got == expected, f"seed {self.seed}: {got} is not {expected} after {self.told[-12:]}"
        self._after_cell(self.node.state)

    def _digest(self) -> tuple[object, ...]:
        result = self.run("digest()")
        assert result.success, f"seed {self.seed}: {result.error} after {self.told[-12:]}"
        found: tuple[object, ...] = ast.literal_eval(result.outputs[-1].data["text/plain"])
        return found

    def _after_cell(self, state: State) -> None:
        self.node = Node(state, self.node)
        self.undone.clear()
        self.sure = min(self.sure + 1, KEEP)

    def cell(self) -> None:
        code, state = self._mutation()
        result = self.run(code)
        assert result.success, f"seed {self.seed}: {result.error} in {code!r}"
        if code.startswith("random"):
            state = replace(state, dice=ast.literal_eval(result.stdout))
        self._after_cell(state)

    def raises(self) -> None:
        """What a cell did before its exception stays."""
        code, state = self._mutation()
        if not code.startswith("random"):
            assert self.run(f"{code}\n1/0").error is not None
            self._after_cell(state)

    def trap(self) -> None:
        """What a cell did before its guest was lost is gone."""
        code, _ = self._mutation()
        ruin = "a[:] = 7; d.clear(); random.seed(5); f.seek(0); db.execute('delete from t')"
        result = self.run(f"{code}\n{ruin}\nos._exit(3)")
        assert result.error is not None
        assert result.error.ename == "GuestExited"

    def undo(self) -> None:
        goal, cells, sure = self.node, 0, self.sure
        for _ in range(self.dice.randrange(1, KEEP + 2)):
            if goal.parent is not None:  # before that, there are no variables to tell
                goal, cells = goal.parent, cells + 1
        if cells and self._travel("undo", f"%undo {cells}", cells):
            self.undone.append(self.node)
            self.node, self.sure = goal, max(0, sure - cells)
        else:
            assert cells == 0 or cells > sure, f"seed {self.seed}: {cells}, {self.told[-12:]}"

    def redo(self) -> None:
        there = bool(self.undone)
        if self._travel("redo", "%redo"):
            self.node, self.sure = self.undone.pop(), 0
        else:
            assert not there, f"seed {self.seed}: redo refused after {self.told[-12:]}"

    def restore(self) -> None:
        if self.names:
            name = self.dice.choice(sorted(self.names))
            assert self._travel("restore", f"%restore {name}", name)
            self.undone.append(self.node)
            self.node, self.sure = self.names[name], 0

    def _travel(self, method: str, magic: str, *arguments: object) -> bool:
        """Go, by a cell or from outside; False where it was refused."""
        if self.dice.random() < 0.5:
            self.told.append(f"{method}{arguments}")
            try:
                getattr(self.sandbox, method)(*arguments)
            except TravelError:
                return False
            return True
        result = self.run(magic)
        if result.success:
            return True
        assert result.error is not None
        assert result.error.ename == "UsageError"
        return False

    def name(self) -> None:
        name = f"state {self.dice.randrange(3)}"
        if self.dice.random() < 0.5:
            self.told.append(f"checkpoint {name}")
            self.sandbox.checkpoint(name)
        else:
            assert self.run(f"%checkpoint {name}").success
        self.names[name] = self.node

    def reopen(self) -> None:
        """The session ends, and another sandbox goes on with it."""
        self.told.append("reopen")
        self.close()
        self.sandbox = self._open(Resume.ALWAYS)

    def _mutation(self) -> tuple[str, State]:
        """A cell, and the state after it."""
        dice, s = self.dice, self.node.state
        key, value, row = dice.randrange(8), dice.randrange(1, 99), dice.randrange(3)
        at = dice.randrange(s.length)
        d, cells = dict(s.d), dict(s.cells)
        x, name = list(s.x), f"var_{dice.randrange(5)}"
        x[row] = value
        without = {k: v for k, v in d.items() if k != key}
        choices = [
            (f"d[{key}] = {value}", replace(s, d=tuple((d | {key: value}).items()))),
            (f"alias[0].pop({key}, None)", replace(s, d=tuple(without.items()))),
            ("d.clear()", replace(s, d=())),
            (f"a[{at}] = {value}", replace(s, cells=tuple((cells | {at: value}).items()))),
            (
                "a = np.concatenate([a, np.zeros(70_000, 'i8')])",
                replace(s, length=s.length + 70_000),
            ),
            (f"df.loc[{row}, 'x'] = {value}", replace(s, x=(x[0], x[1], x[2]))),
            ("df[f'c{len(df.columns)}'] = df.x * 2", replace(s, columns=s.columns + 1)),
            ("next(g); squares += 1", replace(s, squares=s.squares + 1)),
            (f"_ = db.execute('insert into t values({value})')", replace(s, rows=(*s.rows, value))),
            ("_ = f.read(3)", replace(s, at=min(s.at + 3, len(TEXT)))),
            ("steps = step()", replace(s, steps=s.steps + 1)),
            ("random.random(); print(hash(random.getstate()))", s),
            (f"{name} = [object()] * {value}", replace(s, names=s.names | {name})),
            (f"globals().pop('{name}', None)", replace(s, names=s.names - {name})),
        ]
        return dice.choice(choices)
