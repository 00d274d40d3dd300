"""The notice that integers have 32 bits: once, and when it first matters."""

from __future__ import annotations

import pytest

from tests.faces import put_back
from wasm_kernel import BaseSandbox

NOTICE = "32 bits here"
IMPORT = "import numpy as np, pandas as pd\n"


NEAR = [
    "a = np.arange(70_000) ** 2",
    "total = np.arange(70_000).sum()",
    "np.array([2**31 - 1]) + 1",
    "a = np.full((300, 400), 50_000)\nb = (a * a).T",
    "a = np.arange(100_000).cumsum()[::-1]",
    "ids = np.array([20_000_000, 30_000_000])",
    "s = pd.Series([3_000_000, 1]).astype(int) * 10",
    "t = pd.DataFrame({'a': [1, 100_000]}).astype(int) ** 2",
]
FAR = [
    "a = np.arange(1000); a.sum()",
    "t = pd.DataFrame({'a': [2**40, 2]}); t.sum()",
    "b = np.arange(70_000, dtype=np.int64) ** 2",
    "c = np.array([2**40]); x = np.random.rand(3) * 1e12",
    "d = np.array([], dtype=int); e = 2**31 - 1",
    "f = np.full(3, 2**31 - 1, dtype='int32')",
]


def test_numbers_that_have_wrapped_around_or_soon_may_are_noticed_once(
    module_sandbox: BaseSandbox,
) -> None:
    for code in NEAR:
        put_back(module_sandbox)
        assert NOTICE in module_sandbox.execute(IMPORT + code).stderr, code
        assert NOTICE not in module_sandbox.execute(code).stderr, code


def test_what_is_far_from_the_limit_or_asked_for_is_not(module_sandbox: BaseSandbox) -> None:
    for code in FAR:
        put_back(module_sandbox)
        assert module_sandbox.execute(IMPORT + code).stderr == "", code


def test_what_changed_in_place_is_looked_at_again(sandbox: BaseSandbox) -> None:
    assert NOTICE not in sandbox.execute(IMPORT + "a = np.arange(70_000)").stderr
    assert NOTICE not in sandbox.execute("1 + 1").stderr
    assert NOTICE in sandbox.execute("a *= a").stderr


@pytest.mark.parametrize("code", ["np.arange(3) * 10**10", "np.random.randint(0, 10**10)"])
def test_an_error_about_large_integers_says_what_to_ask_for(
    module_sandbox: BaseSandbox, code: str
) -> None:
    error = module_sandbox.execute(f"import numpy as np\n{code}").error
    assert error is not None
    assert "dtype=np.int64" in "\n".join(error.traceback)
