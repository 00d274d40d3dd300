"""Numbers are those of native CPython on x86-64; a number that does not fit raises an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faces import put_back, says
from tests.numbers import shown
from tests.numbers.expressions import DIFFERENT, GRID, LIBRARIES, OTHERS, SETUP, SINGLE
from tests.numbers.record import as_recorded, on_one_line, recorded
from wasm_kernel import BaseSandbox

RECORDED = Path(__file__).with_name("native_numbers.txt")
"""Expressions and their values in CPython on x86-64, with the guest's numpy and pandas."""
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


def test_numbers_products_and_quotients_are_as_natively(module_sandbox: BaseSandbox) -> None:
    """The whole numbers in them are exact as floats; numpy multiplies integers by itself."""
    assert says(module_sandbox, PRODUCTS) == "[]"
    assert says(put_back(module_sandbox), QUOTIENTS) == "[]"
    assert says(put_back(module_sandbox), WHERE) == "[] [] []"
    rows = [line.split("\t") for line in RECORDED.read_text().splitlines()]
    cell = f"{SHOW}\nimport json\nprint(json.dumps([shown(t) for t in {[r[0] for r in rows]}]))"
    result = put_back(module_sandbox).execute(cell)
    assert result.success, result.error
    found = zip(rows, json.loads(result.stdout), strict=True)
    assert [(*row, shown) for row, shown in found if row[1] != shown] == []


@pytest.mark.soak
def test_all_expressions_give_what_the_machine_gives(sandbox: BaseSandbox) -> None:
    assert other_numbers(sandbox, [*GRID, *SINGLE, *OTHERS], SETUP, LIBRARIES) == []


def other_numbers(
    sandbox: BaseSandbox, expressions: list[str], *setup: str
) -> list[tuple[str, tuple[str, str], tuple[str, str]]]:
    """The expressions whose types or values differ from the recorded ones."""
    source = Path(shown.__file__).read_text().partition("if __name__")[0]
    source = source.replace("from __future__ import annotations", "")
    asked = f"{source}\nimport json\nprint(json.dumps(shown_all({expressions!r}, *{setup!r})))"
    answers = json.loads(says(put_back(sandbox), asked))
    native = recorded()
    found = (
        (text, native[on_one_line(text)], as_recorded(*answer))
        for text, answer in zip(expressions, answers, strict=True)
    )
    return [row for row in found if row[1] != row[2] and row[0] not in DIFFERENT]


ERRORS_OF_FLOATS = {
    "np.sqrt(-1.0)": "invalid value encountered in sqrt",
    "np.log(np.array([0.0, 1.0]))": "divide by zero encountered in log",
    "np.array([1.0, 2.0]) / 0": "divide by zero encountered in divide",
    "np.array([1.0], 'f4') / np.float32(0)": "divide by zero encountered in divide",
    "np.array([1e300]) / 1e-300": "overflow encountered in divide",
    "np.exp(np.full(3000, 1000.0))": "overflow encountered in exp",
    "np.log2(np.full((3000, 2), -1.0)[:, 0])": "invalid value encountered in log2",
    "np.array([np.nan]).astype(int)": "invalid value encountered in cast",
    "(lambda a: np.divide(a, a, out=a))(np.zeros((9, 9)).T)": "invalid value encountered in divide",
    "(lambda a: np.log(a, out=a))(np.zeros(9000)[::3])": "divide by zero encountered in log",
    "(lambda a: np.exp(a, out=a))(np.full(3000, 1000, 'f4'))": "overflow encountered in exp",
    "np.float64(1e308) * 10": "overflow encountered in scalar multiply",
    "np.float64(np.inf) - np.float64(np.inf)": "invalid value encountered in scalar subtract",
    "np.int64(1) / 0": "divide by zero encountered in scalar divide",
}
NO_ERRORS_OF_FLOATS = [
    "np.sqrt(np.array([1.0, np.nan, np.inf]))",
    "np.array([1.0, np.nan, np.inf]) / 2",
    "np.array([np.inf]) * 2",
    "np.exp(np.linspace(-700, 700, 5000))",
    "np.array([1.5, -1.5]).astype('u1')",
    "pd.Series([1, 0]) / 0",
    "np.array([np.inf, 0.0]).__itruediv__(2)",
    "np.float64(np.inf) - 1",
    "np.float64(-7) // 2",
    "np.divide.reduce([8.0, 2.0])",
]


