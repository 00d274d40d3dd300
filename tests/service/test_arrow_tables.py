"""DataFrames between cells and the host's functions: what arrives, and what a guest can't have."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.faces import error_of, says
from wasm_kernel import create_sandbox
from wasm_kernel.service.host_function import BoundFunction, HostFunction

pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")

if TYPE_CHECKING:
    from typing import Any as DataFrame
    from typing import Any as Table
else:
    DataFrame, Table = pandas.DataFrame, pyarrow.Table

GIVEN: list[Any] = []


def echo(table: Any) -> Any:
    """Returns the value, and keeps it for the test."""
    GIVEN.append(table)
    return table


def of_arrow(table: Table) -> Any:
    """Returns the table."""
    return echo(table)


def of_pandas(table: DataFrame) -> Any:
    """Returns how many rows there are."""
    return len(echo(table))


@pytest.fixture
def given() -> Iterator[list[Any]]:
    GIVEN.clear()
    yield GIVEN
    GIVEN.clear()


CELL = """
import datetime, decimal, pandas
days = pandas.date_range("2020-01-01", periods=3, tz="Europe/Berlin")
frame = pandas.DataFrame({
    "numbers": [1, 2, 3],
    "texts": ["x", None, ""],
    "kinds": pandas.Categorical(["u", "v", "u"], categories=["v", "u"], ordered=True),
    "days": days,
    "nothing": [None] * 3,
    "lists": [[1], [2, 3], None],
    "masked": pandas.array([1, None, 2**62], dtype="Int64"),
    "dates": [datetime.date(2020, 1, 1)] * 3,
    "dicts": [{"a": 1, "b": "c"}] * 3,
    "bytes": [b"1", b"", None],
    "prices": [decimal.Decimal("1.50")] * 3,
    "flags": [True, False, True],
    "spans": pandas.to_timedelta([1, 2, 3], unit="s"),
    5: [1.5, None, 2],
}, index=pandas.Index(["k1", "k2", "k3"], name="key"))
frame = frame.rename(columns=str)
"""


def test_a_frame_is_the_same_on_both_sides_with_its_index_and_its_types(
    tmp_path: Path, given: list[Any]
) -> None:
    with create_sandbox(workspace=tmp_path, functions=[echo, of_arrow, of_pandas]) as sandbox:
        check = "pandas.testing.assert_frame_equal(given[0], frame)"
        says(sandbox, f"{CELL}\ngiven = [echo(frame)]; {check}\ngiven = [of_arrow(frame)]; {check}")
        nested = says(sandbox, "print(of_pandas(frame), echo({'a': [frame]})['a'][0].shape)")
        says(sandbox, f"frame = frame[['kinds', 'texts']][:0]; given = [echo(frame)]; {check}")
        numbered = "frame = pandas.DataFrame([[1, 2]]); given = [echo(frame)]"
        says(sandbox, f"{numbered}; {check}")
        refused = sandbox.execute("echo(pandas.DataFrame({'x': pandas.cut([1, 2], 2)}))").error
    whole, table = given[0], given[1]
    assert nested == "3 (3, 14)"
    assert type(table) is pyarrow.Table
    assert [str(each) for each in whole.dtypes[["days", "masked", "kinds"]]] == [
        "datetime64[us, Europe/Berlin]",
        "Int64",
        "category",
    ]
    assert whole["masked"].iloc[2] == 2**62
    assert whole.index.name == "key"
    assert refused is not None
    assert refused.ename == "TypeError"
    assert "periods or intervals, as column 'x' has" in refused.evalue


def test_javascript_gives_records_and_is_told_of_tables(tmp_path: Path, given: list[Any]) -> None:
    offered = [of_pandas, of_arrow]
    with create_sandbox(workspace=tmp_path, functions=offered, runtime="javascript") as sandbox:
        assert says(sandbox, "console.log(of_pandas([{ a: 1 }, { a: 2, b: 'x' }]))") == "2"
        error = error_of(sandbox.execute("of_arrow([{ a: 1 }])"))
    assert given[0]["a"].tolist() == [1, 2]
    assert "returned a table, which cells in JavaScript can't read" in error


# -- what a worker that was taken over may send

TEXTS = {
    "name": "t",
    "type": "utf8",
    "length": 2,
    "buffers": [[0, 0], [0, 12], [12, 3]],
    "children": [],
}
RAW = struct.pack("<3i", 0, 1, 3) + b"abc" + b"\xff" + struct.pack("<3i", 0, 3, 2)
LABEL = {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "str"}
SENT = {
    "columns": [TEXTS],
    "pandas": {"index_columns": [], "column_indexes": [LABEL], "columns": []},
}
EMPTY = {"name": "e", "type": "null", "length": 2, "buffers": [[0, 0]], "children": []}


def called(table: Any, function: Any = of_pandas, raw: bytes = RAW) -> Any:
    bound = BoundFunction(HostFunction(function))
    args, _ = bound.arguments([{"$": "table", "value": table}], {}, raw)
    return args[0]


def nested(depth: int) -> dict[str, Any]:
    column: dict[str, Any] = EMPTY
    for _ in range(depth):
        parts = {"length": 0, "buffers": [[0, 0], [0, 0]], "children": [column]}
        column = {"name": "l", "type": "list", **parts}
    return column


LIES: dict[str, Any] = {
    "a huge length": {**TEXTS, "length": 2**31},
    "bytes that are not there": {**TEXTS, "buffers": [[0, 0], [0, 12], [12, 99]]},
    "bytes before the others": {**TEXTS, "buffers": [[0, 0], [-4, 12], [12, 3]]},
    "bytes twice": {**TEXTS, "buffers": [[0, 15], [0, 12], [12, 20]]},
    "offsets behind the texts": {**TEXTS, "buffers": [[0, 0], [0, 12], [12, 1]]},
    "texts that are not UTF-8": {**TEXTS, "buffers": [[0, 0], [0, 12], [13, 3]]},
    "too many buffers": {**TEXTS, "buffers": [[0, 0]] * 4},
    "an unknown type": {**TEXTS, "type": "utf8_view"},
    "a type of runs": {**TEXTS, "type": "run_end_encoded"},
    "a type with parts": {**TEXTS, "children": [EMPTY]},
    "a list of two": {**TEXTS, "type": "list", "children": [EMPTY, EMPTY]},
    "gaps in a dict": {**EMPTY, "type": "struct", "children": [{**EMPTY, "length": 3_000_000}]},
    "lists of lists": nested(40),
    "no such category": {
        **TEXTS,
        "type": "int8",
        "buffers": [[0, 0], [15, 2]],
        "dictionary": {**TEXTS, "length": 0, "buffers": [[0, 0], [0, 0], [0, 0]]},
    },
    "categories of categories": {**TEXTS, "dictionary": {**TEXTS, "dictionary": TEXTS}},
    "a zone of the host's files": {
        **TEXTS,
        "type": "timestamp[us]",
        "buffers": [[0, 0], [0, 16]],
        "zone": "../../etc/passwd",
    },
    "no column": None,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_guest_that_lies_about_a_column_is_refused(lie: str) -> None:
    with pytest.raises((TypeError, ValueError, RecursionError)):
        called({**SENT, "columns": [LIES[lie]]}, of_pandas if "zone" in lie else of_arrow)


ABOUT: dict[str, Any] = {
    "a type of great width": {"column_indexes": [{**LABEL, "numpy_type": "U100000"}]},
    "another of them": {"column_indexes": [{**LABEL, "pandas_type": "V1000000000"}]},
    "an index that is not there": {"index_columns": ["nowhere"]},
    "labels that run code": {"column_indexes": [LABEL, LABEL]},
    "numbers beyond numbers": {"index_columns": [{"kind": "range", "name": None, "start": 2**99}]},
}


@pytest.mark.parametrize("lie", ABOUT)
def test_a_guest_that_lies_in_the_metadata_is_refused(lie: str) -> None:
    sent = deepcopy(SENT)
    sent["columns"] = [{**TEXTS, "name": "__import__('os').abort()"}]
    sent["pandas"] = {**SENT["pandas"], **ABOUT[lie]}  # type: ignore[dict-item]
    with pytest.raises(TypeError):
        called(json.loads(json.dumps(sent)))


def test_tables_are_made_where_they_are_taken_and_wide_ones_refused() -> None:
    def shout(word: str) -> None: ...

    with pytest.raises(TypeError, match="Expected `str`, got `DataFrame`"):
        BoundFunction(HostFunction(shout)).arguments([{"$": "table", "value": None}], {}, RAW)
    none = {**EMPTY, "length": 0}
    with pytest.raises(TypeError, match="at most 10,000 columns"):
        called({**SENT, "columns": [{**none, "name": str(n)} for n in range(10_001)]})
    rows = [{str(n): n} for n in range(2_000)]
    with pytest.raises(TypeError, match="at most 2,000,000 values"):
        BoundFunction(HostFunction(of_pandas)).arguments([rows], {}, b"")


def test_programs_without_pyarrow_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with create_sandbox(workspace=tmp_path, functions=[echo]) as sandbox:
        error = error_of(sandbox.execute("import pandas\necho(pandas.DataFrame({'a': [1]}))"))
    assert "a table needs the package pyarrow in this program" in error
