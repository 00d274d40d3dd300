"""Numbers as native CPython gives them on x86-64, and what is said where they stay narrower."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faces import put_back, says
from tests.local import LocalSandbox

RECORDED = Path(__file__).with_name("native_numbers.txt")
"""Expressions, and what CPython gave on x86-64 with the guest's versions of numpy and pandas."""
SHOW = """
import io, warnings, numpy as np, pandas as pd

warnings.simplefilter("ignore")
x8, x32 = np.array([100] * 3, dtype=np.int8), np.array([2**30] * 4, dtype=np.int32)
u8, u32 = np.array([200] * 3, dtype=np.uint8), np.array([2**31] * 4, dtype=np.uint32)
b, f = np.array([True, True, False]), np.array([3.0, 1.0, 2.0, 1.0])
i64 = np.array([2, 0, 1], dtype=np.int64)
df = pd.DataFrame({"k": list("abab"), "v": [1, 2, 3, 4], "w": [1.5, 2, 3, 4]})

def show(v):
    if isinstance(v, np.ndarray): return f"{v.dtype.name}{v.shape} {v.ravel()[:8].tolist()}"
    if isinstance(v, np.generic): return f"{v.dtype.name} {v!s}"
    if isinstance(v, np.dtype): return f"dtype {v.name}"
    if isinstance(v, pd.DataFrame):
        types = {str(k): str(d) for k, d in v.dtypes.items()}
        return f"DF {types} idx {v.index.dtype} {v.to_numpy().ravel()[:6].tolist()}"
    if isinstance(v, (pd.Series, pd.Index)):
        index = f" idx {v.index.dtype}" if isinstance(v, pd.Series) else ""
        return f"{type(v).__name__} {v.dtype} {v.tolist()[:8]}{index}"
    if isinstance(v, tuple): return "(" + ", ".join(map(show, v)) + ")"
    if isinstance(v, type): return v.__name__
    return repr(v)

def shown(text):
    try: return show(eval(text)).replace("\\n", " ")
    except Exception as problem: return repr(problem)
"""
IMPORT = "import numpy as np, pandas as pd\n"
NOTICE = "have 32 bits here"
NEAR = [
    "a = np.flatnonzero(np.ones(100_000))\nb = a * a",
    "n = np.bincount([1] * 3) * 10**9",
    "s = pd.Series(np.argsort(np.arange(70_000))) ** 2",
]
FAR = [
    "a = np.arange(70_000) ** 2; total = np.arange(100_000).sum()",
    "a = np.argsort([3, 1, 2]); b = a * 1000",
    "p = np.argsort(np.arange(70_000)).astype(int) ** 2",
    "i = np.full(3, 2**31 - 1, dtype='int32'); j = np.where(i)",
]


PRODUCTS = """
import numpy as np

draw = np.random.default_rng(1)
def whole(*shape): return draw.integers(-9, 9, shape)
wrong = []
long = [(900, 5, 9), (9, 900, 9), (5, 9, 900)]  # taken in several blocks, whole ones of columns
for m, n, k in [*draw.integers(1, 21, (200, 3)), *long]:
    a, b = whole(m, k), whole(k, n)
    for kind in ("f8", "f4"):
        if (a.astype(kind) @ b.astype(kind) != a @ b).any():
            wrong.append((kind, m, n, k))
for n in range(1, 60, 7):  # here products are taken off what is there
    a, x = draw.random((n, n)) + n * np.eye(n), draw.random((n, n))
    if not np.allclose(np.linalg.solve(a, a @ x), x):
        wrong.append(n)
print(wrong)
"""


def test_products_of_every_shape_are_right(module_sandbox: LocalSandbox) -> None:
    """Whole numbers, which floats add up without error; numpy multiplies integers by itself."""
    assert says(module_sandbox, PRODUCTS) == "[]"


def test_numbers_are_those_of_native_python(module_sandbox: LocalSandbox) -> None:
    rows = [line.split("\t") for line in RECORDED.read_text().splitlines()]
    cell = f"{SHOW}\nimport json\nprint(json.dumps([shown(t) for t in {[r[0] for r in rows]}]))"
    result = put_back(module_sandbox).execute(cell)
    assert result.success, result.error
    found = zip(rows, json.loads(result.stdout), strict=True)
    assert [(*row, shown) for row, shown in found if row[1] != shown] == []