def test_numpy_warns_of_errors_of_floats_or_raises_them(module_sandbox: BaseSandbox) -> None:
    """The messages are those of CPython on x86-64."""
    cell = (
        "import warnings, numpy as np, pandas as pd\n"
        "def heard(text):\n"
        "    with warnings.catch_warnings(record=True) as all:\n"
        "        warnings.simplefilter('always')\n"
        "        eval(text)\n"
        "    return [str(each.message) for each in all]\n"
        f"print([heard(text) for text in {[*ERRORS_OF_FLOATS, *NO_ERRORS_OF_FLOATS]}])"
    )
    expected = [[text] for text in ERRORS_OF_FLOATS.values()] + [[]] * len(NO_ERRORS_OF_FLOATS)
    assert says(put_back(module_sandbox), cell) == str(expected)
    error = (
        put_back(module_sandbox)
        .execute(f"{IMPORT}with np.errstate(all='raise'): np.log(np.zeros(3))")
        .error
    )
    assert error is not None
    assert (error.ename, error.evalue) == (
        "FloatingPointError",
        "divide by zero encountered in log",
    )


QUOTIENTS = """
import itertools, math, numpy as np

draw = np.random.default_rng(1)
wrong = []
for n in [*range(1, 20), 1023, 1025, 1031, 2049]:
    for kind in (np.float64, np.float32):
        a, b = (draw.random((2, 2 * n)) + 1).astype(kind)
        few = a[:n], b[:n]
        for x, y in few, (a[::2], b[:n]), (a[:n], b[:n][::-1]), (few[0], b[:1]), (a[:1], few[1]):
            exact = [float(kind(float(p) / float(q))) for p, q in np.broadcast(x, y)]
            held = np.broadcast_to(x, n).copy()
            held /= y
            if (x / y).tolist() != exact or held.tolist() != exact:
                wrong.append((n, kind))
            if np.sqrt(x).tolist() != [float(kind(math.sqrt(p))) for p in x]:
                wrong.append((n, kind, "sqrt"))
        exact = list(itertools.accumulate(few[0], lambda p, q: p / q))
        if np.divide.accumulate(few[0]).tolist() != exact:
            wrong.append((n, kind, "accumulate"))
print(wrong)
"""


WHERE = """
import warnings, numpy as np

def heard(a, b):
    with warnings.catch_warnings(record=True) as all:
        warnings.simplefilter("always")
        np.divide(a, b, out=a)
    return [str(each.message).split()[0] for each in all]

unheard = []
for n in (5, 1024, 2051):
    for at in {0, 3, 4, n // 2, n - 1}:
        for top, error in (1.0, "divide"), (0.0, "invalid"):
            a, b = np.full(n, top), np.full(n, 7)
            b[at] = 0
            unheard += [] if heard(a, b) == [error] else [(n, at, error)]
print(unheard, heard(np.full(99, 1e308), 2), heard(np.full(99, np.inf), 2))
"""


def test_pandas_warns_of_the_line_of_the_cell(module_sandbox: BaseSandbox) -> None:
    """Most warnings of pandas are shown only if they are about a cell."""
    cell = """
import warnings, pandas as pd

with warnings.catch_warnings(record=True) as all:
    warnings.simplefilter("always")
    pd.api.types.pandas_dtype(pd.CategoricalDtype)
    pd.Series(pd.Categorical(["a"])).astype(pd.CategoricalDtype(["b"]))
print([(each.filename.startswith("/tmp/ipykernel_"), each.lineno) for each in all])
"""
    assert says(put_back(module_sandbox), cell) == "[(True, 5), (True, 6)]"


LIMITATIONS = Path(__file__).parents[2] / "docs" / "limitations.md"
HEARD = """
import sys, warnings, numpy as np

def heard(code):
    with warnings.catch_warnings(record=True) as all:
        warnings.simplefilter("always")
        exec(code)
    return [str(each.message) for each in all]

def given(text):
    try: return repr(eval(text))
    except Exception as problem: return type(problem).__name__
"""


def test_the_table_of_what_differs_is_true_and_errors_help(module_sandbox: BaseSandbox) -> None:
    section = LIMITATIONS.read_text().partition("## What differs from x86-64")[2]
    rows = [line.split(" | ") for line in section.partition("\n## ")[0].splitlines()]
    table = [[cell.strip("`| ") for cell in row[1:]] for row in rows if len(row) == 4][1:]
    examples = [row[0] for row in table]
    cell = f"{HEARD}\nimport json\nprint(json.dumps([given(text) for text in {examples}]))"
    answers = json.loads(says(put_back(module_sandbox), cell))
    assert len(examples) > 15
    assert answers == [row[1] for row in table]
    assert [row for row in table if row[1] == row[2]] == []
    told = {code: module_sandbox.execute(IMPORT + code).error for code in WIDTHS}
    texts = {code: "\n".join(error.traceback) if error else "" for code, error in told.items()}
    assert {code: text for code, text in texts.items() if WIDTHS[code] not in text} == {}


