"""Parquet and Feather in the sandbox, beside what pandas with pyarrow reads of the same files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.codecs.as_pyarrow import check_table, said
from tests.faces import error_of, traceback_of
from wasm_kernel import BaseSandbox, ExecutionPolicy, create_sandbox

KINDS = ("parquet", "feather")
FOLDERS = PARQUET, FEATHER = [Path(__file__).parent / kind for kind in KINDS]
READ_BY_PYARROW: dict[str, Any] = {
    f"{kind}('{name}.{kind}')": wanted
    for kind, folder in zip(KINDS, FOLDERS, strict=True)
    for name, wanted in json.loads((folder / "read-by-pyarrow.json").read_text()).items()
}
SETUP = """
import datetime, decimal, io, struct
import numpy as np, pandas as pd
"""


@pytest.mark.parametrize("read", READ_BY_PYARROW)
def test_a_file_is_read_as_pyarrow_reads_it(sandbox: BaseSandbox, read: str) -> None:
    check_table(sandbox, f"pd.read_{read}", READ_BY_PYARROW[read])


def test_a_written_frame_its_index_labels_and_types_come_back(sandbox: BaseSandbox) -> None:
    code = """
df = pd.read_parquet("types.parquet")
for how in ("snappy", "gzip", "brotli", "lz4", "zstd", None):
    df.to_parquet("copy.parquet", compression=how, row_group_size=2)
    pd.testing.assert_frame_equal(pd.read_parquet("copy.parquet"), df)
df = pd.read_feather("lz4.feather")
for how in ("lz4", "zstd", "uncompressed"):
    df.to_feather("copy.feather", compression=how)
    pd.testing.assert_frame_equal(pd.read_feather("copy.feather"), df)
"""
    assert said(sandbox, code) == ""
    code = f"""
def same(df):
    back = pd.read_parquet(io.BytesIO(df.to_parquet()))
    same = str(back.dtypes) == str(df.dtypes) and back.index.equals(df.index)
    return same and back.index.names == df.index.names and list(back) == list(df)
print([frame for frame in {FRAMES} if not same(eval(frame))])
"""
    assert said(sandbox, code) == "[]"


FRAMES = [
    "pd.DataFrame({'a': [1, 2]}, index=pd.RangeIndex(4, 8, 2, name='r'))",
    "pd.DataFrame({'a': [1]}, index=pd.MultiIndex.from_tuples([('x', 1)], names=['p', None]))",
    "pd.DataFrame({'a': [1]}, index=pd.DatetimeIndex(['2020-01-01'], tz='Asia/Tokyo'))",
    "pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([('a', 'b'), ('a', 'c')]))",
    "pd.DataFrame({'a': [1], 'b': ['x']})[:0]",
    "pd.DataFrame({'c': pd.Categorical(['b'], categories=['z', 'b'], ordered=True)})",
    "pd.DataFrame({'a': [[[1], [2, 3]], [], None]})",
    "pd.DataFrame({'a': pd.Series([None, None], dtype='str')})",
    "pd.DataFrame({'a': pd.period_range('2020', periods=2, freq='Q')})",
    "pd.DataFrame({'a': pd.arrays.IntervalArray.from_breaks([1.5, 2, 3], closed='both')})",
    "pd.DataFrame([[1, 2]], columns=[b'a', b'b'])",
    "pd.DataFrame(index=['x'], columns=[])",
]


def test_row_groups_are_encoded_in_turn(sandbox: BaseSandbox) -> None:
    code = """
import wasm_kernel_agent.codecs.parquet as codec
rows, codec._ROWS = codec._ROWS, 2  # encoded at once
df = pd.read_parquet("types.parquet")
df.to_parquet("turns.parquet", row_group_size=1)
codec._ROWS = rows
pd.testing.assert_frame_equal(pd.read_parquet("turns.parquet"), df)
print(len(ParquetFile(open("turns.parquet", "rb"))._groups))
"""
    code = f"from wasm_kernel_agent.codecs.parquet_file import ParquetFile\n{code}"
    assert said(sandbox, code) == "4"


def test_texts_of_any_characters_come_back_or_leave_no_file(sandbox: BaseSandbox) -> None:
    code = "df = pd.DataFrame({'a': ['with \\0', None, 'é', ''], 'b': ['ö', 'x', 'ö', None]})\n"
    code += "print(pd.read_parquet(io.BytesIO(df.to_parquet())).equals(df))"
    assert said(sandbox, code) == "True"
    code = "import os\npd.DataFrame({'a': ['\\ud800']}).to_parquet('broken.parquet')"
    assert "can't be written" in said(sandbox, code)
    assert said(sandbox, "print(os.path.exists('broken.parquet'))") == "False"


def test_columns_filters_and_types_with_masks_are_chosen(sandbox: BaseSandbox) -> None:
    code = """
