"""Matrix products and sorts of cells by the host's numpy, and without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from threadpoolctl import threadpool_limits

from tests.execution.conftest import Opening
from tests.faces import says
from tests.faults import Does, Faults
from wasm_kernel import Sandbox

FAULTS = (
    "wasm_kernel.engine.instance:Instance.count_work",
    "wasm_kernel.guests.python.host_numpy:_import_numpy",
)
pytestmark = pytest.mark.usefixtures("faults")

Pieces = Callable[[], int]
MAKE = """
import numpy as np, zlib
def matrices(n, kind="f8"):
    draw = np.random.default_rng(n)
    return draw.random((n, n)).astype(kind), draw.random((n, n)).astype(kind)
def digest(array):
    return zlib.crc32(np.ascontiguousarray(array).tobytes())
"""


@pytest.fixture
def pieces(faults: Faults) -> Pieces:
    """Counts the pieces that the host computes for guests during a test."""
    before = faults["Instance.count_work"].calls
    return lambda: faults["Instance.count_work"].calls - before


@pytest.mark.parametrize(
    "expression",
    [
        "digest(np.matmul(*matrices(300)))",
        "digest(np.matmul(*matrices(200, 'f4')))",
        "digest(matrices(100)[0].T @ matrices(100)[1])",
        "(lambda a: np.allclose(a @ a.T, a @ a.T.copy()))(matrices(300)[0])",
        "digest(np.sort(matrices(100)[0], axis=None))",
        "digest(np.argsort(matrices(100, 'f4')[0].ravel(), kind='stable').astype('i8'))",
        "digest(np.sort((matrices(100)[0] * 1000).astype('i8').ravel()))",
    ],
)
def test_host_gives_its_own_bits(module_sandbox: Sandbox, pieces: Pieces, expression: str) -> None:
    space: dict[str, object] = {}
    exec(MAKE, space)
    with threadpool_limits(1):
        expected = eval(expression, space)
    assert says(module_sandbox, f"{MAKE}\nprint({expression})") == str(expected)
    assert pieces()


def test_without_numpy_on_the_host_the_guest_computes_by_itself(
    opened: Opening, pieces: Pieces, faults: Faults
) -> None:
    code = f"""{MAKE}
a, b = matrices(100)
print(np.allclose(a @ b, np.einsum("ij,jk", a, b)), (np.diff(np.sort(a.ravel())) >= 0).all())"""
    with faults["_import_numpy"].on(Does.RETURN_NONE):
        assert says(opened(), code) == "True True"
    assert pieces() == 0


def test_an_undo_takes_back_what_the_host_wrote(opened: Opening, pieces: Pieces) -> None:
    sandbox = opened()
    setup = "a, b = matrices(300); c = np.zeros((300, 300)); s = np.arange(9000.0)[::-1].copy()"
    assert sandbox.execute(f"{MAKE}\n{setup}").success
    assert sandbox.execute("np.matmul(a, b, out=c); s.sort()").success
    assert says(sandbox, "print(c.min() > 0, s[0])") == "True 0.0"
    assert pieces() == 2
    sandbox.undo(2)
    assert says(sandbox, "print(c.any(), s[0])") == "False 8999.0"


def test_a_deadline_breaks_a_product_off(warm_metered: None, opened: Opening) -> None:
    sandbox = opened(fuel_budget=10**13)
    assert sandbox.execute(f"{MAKE}\na, b = np.ones((2, 4000, 4000), 'f4')\nkept = 5").success
    result = sandbox.execute("a @ b", timeout_seconds=0.3)
    assert result.error is not None and result.error.ename == "CellTimeout"
    assert 0 < (result.fuel_consumed or 0) < 4 * 4000**3  # a fast machine does it in a second
    assert says(sandbox, "print(kept)") == "5"


def test_an_interrupt_lets_the_product_finish(opened: Opening, faults: Faults) -> None:
    sandbox = opened(grace_seconds=60.0)
    code = f"{MAKE}\na, b = np.ones((2, 1000, 1000), 'f4')\nc = np.zeros((1000, 1000), 'f4')"
    assert sandbox.execute(code).success
    with faults["Instance.count_work"].held() as wait_for_piece:
        cell = sandbox.submit("np.matmul(a, b, out=c)\nwhile True: pass")
        wait_for_piece()
        sandbox.interrupt()
    error = cell.result().error
    assert error is not None and error.ename == "KeyboardInterrupt"
    assert says(sandbox, "print((c == 1000).all())") == "True"


def test_work_of_the_host_burns_fuel(warm_metered: None, opened: Opening) -> None:
    sandbox = opened(fuel_budget=20_000_000_000)
    assert sandbox.execute(f"{MAKE}\na, b = np.ones((2, 1000, 1000), 'f4')").success
    consumed = sandbox.execute("np.matmul(a, b)\nNone").fuel_consumed
    assert consumed is not None and 4 * 1000**3 <= consumed < 4.1 * 1000**3
    error = sandbox.execute("%limit fuel=5e8\na @ b").error
    assert error is not None and error.ename == "OutOfFuel"
    assert says(sandbox, "print(int(a.sum()))") == "1000000"