WIDE = "array.astype(np.int64)"
WIDTHS = {
    "a = np.argsort([2, 1]); a *= 2**31": WIDE,
    "np.argsort([2, 1])[0:1] = np.int64(2**40)": WIDE,
    "a = np.argsort([2, 1]); np.add.at(a, 0, 2**40)": WIDE,
    "np.array([2**32]).astype(np.intp)": WIDE,
    "np.array([3e9]).astype(np.intp)": WIDE,
    "np.array([2**40], 'm8[s]').astype(np.intp)": WIDE,
    "np.array([2**40 + 1j]).astype(np.intp)": WIDE,
    "np.dot([2**31], [[1]], out=np.zeros(1, np.intp))": WIDE,
    "np.copyto(np.argsort([1]), np.int64(2**40), 'safe')": WIDE,
    "np.einsum('i->', [2**40] * 9000, out=np.array(0, np.intp))": WIDE,
    "from scipy.special import lambertw; lambertw(1, 2**32)": WIDE,
    "np.array([1.5]).astype(np.intp, casting='same_value')": "could not cast 'same_value'",
    "np.dot([1], [[1]], out=np.zeros(2, np.intp))": "output array is not acceptable",
    "np.copyto(np.argsort([1]), 1.5, 'safe')": "according to the rule 'safe'",
    "from scipy.special import eval_hermite; eval_hermite(1.5, 1.0)": "'same_kind'",
    "np.zeros(3)[np.array([2**32])]": "it is out of bounds",
    "np.zeros(3).take(np.array([2**32]))": "it is out of bounds",
}


def test_results_are_put_into_positions(module_sandbox: BaseSandbox) -> None:
    cell = (
        "import numpy as np; held = np.argsort([2, 1, 0])\n"
        "print([f(held.copy()).tolist() for f in (\n"
        "    lambda a: np.einsum('i,i->i', a, a, out=a),\n"
        "    lambda a: np.einsum('i,ij->j', held, np.eye(3, dtype=int), out=a, optimize=True),\n"
        "    lambda a: np.add(a, 1, out=a),\n"
        "    lambda a: np.cumsum(a, out=a),\n"
        "    lambda a: np.eye(3, dtype=int).dot(held, out=a),\n"
        "    lambda a: np.random.default_rng(0).permuted(np.arange(3), out=a),\n"
        ")])"
    )
    assert says(put_back(module_sandbox), cell) == (
        "[[4, 1, 0], [2, 1, 0], [3, 2, 1], [2, 3, 3], [2, 1, 0], [2, 0, 1]]"
    )


def test_extremes_of_positions_are_those_of_int64(module_sandbox: BaseSandbox) -> None:
    cell = """
import numpy as np
positions = np.argsort([[2, 1, 0], [3, 1, 2]]) + 0
positions = positions.astype(np.intp)
swapped = positions.astype(np.dtype(np.intp).newbyteorder())
for held in positions, positions[:, 1:], swapped, positions[:0, 0]:
    for found in (
        lambda: held.max(), lambda: held.min(axis=1), lambda: held.min(initial=-5),
        lambda: held.max(where=held < 2, initial=0), lambda: held.max(keepdims=True),
    ):
        try: print(found().dtype, found().tolist(), end="; ")
        except ValueError: print("no identity", end="; ")
    print()
"""
    full = "int64 2; int64 [0, 0]; int64 -5; int64 1; int64 [[2]];"
    empty = "no identity; no identity; int64 -5; int64 0; no identity;"
    found = says(put_back(module_sandbox), cell).splitlines()
    assert [line.strip() for line in found] == [full, full, full, empty]


USES_OF_INDEXES = """
ones[x]
square[x, x]
square[x[:, None], [0, 1]]
objects[x]
ones.flat[x]
ones.take(x)
ones.put(x, 1)
ones.__setitem__(x, 1)
square.__setitem__((x, x), 1)
positions.__setitem__(np.arange(len(x)) % 3, x)
ones.flat.__setitem__(x, 1)
np.choose(x, [1, 2])
np.insert(ones, x, 1)
np.repeat(1, x[x > 1])
np.split(ones, x)[1][5]
np.ravel_multi_index((x, x), (3, 3))
np.unravel_index(x, (3, 3))
np.add.at(ones, x, 1)
np.add.reduceat(ones, x)
np.take_along_axis(ones, x, 0)
np.bincount(x)
np.bincount([1], minlength=x.max())
ones.reshape(x.max(), -1)
square.sum(axis=x.max())
np.partition(ones, x)
np.nditer(x, ['buffered'], op_dtypes=[np.intp], casting='unsafe').__next__()[5]
np.roll(ones, x.max())[5]
pd.Series(ones).iloc[x]
pd.Series(ones).take(x)
pd.Series(ones).iloc.__setitem__(x, 1)
pd.Categorical.from_codes(x, list('ab'))
pd.api.extensions.take(ones, x, allow_fill=True)
sparse.csr_array(square)[x]
sparse.lil_array(square)[x, x]
sparse.lil_array(square).__setitem__((x, 0), 1)
sparse.coo_array((np.ones(len(x)), (x, x)), shape=(3, 3)).toarray()
""".strip().splitlines()
"""Uses of an array of three elements with an index beyond 2**31: errors here and natively."""


