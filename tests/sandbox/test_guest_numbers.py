"""The notice that integers have 32 bits: once, when it first matters."""

from __future__ import annotations

import pytest

from wasm_kernel import BaseSandbox

NOTICE = "32 bits here"


def test_it_comes_with_the_first_integer_array_and_never_again(sandbox: BaseSandbox) -> None:
    assert NOTICE not in sandbox.execute("import numpy as np, pandas as pd").stderr
    assert NOTICE not in sandbox.execute("table = pd.DataFrame({'a': [1, 2]})").stderr
    assert NOTICE not in sandbox.execute("np.zeros(3), np.int64(5), 7").stderr
    assert NOTICE in sandbox.execute("a = np.arange(3)").stderr
    assert NOTICE not in sandbox.execute("b = np.arange(3)").stderr


@pytest.mark.parametrize("code", ["np.arange(3)", "np.array([1, 2]).sum()"])
def test_a_shown_value_counts(sandbox: BaseSandbox, code: str) -> None:
    assert NOTICE in sandbox.execute(f"import numpy as np\n{code}").stderr


def test_who_asks_for_32_bits_is_not_told(sandbox: BaseSandbox) -> None:
    code = "import numpy as np\na = np.zeros(3, dtype='int32')"
    assert NOTICE not in sandbox.execute(code).stderr


@pytest.mark.parametrize("code", ["np.arange(3) * 10**10", "np.random.randint(0, 10**10)"])
def test_an_error_about_large_integers_says_what_to_ask_for(
    module_sandbox: BaseSandbox, code: str
) -> None:
    error = module_sandbox.execute(f"import numpy as np\n{code}").error
    assert error is not None
    assert "dtype=np.int64" in "\n".join(error.traceback)