df = pd.DataFrame({"a": range(1000), "b": ["x", "y"] * 500, "c": [1, None] * 500})
df.to_parquet("chosen.parquet", row_group_size=100)
read = pd.read_parquet
print(list(read("chosen.parquet", columns=["c", "a"])))
print(read("chosen.parquet", columns=["b"], filters=[("a", ">=", 998)]).to_dict("list"))
either = [[("a", "<", 5)], [("a", "in", [7, 9]), ("b", "=", "y")]]
print(len(read("chosen.parquet", filters=either)))
print(read("chosen.parquet", dtype_backend="numpy_nullable").dtypes.astype(str).tolist())
print(read(open("chosen.parquet", "rb")).equals(df))
print(read("chosen.parquet", engine="pyarrow").equals(df))
"""
    assert said(sandbox, code).splitlines() == [
        "['c', 'a']",
        "{'b': ['x', 'y']}",
        "7",
        "['Int64', 'string', 'Float64']",
        "True",
        "True",
    ]


def test_times_in_dicts_and_wanted_columns_are_as_with_pyarrow(sandbox: BaseSandbox) -> None:
    code = """
at, zone = datetime.datetime(2024, 3, 31, 1, 30), datetime.timezone.utc
rows = [{"a": at, "z": at.replace(tzinfo=zone), "d": datetime.timedelta(1)}, {"a": None}]
back = pd.read_parquet(io.BytesIO(pd.DataFrame({"x": rows}).to_parquet()))["x"][0]
print(type(back["a"]).__name__, back["a"] == at, back["z"] == rows[0]["z"], back["d"])
"""
    assert said(sandbox, code) == "datetime True True 1 day, 0:00:00"
    code = "pd.DataFrame({'a': [1], 'b': [2]}).to_parquet('two.parquet')\n"
    code += "print(pd.read_parquet('two.parquet', columns=['b', 'a', 'b']).to_numpy().tolist())\n"
    code += "pd.read_parquet('two.parquet', columns=['c'])"
    result = sandbox.execute(code)
    assert result.stdout.strip() == "[[2, 1, 2]]"
    assert error_of(result).endswith(": the file has no column 'c'")


NO_TYPE = {
    "[1, 'a']": "several types (int, utf8)",
    "[1j, 2j]": "no type for complex128",
    "[object(), None]": "no type for a value of the type object",
    "[decimal.Decimal('1e50'), decimal.Decimal('1e-5')]": "digits",
}


def test_what_parquet_feather_and_our_codecs_lack_is_named(sandbox: BaseSandbox) -> None:
    for values, words in NO_TYPE.items():
        error = said(sandbox, f"pd.DataFrame({{'mine': {values}}}).to_parquet('x.parquet')")
        assert error.startswith("column 'mine' can't be written: ")
        assert words in error
    code = "pd.read_parquet('types.parquet', dtype_backend='pyarrow')"
    assert "'numpy_nullable' works" in said(sandbox, code)
    traceback = traceback_of(sandbox.execute("import pyarrow"))
    assert "to_feather work here without it" in "".join(traceback)
    for code, words in REFUSED.items():
        assert words in said(sandbox, code), code


def test_large_buffers_of_feather_are_compressed_in_blocks_by_default(sandbox: BaseSandbox) -> None:
    code = """
rows = 600_000  # so that a column takes more than a block of 4 MiB
df = pd.DataFrame({"n": np.arange(rows) % 1000, "none": pd.Series([], dtype="str").reindex(
    range(rows))})
df.to_feather(out := io.BytesIO())
print(len(out.getvalue()) < 400_000, pd.read_feather(out).equals(df))
"""
    assert said(sandbox, code) == "True True"


def test_columns_of_feather_and_types_with_masks_are_chosen(sandbox: BaseSandbox) -> None:
    code = """