def test_an_index_beyond_32_bits_is_an_error(module_sandbox: BaseSandbox) -> None:
    """An index is never cut to its lower half; numpy checks indexes 8,192 at a time."""
    cell = (
        f"{IMPORT}from scipy import sparse\n"
        "wide = [np.array([0] * n + [2**32 + 1] + [1] * n) for n in (0, 9000)]\n"
        "wide += [wide[1].astype(kind) for kind in ('u8', '>i8')]\n"
        "wide += [np.array([0, 2**31 + 1, 0], 'u4'), wide[1].repeat(2)[::2]]\n"
        "def taken(use, x):\n"
        "    ones, square, positions = np.ones(3), np.eye(3), np.argsort([1, 2, 3])\n"
        "    names = {'ones': ones, 'square': square, 'objects': ones.astype(object)}\n"
        "    try: eval(use, globals(), names | {'positions': positions, 'x': x})\n"
        "    except (IndexError, OverflowError, ValueError, TypeError, MemoryError): return False\n"
        "    return True\n"
        f"print([use for use in {USES_OF_INDEXES} for x in wide if taken(use, x)])"
    )
    assert says(put_back(module_sandbox), cell) == "[]"


def test_sparse_positions_and_int32_arrays_are_told_apart(module_sandbox: BaseSandbox) -> None:
    code = """
from scipy.sparse import csr_array
chosen = csr_array(np.full((2, 2), 2**30, np.int32))
positions = csr_array(np.full((2, 2), 2**30, np.intp))
for _ in range(2):
    print((chosen + chosen).dtype, (positions + positions).sum())
"""
    assert says(put_back(module_sandbox), IMPORT + code) == "\n".join(["int32 8589934592"] * 2)
    code = """
from scipy.linalg import qr
made = [pd._libs.algos.ensure_int32(np.array([2, 1])), qr(np.eye(2), pivoting=True)[2]]
print([(each * each).dtype.name for each in made])
"""
    assert says(put_back(module_sandbox), IMPORT + code) == "['int32', 'int32']"


def test_columns_that_are_added_are_found(module_sandbox: BaseSandbox) -> None:
    """A frame's own positions keep their type, which pandas' compiled code expects."""
    frame = (
        "t = pd.DataFrame({'a': [1, 2]}); t['b'] = 1.5; t.insert(0, 'c', 'x'); t.insert(1, 'd', 2)"
    )
    result = put_back(module_sandbox).execute(
        f"{IMPORT}{frame}\nprint(list(t[['b', 'a', 'd']].take([1])))"
    )
    assert result.stdout == "['b', 'a', 'd']\n", result.error


@pytest.mark.soak
def test_scipy_takes_peaks_as_natively(module_sandbox: BaseSandbox) -> None:
    cell = "from scipy.signal import peak_widths\nprint(peak_widths([0, 1, 0, 2, 0], [1, 3])[0])"
    assert module_sandbox.execute(cell).stdout == "[1. 1.]\n"


def test_scipy_takes_orders_squares_and_tables_as_natively(module_sandbox: BaseSandbox) -> None:
    cell = (
        "import numpy as np\n"
        "from scipy.special import eval_hermite, lambertw, spherical_jn\n"
        "found = [lambertw(1).real, *lambertw([2, 2], [0, 1]).real, *spherical_jn([1, 2], 1.5)]\n"
        "print([round(float(each), 6) for each in (*found, eval_hermite(np.int64(3), 0.5))])"
    )
    assert says(module_sandbox, cell) == (
        "[0.567143, 0.852606, -0.83431, 0.396173, 0.127349, -5.0]"
    )
    cell = "import numpy as np, scipy.linalg; a = np.ones((5, 2), 'f4')\n"
    assert says(module_sandbox, f"{cell}scipy.linalg.lstsq(a, a[:, 0]); print(1)") == "1"
    assert says(module_sandbox, "import sys; print(2); sys.stdout.flush()") == "2"
    draw = "from scipy.stats import random_table\nw = [{}, 5]\nx = random_table(w, w).rvs()"
    large = module_sandbox.execute(draw.format(2**31)).error
    assert large is not None
    assert (large.ename, "2147483647" in large.evalue) == ("ValueError", True)
    assert says(module_sandbox, f"{draw.format(2**31 - 6)}\nprint(x.sum())") == "2147483647"
