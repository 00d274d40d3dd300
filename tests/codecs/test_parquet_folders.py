"""Folders of Parquet files, which are one table; their names may hold values (`year=2024/`).

The expected values are those of pandas 3.0.6 with pyarrow 26.0.1.
"""

from __future__ import annotations

import pytest

from tests.codecs.as_pyarrow import said
from wasm_kernel import BaseSandbox

SETUP = """
import datetime, decimal, os
import numpy as np, pandas as pd

def written(name, **columns):
    os.makedirs(os.path.dirname(name), exist_ok=True)
    pd.DataFrame(columns).to_parquet(name)

def found(*args, **options):
    df = pd.read_parquet(*args, **options)
    kinds = {c: [df[c].cat.categories.dtype.kind, *df[c].cat.categories]
             for c in df if df[c].dtype == "category"}
    print(df.to_dict("list"), df.index.tolist(), kinds or "")
"""


def test_a_frame_is_written_into_folders_named_by_its_values(sandbox: BaseSandbox) -> None:
    code = """
df = pd.DataFrame({"year": [2024, 2023, 2024, 2023], "c": ["x/y", "b", "é=1", None],
                   "v": [1, 2, 3, 4], "l": [["a"], None, [], ["b", None]]})
df.to_parquet("sales", partition_cols=["year", "c"])
names = sorted(os.path.join(a, f) for a, _, b in os.walk("sales") for f in b)
print([os.path.dirname(each) for each in names], names[0].endswith("-0.parquet"))
found("sales")
"""
    folders, table = said(sandbox, code).splitlines()
    assert folders == (
        "['sales/year=2023/c=__HIVE_DEFAULT_PARTITION__', 'sales/year=2023/c=b', "
        "'sales/year=2024/c=%C3%A9%3D1', 'sales/year=2024/c=x%2Fy'] True"
    )
    assert table == (
        "{'v': [4, 2, 3, 1], 'l': [array(['b', None], dtype=object), None, "
        "array([], dtype=object), array(['a'], dtype=object)], "
        "'year': [2023, 2023, 2024, 2024], 'c': [nan, 'b', 'é=1', 'x/y']} [0, 1, 2, 3] "
        "{'year': ['i', 2023, 2024], 'c': ['O', 'b', 'é=1', 'x/y']}"
    )


def test_rows_of_every_type_go_to_their_folders(sandbox: BaseSandbox) -> None:
    code = """
df = pd.DataFrame({"p": ["a", "b", "a"], "flag": [True, None, True], "none": [None] * 3,
    "d": [{"x": 1}, None, {"x": 3}], "cat": pd.Categorical(["u", "v", None])})
df.to_parquet("typed", partition_cols=["p"])
back = pd.read_parquet("typed")
wanted = df.iloc[[0, 2, 1]][back.columns]
print(back.astype(str).to_numpy().tolist() == wanted.astype(str).to_numpy().tolist())
"""
    assert said(sandbox, code) == "True"


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("columns=['c', 'v']", "{'c': ['b', 'a', 'x'], 'v': [2, 3, 1]}"),
        ("filters=[('year', '=', 2024)], columns=['v']", "{'v': [3, 1]}"),
        ("filters=[[('c', 'in', ['b'])], [('v', '=', 1)]], columns=['v']", "{'v': [2, 1]}"),
        ("filters=[('year', '=', 1999)]", "{'v': [], 'year': [], 'c': []} [] {'year': ['i', 2023"),
        ("filters=[('year', '=', '2024')]", "column 'year' has numbers"),
    ],
)
def test_columns_and_filters_name_folders(sandbox: BaseSandbox, options: str, wanted: str) -> None:
    code = """
if not os.path.exists("by"):
    for year, c, v in ((2023, "b", 2), (2024, "a", 3), (2024, "x", 1)):
        written(f"by/year={year}/c={c}/part.parquet", v=[v])
"""
    assert wanted in said(sandbox, f"{code}found('by', {options})")


def test_files_that_filters_exclude_are_not_read(sandbox: BaseSandbox) -> None:
    code = """
written("broken/year=2023/a.parquet", v=[1])
written("broken/year=2024/a.parquet", v=[2])
open("broken/year=2024/a.parquet", "w").write("no Parquet")
found("broken", filters=[("year", "<", 2024)], columns=["v"])
"""
    assert said(sandbox, code) == "{'v': [1]} [0]"
    assert "year=2024/a.parquet: the file is not Parquet" in said(sandbox, "found('broken')")


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ("[10, 9, 100, -1]", "['i', -1, 10, 100, 9]"),
        ("['10', '9', 'x', '007']", "['O', '007', '10', '9', 'x']"),
        ("[1.5, 2.0, 2.0, 1.5]", "['O', '1.5', '2']"),
        ("pd.to_datetime(['2020-01-01'] * 4)", "['O', '2020-01-01 00:00:00.000000']"),
        ("pd.Categorical(list('baab'), categories=list('zba'))", "['O', 'a', 'b']"),
    ],
)
def test_values_in_names_are_categories_of_numbers_or_texts(
    sandbox: BaseSandbox, values: str, wanted: str
) -> None:
    code = "import shutil; shutil.rmtree('kinds', ignore_errors=True)\n"
    code += f"df = pd.DataFrame({{'k': {values}, 'v': 1}})\n"
    code += "df.to_parquet('kinds', partition_cols='k'); found('kinds')"
    assert said(sandbox, code).endswith(f"{{'k': {wanted}}}")


def test_files_without_a_column_have_gaps_and_a_list_is_one_table(sandbox: BaseSandbox) -> None:
    code = """
written("mixed/1.parquet", n=[0], t=["a"])
written("mixed/2.parquet", n=pd.Series([1], dtype="int32"), t=[None], more=[1])
written("mixed/3.parquet", t=pd.Categorical(["b"]))
os.makedirs("mixed/_ignored"); open("mixed/_ignored/x", "w"); open("mixed/.y", "w")
found("mixed")
written("mixed/4.parquet", n=[1.5])
found("mixed")
"""
    words = "column 'n': it is of float64, and of int64 in the first file"
    assert said(sandbox, code).endswith(words)
    assert said(sandbox, "os.remove('mixed/4.parquet'); found('mixed')") == (
        "{'n': [0.0, 1.0, nan], 't': ['a', nan, 'b']} [0, 1, 2]"
    )
    code = "written('l/y=1/a.parquet', v=[1]); written('l/y=2/a.parquet', v=[2])\n"
    code += "found(['l/y=1/a.parquet', 'l/y=2/a.parquet'])"
    assert said(sandbox, code) == "{'v': [1, 2], 'y': [1, 2]} [0, 1] {'y': ['i', 1, 2]}"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("df.to_parquet('no', partition_cols=['z'])", "there is no column 'z'"),
        ("df.to_parquet('no', partition_cols=['a', 'b'])", "no column is left"),
        ("written('both/a=1/x.parquet', a=[1]); found('both')", "column 'a' is in the file"),
        ("os.makedirs('empty', exist_ok=True); found('empty')", "there are no files in empty"),
    ],
)
def test_calls_are_refused_in_words(sandbox: BaseSandbox, code: str, words: str) -> None:
    assert words in said(sandbox, "df = pd.DataFrame({'a': [1], 'b': [2]})\n" + code)