read = pd.read_feather
print(list(read("zstd.feather", columns=["dicts", "cat", "f"])))
print(read("zstd.feather", columns=["text"])["text"].tolist())
print(read("uncompressed.feather", columns=[2, 0]).columns.tolist())
print(read("arrow.feather", columns=["view", "dict", "bview"])["view"].tolist()[2])
print(read("lz4.feather", dtype_backend="numpy_nullable").dtypes.astype(str)[:5].tolist())
"""
    assert said(sandbox, code).splitlines() == [
        "['dicts', 'cat', 'f']",
        "['a', nan, 'ünï', '', 'long text beyond twelve']",
        "['f', 'i8']",
        "a text that is long enough",
        "['Int8', 'UInt64', 'Float64', 'boolean', 'string']",
    ]


REFUSED = {
    "pd.DataFrame({'mine': [1, 'a']}).to_feather('x')": "column 'mine' can't be written",
    "pd.read_feather('lz4.feather', columns=['nope'])": "the file has no column 'nope'",
    "pd.read_feather('first-version.feather')": "Feather's first version",
    "pd.read_feather('lz4.feather', dtype_backend='pyarrow')": "'numpy_nullable' works",
    "pd.DataFrame().to_feather('x', compression='gzip')": "lz4, zstd, uncompressed",
    "pd.DataFrame().to_feather('x', chunksize=3)": "chunksize can't be used here",
}


HOSTILE_PARQUET = {
    "rows that are not there": "data.replace(b'\\x16\\x06\\x26\\x08', b'\\x16\\x0a\\x26\\x08')",
    "not Parquet": "b'PAR1' + bytes(100)",
    "cut": "data[:-20]",
    "a footer of lies": "data[:-8] + b'\\xff\\xff\\xff\\x7f' + b'PAR1'",
    "junk in the footer": "data[:-300] + bytes(range(200)) + data[-100:]",
    "junk in the pages": "data[:20] + b'\\xff' * 200 + data[220:]",
    "nested lists in the footer": "b'PAR1' + b'\\x19' * 5000 + b'\\x88\\x13\\0\\0PAR1'",
    "no list of row groups": (
        "b'PAR1' + bytes.fromhex('291c4801610016001c1c000000') + b'\\r\\0\\0\\0PAR1'"
    ),
    "bad lengths": "open('bad.parquet', 'rb').read()",
}
HOSTILE_FEATHER = {
    "not Feather": "b'ARROW1' + bytes(100)",
    "cut": "data[:-20]",
    "without its beginning": "data[3000:]",
    "a footer of lies": "data[:-10] + b'\\xff\\xff\\xff\\x7f' + b'ARROW1'",
    "junk in the footer": "data[:-300] + bytes(range(200)) + data[-100:]",
    "junk in the batches": "data[:9000] + b'\\xff' * 4000 + data[13000:]",
    "a length of lies": "data.replace(struct.pack('<q', 40), struct.pack('<q', 1 << 30))",
}


@pytest.mark.parametrize(
    ("name", "file"),
    [
        *((name, "types.parquet") for name in HOSTILE_PARQUET),
        *((name, "lz4.feather") for name in HOSTILE_FEATHER),
        ("junk in the batches", "zstd.feather"),
    ],
)
def test_a_hostile_file_is_an_error_in_words(sandbox: BaseSandbox, name: str, file: str) -> None:
    kind = file.partition(".")[2]
    hostile = (HOSTILE_PARQUET if kind == "parquet" else HOSTILE_FEATHER)[name]
    code = f"data = open('{file}', 'rb').read()\npd.read_{kind}(io.BytesIO({hostile}))"
    error, rows = {"parquet": ("ParquetError:", "4"), "feather": ("ArrowError:", "5")}[kind]
    assert error_of(sandbox.execute(code)).startswith(error)
    assert said(sandbox, f"print(len(pd.read_{kind}('{file}')))") == rows


BOMBS = (
    "pd.read_parquet('bomb.parquet')",
    """
from wasm_kernel_agent.codecs.arrow_compression import packed, unpacked
(piece,) = packed(1, [bytes(40_000_000)])
unpacked(1, [memoryview(struct.pack('<q', 40_000_000 * 40) + piece[8:] * 40)])
""",
)


def test_a_bomb_is_refused_within_the_memory_of_the_session(tmp_path: Path) -> None:
    policy = ExecutionPolicy(memory_bytes=512 * 1024 * 1024)
    with create_sandbox(workspace=tmp_path, policy=policy) as sandbox:
        shutil.copy(PARQUET / "bomb.parquet", tmp_path)
        said(sandbox, f"{SETUP}\nkept = 1")
        for bomb in BOMBS:
            assert "more memory is needed" in said(sandbox, bomb)
            assert said(sandbox, "print(kept)") == "1"
