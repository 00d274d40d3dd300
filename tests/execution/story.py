"""A random program over a session's life, and a model of the variables that it must have.

The model is a tree of states. Cells add states, traps don't, travels move between states, and forks
go on from a state beside each other. After each of these the guest must agree with the model. Files
have only one past: each state records the files at its end, and a travel restores them or leaves
them.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from tests.faces import error_of
from tests.private import kept_sandbox
from wasm_kernel import Sandbox, SandboxResult
from wasm_kernel.errors import TravelError
from wasm_kernel.folders.locks import Resume
from wasm_kernel.policy import ExecutionPolicy

KEEP = 4
LIVES = 3
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
    """The digest that the model expects; the state of the random generator is opaque to it."""

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


Files = dict[str, str]
_ages = count(1)


@dataclass
class Node:
    """A state in the tree, its parent, and the files when its cell began.

    Later nodes have a larger `age`.
    """

    state: State
    parent: Node | None = None
    base: Files = field(default_factory=dict)
    age: int = field(default_factory=lambda: next(_ages))


@dataclass
class Life:
    """One of the sandboxes of a story, and its position in the tree.

    States up to the age `inherited` come from its parent, where random numbers were different. An
    `alike` life repeats the random numbers of its parent's inherited states, or may repeat them.
    `files` are the present files, `left` those at the end of the cell after which memory stands,
    and `base` those when that state was kept.
    """

    sandbox: Sandbox
    node: Node
    files: Files = field(default_factory=dict)
    left: Files = field(default_factory=dict)
    base: Files = field(default_factory=dict)
    names: dict[str, tuple[Node, Files]] = field(default_factory=dict)
    undone: list[tuple[Node, Files]] = field(default_factory=list)
    sure: int = 0  # cells that can surely be undone
    inherited: int = 0
    alike: bool = False


@dataclass
class Story:
    """A session, its forks and their model; `step` does one random thing in one of them."""

    folder: Path
    seed: int
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        (self.folder / "text").write_text(TEXT)
        self.life = Life(self._open(self.folder, Resume.NEVER), Node(State()))
        self.others: list[Life] = []
        self.run(SETUP)
        got = self._digest()
        self.life.node = Node(replace(self.life.node.state, dice=got[12]))  # type: ignore[arg-type]
        self._after_cell(self.life.node.state)

    def _open(self, folder: Path, resume: Resume) -> Sandbox:
        return kept_sandbox(workspace=folder, policy=POLICY, resume=resume)

    def run(self, code: str) -> SandboxResult:
        self.told.append(code)
        return self.life.sandbox.execute(code)

    def close(self) -> None:
        for life in [self.life, *self.others]:
            life.sandbox.close()

    def step(self) -> None:
        acts = [self.cell] * 6 + [self.raises, self.trap, self.undo, self.redo, self.name]
        acts += [self.undo, self.restore, self.reopen, self.check, self.fork, self.turn_to_another]
        self.dice.choice([*acts, self.write, self.write, self.put_back])()

    def check_all(self) -> None:
        """Checks that every life agrees with the model."""
        for _ in range(len(self.others) + 1):
            self.check()
            self.others.insert(0, self.life)
            self.life = self.others.pop()

    def fork(self) -> None:
        """Forks another life off this one; if there are too many, one ends."""
        alike = self.dice.random() < 0.5
        self.told.append(f"fork {alike}")
        (sandbox,) = self.life.sandbox.fork(deterministic=alike)
        inherited = self.life.inherited if alike else next(_ages)
        young = replace(self.life, sandbox=sandbox, inherited=inherited, alike=alike)
        young.names, young.undone = dict(young.names), list(young.undone)
        self.others.append(young)
        if len(self.others) > LIVES:
            self.others.pop(self.dice.randrange(LIVES)).sandbox.close()
        if not alike:
            self._as(self.others[-1], self._learn)

    def turn_to_another(self) -> None:
        """Continues with another life."""
        if self.others:
            self.told.append("another")
            self.others.append(self.life)
            self.life = self.others.pop(self.dice.randrange(len(self.others)))

    def _as(self, life: Life, act: Callable[[], None]) -> None:
        mine, self.life = self.life, life
        act()
        self.life = mine

    def _learn(self) -> None:
        """Asks the guest for its random state if the model can't know it."""
        if self.life.node.age <= self.life.inherited:
            if not self.life.alike:  # reseeded, so the state is kept again with the present files
                self.life.base = dict(self.life.files)
            before = self.life.node.state
            got = self._digest()
            other = self.life.alike or got[12] != before.dice
            assert other, f"seed {self.seed}: the parent's dice after {self.told[-12:]}"
            state = replace(before, dice=got[12])  # type: ignore[arg-type]
            assert got == state.digest(), f"seed {self.seed}: {got}, {self.told[-12:]}"
            self._after_cell(state)

    def check(self) -> None:
        """Checks that the guest agrees with the model."""
        got, expected = self._digest(), self.life.node.state.digest()
        assert got == expected, f"seed {self.seed}: {got} is not {expected} after {self.told[-12:]}"
        there = [path for path in self.life.sandbox.workspace.iterdir() if path.name[0] == "f"]
        found, files = {path.name: path.read_text() for path in there}, self.life.files
        assert found == files, f"seed {self.seed}: {found} is not {files} after {self.told[-12:]}"
        self._after_cell(self.life.node.state)

    def _digest(self) -> tuple[object, ...]:
        result = self.run("digest()")
        assert result.success, f"seed {self.seed}: {result.error} after {self.told[-12:]}"
        found: tuple[object, ...] = ast.literal_eval(result.outputs[-1].data["text/plain"])
        return found

    def _after_cell(self, state: State) -> None:
        self.life.node = Node(state, self.life.node, self.life.base)
        self.life.left = self.life.base = dict(self.life.files)
        self.life.undone.clear()
        self.life.sure = min(self.life.sure + 1, KEEP)

    def cell(self) -> None:
        code, state = self._mutation()
        result = self.run(code)
        assert result.success, f"seed {self.seed}: {result.error} in {code!r}"
        if code.startswith("random"):
            state = replace(state, dice=ast.literal_eval(result.stdout))
        self._after_cell(state)

    def raises(self) -> None:
        """A cell that raises keeps the changes before its exception."""
        code, state = self._mutation()
        if not code.startswith("random"):
            assert self.run(f"{code}\n1/0").error is not None
            self._after_cell(state)

    def trap(self) -> None:
        """A cell that loses the guest loses its changes."""
        code, _ = self._mutation()
        ruin = "a[:] = 7; d.clear(); random.seed(5); f.seek(0); db.execute('delete from t')"
        written, self.life.files = self._edit()
        result = self.run(f"{code}\n{ruin}\n{written}\nos._exit(3)")
        assert error_of(result).startswith("GuestExited:")

    def write(self) -> None:
        """A cell that changes files, and no variable."""
        code, self.life.files = self._edit()
        result = self.run(code)
        assert result.success, f"seed {self.seed}: {result.error} after {self.told[-12:]}"
        self._after_cell(self.life.node.state)

    def put_back(self) -> None:
        """Takes back the changes that failed cells made to files."""
        self.told.append("rollback")
        assert self.life.sandbox.rollback(files=True).files_missed == {}
        self.life.files = dict(self.life.left)
        self._learn()

    def undo(self) -> None:
        goal, cells, sure, files = self.life.node, 0, self.life.sure, self.life.base
        for _ in range(self.dice.randrange(1, KEEP + 2)):
            if goal.parent is not None:  # before the first state there are no variables
                goal, cells, files = goal.parent, cells + 1, goal.base
        if cells and self._travel("undo", f"%undo {cells}", goal, files, cells):
            self.life.sure = max(0, sure - cells)
            self._learn()
        else:
            assert cells == 0 or cells > sure, f"seed {self.seed}: {cells}, {self.told[-12:]}"

    def redo(self) -> None:
        there = bool(self.life.undone)
        node, files = self.life.undone[-1] if there else (self.life.node, self.life.base)
        undone = self.life.undone[:-1]
        if self._travel("redo", "%redo", node, files):
            self.life.undone, self.life.sure = undone, 0
            self._learn()
        else:
            assert not there, f"seed {self.seed}: redo refused after {self.told[-12:]}"

    def restore(self) -> None:
        if self.life.names:
            name = self.dice.choice(sorted(self.life.names))
            assert self._travel("restore", f"%restore {name}", *self.life.names[name], name)
            self.life.sure = 0
            self._learn()

    def _travel(self, method: str, magic: str, goal: Node, base: Files, *arguments: object) -> bool:
        """Travels by a cell or from outside, with or without files; False if it was refused."""
        files = self.dice.random() < 0.5
        if self.dice.random() < 0.5:
            self.told.append(f"{method}{arguments} {files}")
            try:
                found = getattr(self.life.sandbox, method)(*arguments, files=files)
            except TravelError:
                return False
            assert found.files_missed == {}, f"seed {self.seed}: {found}, {self.told[-12:]}"
        else:
            result = self.run(magic + " --files" * files)
            if not result.success:
                assert error_of(result).startswith("UsageError:")
                return False
        self.life.undone.append((self.life.node, self.life.base))
        self.life.node, self.life.left, self.life.base = goal, base, base
        if files:
            self.life.files = dict(base)
        return True

    def name(self) -> None:
        name = f"state {self.dice.randrange(3)}"
        if self.dice.random() < 0.5:
            self.told.append(f"checkpoint {name}")
            self.life.sandbox.checkpoint(name)
        else:
            assert self.run(f"%checkpoint {name}").success
        self.life.names[name] = self.life.node, self.life.base

    def reopen(self) -> None:
        """Closes the session and opens it again in another sandbox. A fork's state ends with it."""
        if self.life.sandbox.workspace != self.folder:
            return
        self.told.append("reopen")
        self.life.sandbox.close()
        self.life.sandbox = self._open(self.life.sandbox.workspace, Resume.ALWAYS)

    def _edit(self) -> tuple[str, Files]:
        """Code that changes a file, and the files after it."""
        dice, files = self.dice, dict(self.life.files)
        name, other, text = f"f{dice.randrange(3)}", f"f{dice.randrange(3)}", str(dice.random())
        if name in files and dice.random() < 0.2:
            return f"os.remove('{name}')", {n: t for n, t in files.items() if n != name}
        if name in files and name != other and dice.random() < 0.3:
            moved = files.pop(name)
            return f"os.replace('{name}', '{other}')", files | {other: moved}
        if name in files and dice.random() < 0.5:
            code = f"with open('{name}', 'a') as w: _ = w.write('{text}')"
            return code, files | {name: files[name] + text}
        return f"with open('{name}', 'w') as w: _ = w.write('{text}')", files | {name: text}

    def _mutation(self) -> tuple[str, State]:
        """The code of a cell, and the state after it."""
        dice, s = self.dice, self.life.node.state
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