def test_what_is_computed_from_positions_is_told_once_when_it_is_large(
    module_sandbox: LocalSandbox,
) -> None:
    for code in NEAR:
        put_back(module_sandbox)
        assert NOTICE in module_sandbox.execute(IMPORT + code).stderr, code
        assert NOTICE not in module_sandbox.execute(code).stderr, code


def test_other_numbers_are_not_spoken_of(module_sandbox: LocalSandbox) -> None:
    for code in FAR:
        put_back(module_sandbox)
        assert module_sandbox.execute(IMPORT + code).stderr == "", code


def test_who_works_with_32_bits_hears_nothing(sandbox: LocalSandbox) -> None:
    sandbox.execute(IMPORT + "a = np.full(3, 2**30).astype('int32')")
    assert sandbox.execute("b = a + 0; c = np.where(b)").stderr == ""


def test_positions_of_an_earlier_cell_count(sandbox: LocalSandbox) -> None:
    assert sandbox.execute(IMPORT + "a = np.flatnonzero(np.ones(100_000))").stderr == ""
    assert NOTICE in sandbox.execute("a *= a").stderr


RELYING = [
    "with np.errstate(divide='raise'): np.ones(1) / 0",
    "np.seterr(all='raise'); np.ones(1) / 0",
    "np.seterr('raise')",
]
NOT_RELYING = [
    "with np.errstate(all='ignore'): np.ones(1) / 0",
    "old = np.seterr(all='ignore'); print(np.ones(1) / 0, np.seterr(**old)['divide'])",
    "exec(\"with np.errstate(all='raise'): pass\", {'__name__': 'a_library', 'np': np})",
]


def test_who_asks_numpy_for_errors_hears_once_that_there_are_none(
    module_sandbox: LocalSandbox,
) -> None:
    for code in RELYING:
        put_back(module_sandbox)
        said = module_sandbox.execute(IMPORT + code).stderr
        assert "'raise' has no effect" in said, code
        assert module_sandbox.execute(code).stderr == "", code
    for code in NOT_RELYING:
        put_back(module_sandbox)
        assert module_sandbox.execute(IMPORT + code).stderr == "", code


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("np.argsort([2, 1]) * 10**10", "positions.astype(int)"),
        ("pd._libs.lib.maybe_indices_to_slice(np.arange(3), 9)", "array.astype(np.intp)"),
    ],
)
def test_an_error_about_the_width_of_positions_says_what_to_do(
    module_sandbox: LocalSandbox, code: str, remedy: str
) -> None:
    error = put_back(module_sandbox).execute(IMPORT + code).error
    assert error is not None
    assert remedy in "\n".join(error.traceback)


def test_columns_that_are_added_are_found(module_sandbox: LocalSandbox) -> None:
    """A frame's own positions stay positions, which pandas' compiled code asks for."""
    frame = (
        "t = pd.DataFrame({'a': [1, 2]}); t['b'] = 1.5; t.insert(0, 'c', 'x'); t.insert(1, 'd', 2)"
    )
    result = put_back(module_sandbox).execute(
        f"{IMPORT}{frame}\nprint(list(t[['b', 'a', 'd']].take([1])))"
    )
    assert result.stdout == "['b', 'a', 'd']\n", result.error


def test_scikit_learn_samples_as_natively(module_sandbox: LocalSandbox) -> None:
    """Its own compiled code takes `dtype=int` for an array of `long`: not so here."""
    cell = (
        "from sklearn.utils.random import sample_without_replacement as sample\n"
        "for method in ('auto', 'tracking_selection', 'reservoir_sampling', 'pool'):\n"
        "    drawn = sample(1000, 5, method=method, random_state=3)\n"
        "    print(drawn.dtype, drawn.tolist())"
    )
    assert put_back(module_sandbox).execute(cell).stdout.splitlines() == [
        "int64 [874, 664, 249, 643, 952]",
        "int64 [874, 664, 249, 643, 952]",
        "int64 [831, 341, 115, 348, 271]",
        "int64 [874, 664, 249, 643, 952]",
    ]


def test_scipy_takes_peaks_as_natively(module_sandbox: LocalSandbox) -> None:
    cell = "from scipy.signal import peak_widths\nprint(peak_widths([0, 1, 0, 2, 0], [1, 3])[0])"
    assert put_back(module_sandbox).execute(cell).stdout == "[1. 1.]\n"
