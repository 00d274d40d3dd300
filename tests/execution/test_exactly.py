"""Objects that pickling would change or refuse are the same after an undo, and elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.faces import put_back, says
from tests.private import kept_sandbox
from wasm_kernel import Sandbox
from wasm_kernel.folders.locks import Resume


@dataclass(frozen=True)
class Thing:
    """The code of a test: `made` makes an object, `used` uses it up, `told` prints the rest."""

    made: str
    used: str
    told: str
    says: str


THINGS = {
    "a half-consumed generator": Thing(
        "g = (i * i for i in range(10)); next(g); _ = next(g)",
        "list(g)",
        "print(list(g))",
        "[4, 9, 16, 25, 36, 49, 64, 81]",
    ),
    "a database in memory with an open transaction": Thing(
        "import sqlite3; c = sqlite3.connect(':memory:'); _ = c.execute('create table t(a)')\n"
        "c.commit(); _ = c.execute('insert into t values (1)')",
        "c.commit(); c.close()",
        "print(c.in_transaction, c.execute('select * from t').fetchall()); c.rollback()\n"
        "print(c.execute('select * from t').fetchall())",
        "True [(1,)]\n[]",
    ),
    "a database in a file with an open transaction": Thing(
        "import sqlite3; c = sqlite3.connect('/app/db'); _ = c.execute('create table t(a)')\n"
        "c.commit(); _ = c.execute('insert into t values (1)')",
        "x = 1",
        "c.commit(); print(sqlite3.connect('/app/db').execute('select * from t').fetchall())",
        "[(1,)]",
    ),
    "an open file in mid-read": Thing(
        "_ = open('/app/text', 'w').write('one\\ntwo\\nthree\\n'); f = open('/app/text')\n"
        "_ = f.readline()",
        "f.read(); f.close()",
        "print(f.readline().strip(), f.tell(), f.closed)",
        "two 8 False",
    ),
    "an open file with unwritten text": Thing(
        "f = open('/app/late', 'w'); _ = f.write('half')",
        "_ = f.seek(0)",
        "_ = f.write(' and half'); f.close(); print(open('/app/late').read())",
        "half and half",
    ),
    "an unlinked temporary file": Thing(
        "import tempfile; t = tempfile.TemporaryFile('w+'); _ = t.write('kept'); t.flush()",
        "_ = t.write(' and changed'); t.flush(); t.close()",
        "_ = t.seek(0); print(t.read())",
        "kept",
    ),
    "the state of random and numpy": Thing(
        "import random, numpy as np; rng = np.random.default_rng(7); random.seed(7)\n"
        "np.random.seed(7); a = random.getstate(), np.random.get_state()[2], "
        "rng.bit_generator.state",
        "random.random(); np.random.rand(100); rng.random(3)",
        "b = random.getstate(), np.random.get_state()[2], rng.bit_generator.state\n"
        "print(a == b, random.random(), np.random.rand(), rng.random())",
        "True 0.32383276483316237 0.07630828937395717 0.625095466604667",
    ),
    "a patched module": Thing(
        "import json; json.dumps = lambda x: 'mine'",
        "import importlib; json = importlib.reload(json)",
        "print(json.dumps(1), __import__('json').dumps(1))",
        "mine mine",
    ),
    "a lock that is held": Thing(
        "import threading; lock = threading.Lock(); _ = lock.acquire()",
        "lock.release()",
        "print(lock.locked(), lock.acquire(blocking=False)); lock.release(); print(lock.locked())",
        "True False\nFalse",
    ),
    "objects of C libraries in mid-work": Thing(
        "import hashlib, zlib; h = hashlib.sha256(b'a'); z = zlib.decompressobj()\n"
        "data = zlib.compress(b'one two three'); first = z.decompress(data[:9])",
        "h.update(b'x'); z.flush()",
        "h.update(b'b'); print(h.hexdigest() == hashlib.sha256(b'ab').hexdigest())\n"
        "print((first + z.decompress(data[9:])).decode())",
        "True\none two three",
    ),
    "a suspended coroutine": Thing(
        "import types\n@types.coroutine\ndef wait():\n    return (yield 'waits')\n"
        "async def job():\n    return 'got ' + await wait()\nj = job(); _ = j.send(None)",
        "j.close()",
        "try: j.send('it')\nexcept StopIteration as end: print(end.value)",
        "got it",
    ),
}


def opened(workspace: Path) -> Sandbox:
    return kept_sandbox(workspace=workspace, resume=Resume.ALWAYS)


def test_everything_comes_back_exactly(tmp_path: Path) -> None:
    """After an undo, after a trap, and in another sandbox that goes on with the session."""
    with opened(tmp_path) as sandbox:
        for name, thing in THINGS.items():
            put_back(sandbox)
            says(sandbox, thing.made)
            sandbox.checkpoint(name)
            says(sandbox, thing.used)
            sandbox.undo()
            assert says(sandbox, thing.told) == thing.says, f"{name}, undone"
            sandbox.restore(name, files=True)
            assert sandbox.execute(f"{thing.used}\nimport os; os._exit(3)").error is not None
            assert says(sandbox, thing.told) == thing.says, f"{name}, after a trap"
    with opened(tmp_path) as another:
        for name, thing in THINGS.items():
            another.restore(name, files=True)
            assert says(another, thing.told) == thing.says, f"{name}, in another sandbox"
