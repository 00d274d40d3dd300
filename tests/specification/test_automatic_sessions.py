"""Capability: automatic sessions. The scenarios that hold without an MCP server.

The others come with the server.
"""

from __future__ import annotations

import pytest

from tests.specification.conftest import Getting
from wasm_kernel import ExecutionPolicy


def test_session_persistence(get: Getting) -> None:
    sandbox = get()
    sandbox.execute("import math; x = 6")
    assert sandbox.execute("print(math.factorial(x))").stdout == "720\n"
    sandbox.close()
    assert get().execute("print(math.factorial(x + 1))").stdout == "5040\n"


def test_memory_limits(get: Getting) -> None:
    sandbox = get(policy=ExecutionPolicy(memory_bytes=600 * 1024 * 1024))
    sandbox.execute("x = 1")
    for code in ("y = bytearray(10**9)", "y = []\nwhile True: y.append(bytearray(10**7))"):
        refused = sandbox.execute(code)
        assert not refused.success
        assert refused.error is not None
        assert refused.error.ename == "MemoryError"
        assert refused.memory_used_bytes <= 600 * 1024 * 1024
    assert sandbox.execute("del y\nprint(x)").stdout == "1\n"


@pytest.mark.parametrize("code", ["while True: x += 1", "x = sum(range(10**12))"])
def test_fuel_budget_enforcement(get: Getting, warm_metered: None, code: str) -> None:
    sandbox = get(policy=ExecutionPolicy(fuel_budget=2_000_000_000))
    sandbox.execute("x = 41")
    stopped = sandbox.execute(code)
    assert stopped.error is not None
    assert stopped.error.ename == "OutOfFuel"
    assert sandbox.execute("x += 1; print(x)").stdout == "42\n"
