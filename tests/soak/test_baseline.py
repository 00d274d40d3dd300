"""The baseline compiler's code gives the same results as the optimizing one's; sessions begin with
it.

Exceptions in Winch are young, so each version of wasmtime is compared again.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.faces import process_of, wait_for
from tests.faults import faulty
from wasm_kernel import create_sandbox
from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.flavours import BASELINE, BASELINE_SETTING, UNCHECKED, Flavour
from wasm_kernel.guests.base import prepare_on_own_thread
from wasm_kernel.guests.python import background
from wasm_kernel.guests.python.language import PythonLanguage
from wasm_kernel.service import fork_server, program_home
from wasm_kernel.service.service import Service

pytestmark = pytest.mark.soak

CELLS = [
    """
import numpy as np
kinds = ['?', 'i1', 'u1', 'i2', 'u2', 'i4', 'u4', 'i8', 'u8', 'f4', 'f8', 'c8', 'c16']
for a in kinds:
    for b in kinds:
        x, y = np.arange(1, 40).astype(a), np.arange(41, 2, -1).astype(b)
        for f in (np.add, np.multiply, np.maximum, np.power, np.true_divide):
            try: r = f(x, y); print(a, b, r.dtype, r.tobytes().hex()[:200])
            except Exception as e: print(a, b, type(e).__name__, e)
""",
    """
import numpy as np
g = np.random.default_rng(7)
m = g.normal(size=(120, 120)); s = np.linalg.svd(m, compute_uv=False)
print(s.tobytes().hex()[:400], np.fft.fft(m[0]).tobytes().hex()[:400])
print(np.sort(g.integers(0, 10**9, 10**5))[::9999], np.argsort(m[1], kind='stable')[:20])
""",
    """
import pandas as pd
d = pd.DataFrame({'k': [i % 7 for i in range(5000)], 'v': [i * .5 for i in range(5000)]})
print(d.groupby('k').agg(['sum', 'mean', 'std']).to_string(), d.describe().to_string())
print(d.merge(d.head(9), on='k').shape, pd.to_datetime(['2020-02-29', '1969-12-31']).astype('i8'))
""",
    """
from scipy import optimize, integrate, sparse, stats
from scipy.sparse.linalg import spsolve
print(optimize.minimize(lambda x: ((x - 3)**2).sum() + x[0]*x[1], [0, 0]).x.round(6))
print(integrate.quad(lambda t: t**.5, 0, 2), stats.norm.cdf([-1, 0, 2]))
print(spsolve(sparse.diags([4.] * 50).tocsc() + sparse.eye(50, k=1), list(range(50))).round(9))
""",
    """
from sklearn.ensemble import RandomForestClassifier
from sklearn.datasets import load_wine
x, y = load_wine(return_X_y=True)
print(RandomForestClassifier(20, random_state=0).fit(x, y).predict_proba(x).round(9).tolist()[:9])
""",
    """
import re, json, sqlite3, decimal, fractions, hashlib, zlib, struct, lzma
print(re.sub(r'(\\w+)-(\\d+)', r'\\2-\\1', 'ab-12 cd-34'), hashlib.sha256(b'x' * 99999).hexdigest())
db = sqlite3.connect(':memory:'); print(db.execute('select sum(value), json_array(1, 2.5, null) '
    "from json_each('[1, 2, 3.25]')").fetchall())
print(zlib.crc32(zlib.compress(bytes(range(256)) * 99)), len(lzma.compress(b'ab' * 9999)))
print(decimal.Decimal(2).sqrt(), fractions.Fraction(1, 3) ** 20, 7 ** 999 % 10 ** 20)
""",
    """
import numpy as np, lxml.etree, sympy
def deep(n): return deep(n - 1) + 1 if n else 0
for problem in ("deep(10**6)", "np.linalg.inv(np.zeros((2, 2)))", "lxml.etree.fromstring('<a>')",
                "[].pop()", "'x'.encode('utf-7').decode('ascii')", "np.zeros(10**12)", "1 // 0"):
    try: print(eval(problem))
    except BaseException as e: print(type(e).__name__, str(e)[:80])
x = sympy.Symbol('x'); print(sympy.factor(x**8 - 1), sympy.integrate(sympy.exp(-x) * x**3, x))
""",
]


def outputs(folder: Path, flavour: Flavour, *places: str) -> list[str]:
    """The output of the cells in code of this flavour."""
    with faulty(*places), create_sandbox(workspace=folder) as sandbox:
        results = [sandbox.execute(cell) for cell in CELLS]
        assert flavour.name in codes_of(process_of(sandbox))
    assert [result.error for result in results if not result.success] == []
    return [result.stdout for result in results]


def test_both_compilers_print_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = outputs(tmp_path / "compiled", UNCHECKED)
    monkeypatch.setattr(background, "begin", lambda *_: None)
    monkeypatch.setattr(program_home, "flavours_of", lambda *_: [BASELINE])
    # a process that prepares would begin the one that removes this code
    prepare_on_own_thread(PythonLanguage(), BASELINE, lambda _: None)
    monkeypatch.setattr(fork_server, "_prepare", lambda *_: None)
    baseline = outputs(tmp_path / "baseline", BASELINE, "tests.soak.baseline_workers")
    assert compiled == baseline


def test_a_first_worker_begins_soon_and_its_session_moves_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path / "cache")
    monkeypatch.setenv("WASM_KERNEL_CACHE", str(cache.folder))
    monkeypatch.delenv(BASELINE_SETTING, raising=False)
    with Service(tmp_path / "sessions") as service, service.create() as sandbox:
        assert sandbox.execute("x = 1; squares = (i * i for i in range(9999))").success
        assert sandbox.execute("f = open('f', 'w')").success
        worker = sandbox.worker.worker
        assert worker is not None
        assert code_of(worker.process) == "unchecked-baseline"
        wait_for(lambda: background.running(cache))
        process = background.running(cache)
        assert os.getpriority(os.PRIO_PROCESS, process) == 19
        assert os.getsid(process) == process
        os.kill(process, signal.SIGTERM)
        wait_for(lambda: background.running(cache) != process)
        background.begin(cache)
        until = time.monotonic() + 1200
        while code_of(worker.process) != "unchecked" and time.monotonic() < until:
            time.sleep(1)
            assert sandbox.execute("x += 1; last = next(squares); f.write('x')").success
        assert sandbox.worker.worker is worker
        ends = "f.close(); print(last == (x - 2) ** 2, len(open('f').read()) == x - 1)"
        assert sandbox.execute(ends).stdout == "True True\n"
        with service.create() as other:
            assert other.execute("1").success
            assert other.worker.worker is not None
            assert code_of(other.worker.worker.process) == "unchecked"


def code_of(process: int) -> str:
    """The flavour of the newest compiled code that a process has in memory."""
    return min(codes_of(process))


def codes_of(process: int) -> set[str]:
    """The flavours of the compiled code that a process has in memory."""
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    found = {Path(line.split()[5]).name.partition("-")[2] for line in lines if ".cwasm" in line}
    return {name.removesuffix(".cwasm") for name in found}
