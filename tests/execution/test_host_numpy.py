"""Matrix products and sorts of cells by the host's numpy, and without it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from tests.faces import says
from tests.local import Inside, LocalSandbox, create_sandbox
from wasm_kernel.engine.instance import Instance
from wasm_kernel.policy import ExecutionPolicy

MAKE = """
import numpy as np, zlib
def matrices(n, kind="f8"):
    draw = np.random.default_rng(n)
    return draw.random((n, n)).astype(kind), draw.random((n, n)).astype(kind)
def digest(array):
    return zlib.crc32(np.ascontiguousarray(array).tobytes())
"""


@pytest.fixture(scope="module")
def module_sandbox(warm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSandbox]:
    with create_sandbox(workspace=tmp_path_factory.mktemp("app")) as made:
        yield made


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The fuel of each piece that the host computed for a guest."""
    counted: list[int] = []
    count_work = Instance.count_work

    def counting(instance: Instance, fuel: int) -> bool:
        counted.append(fuel)
        return count_work(instance, fuel)

    monkeypatch.setattr(Instance, "count_work", counting)
    return counted


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
def test_the_host_gives_its_own_bits(
    module_sandbox: LocalSandbox, pieces: list[int], expression: str
) -> None:
    space: dict[str, object] = {}
    exec(MAKE, space)
    with threadpool_limits(1):
        expected = eval(expression, space)
    assert says(module_sandbox, f"{MAKE}\nprint({expression})") == str(expected)
    assert pieces


def test_a_program_beside_the_guest_chooses_its_own_number_of_threads(
    module_sandbox: LocalSandbox, pieces: list[int]
) -> None:
    before = [each["num_threads"] for each in threadpool_info()]
    assert module_sandbox.execute(f"{MAKE}\nnp.matmul(*matrices(100))").success
    assert pieces
    assert [each["num_threads"] for each in threadpool_info()] == before
    with threadpool_limits(1):
        assert {each["num_threads"] for each in threadpool_info()} == {1}


def test_small_work_is_not_for_the_host(module_sandbox: LocalSandbox, pieces: list[int]) -> None:
    code = f"{MAKE}\na, b = matrices(64)\na @ b, a @ a.T, np.sort(a.ravel()), a.argsort(axis=None)"
    assert module_sandbox.execute(code).success
    assert pieces == []


def test_without_numpy_on_the_host_the_guest_computes_by_itself(
    inside: Inside, pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    code = f"""{MAKE}
a, b = matrices(100)
print(np.allclose(a @ b, np.einsum("ij,jk", a, b)), (np.diff(np.sort(a.ravel())) >= 0).all())"""
    assert says(inside(), code) == "True True"
    assert pieces == []


def test_an_undo_takes_back_what_the_host_wrote(inside: Inside, pieces: list[int]) -> None:
    sandbox = inside()
    setup = "a, b = matrices(300); c = np.zeros((300, 300)); s = np.arange(9000.0)[::-1].copy()"
    assert sandbox.execute(f"{MAKE}\n{setup}").success
    assert sandbox.execute("np.matmul(a, b, out=c); s.sort()").success
    assert says(sandbox, "print(c.min() > 0, s[0])") == "True 0.0"
    assert len(pieces) == 2
    sandbox.undo(2)
    assert says(sandbox, "print(c.any(), s[0])") == "False 8999.0"


def test_a_deadline_breaks_a_product_off(inside: Inside, pieces: list[int]) -> None:
    sandbox = inside()
    assert sandbox.execute(f"{MAKE}\na, b = np.ones((2, 4000, 4000), 'f4')\nkept = 5").success
    error = sandbox.execute("a @ b", timeout_seconds=0.3).error
    assert error is not None and error.ename == "CellTimeout"
    assert sum(pieces) < 4 * 4000**3  # a fast machine does it in a second
    assert says(sandbox, "print(kept)") == "5"


def test_an_interrupt_lets_the_product_finish(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = inside(policy=ExecutionPolicy(grace_seconds=60.0))
    code = f"{MAKE}\na, b = np.ones((2, 1000, 1000), 'f4')\nc = np.zeros((1000, 1000), 'f4')"
    assert sandbox.execute(code).success
    count_work = Instance.count_work

    def interrupting(instance: Instance, fuel: int) -> bool:
        sandbox.interrupt()
        return count_work(instance, fuel)

    with monkeypatch.context() as patch:
        patch.setattr(Instance, "count_work", interrupting)
        error = sandbox.execute("np.matmul(a, b, out=c)\nwhile True: pass").error
    assert error is not None and error.ename == "KeyboardInterrupt"
    assert says(sandbox, "print((c == 1000).all())") == "True"


def test_what_the_host_computes_burns_fuel(
    warm_metered: None, inside: Inside, pieces: list[int]
) -> None:
    sandbox = inside(policy=ExecutionPolicy(fuel_budget=20_000_000_000))
    assert sandbox.execute(f"{MAKE}\na, b = np.ones((2, 1000, 1000), 'f4')").success
    consumed = sandbox.execute("np.matmul(a, b)\nNone").fuel_consumed
    assert consumed is not None and sum(pieces) == 4 * 1000**3 <= consumed < 4.1 * 1000**3
    error = sandbox.execute("%limit fuel=5e8\na @ b").error
    assert error is not None and error.ename == "OutOfFuel"
    assert says(sandbox, "print(int(a.sum()))") == "1000000"
