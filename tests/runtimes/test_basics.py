"""`%%limit`: its line, and the cell without it."""

from __future__ import annotations

import pytest
from IPython.core.error import UsageError
from wasm_kernel_agent.magics.basics import limit_in_place, parse_limits


def test_both_limits_are_read() -> None:
    assert parse_limits("seconds=0.5 fuel=2_000") == {"seconds": 0.5, "fuel": 2000}


@pytest.mark.parametrize(
    "line", ["", "5", "seconds", "seconds=x", "seconds=0", "fuel=-1", "seconds=nan", "memory=1",
             "fuel=1 fuel=2", "seconds=inf"]
)  # fmt: skip
def test_a_wrong_line_is_a_usage_error(line: str) -> None:
    with pytest.raises(UsageError, match="takes seconds"):
        parse_limits(line)


def test_the_cell_stays_in_its_lines() -> None:
    assert limit_in_place(["%%limit seconds=1\n", "x\n"]) == ["%limit seconds=1\n", "x\n"]


def test_a_second_cell_magic_keeps_its_meaning() -> None:
    first, second = limit_in_place(["%%limit seconds=1\n", "%%time\n", "x\n"])
    assert first == "%limit seconds=1\n"
    assert "run_cell_magic('time'" in second
