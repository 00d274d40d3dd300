"""Feather in the sandbox, beside what pandas with pyarrow reads of the same files (`feather/`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.codecs.as_pyarrow import check_table, said
from tests.faces import error_of
from wasm_kernel import BaseSandbox, ExecutionPolicy, create_sandbox

FILES = Path(__file__).parent / "feather"
READ_BY_PYARROW: dict[str, Any] = json.loads((FILES / "read-by-pyarrow.json").read_text())
SETUP = """
import io, struct
import numpy as np, pandas as pd
"""


@pytest.mark.parametrize("name", READ_BY_PYARROW)
def test_a_file_is_read_as_pyarrow_reads_it(sandbox: BaseSandbox, name: str) -> None:
    check_table(sandbox, f"pd.read_feather('{name}.feather')", READ_BY_PYARROW[name])


@pytest.mark.parametrize("how", ["lz4", "zstd", "uncompressed"])
def test_a_written_frame_is_read_again(sandbox: BaseSandbox, how: str) -> None:
    code = "df = pd.read_feather('lz4.feather')\n"
    code += f"df.to_feather('copy.feather', compression={how!r})\n"
    code += "pd.testing.assert_frame_equal(pd.read_feather('copy.feather'), df); print('same')"
    assert said(sandbox, code) == "same"


def test_large_buffers_are_compressed_in_blocks_by_default(sandbox: BaseSandbox) -> None:
    code = """
rows = 600_000  # so that a column takes more than a block of 4 MiB
df = pd.DataFrame({"n": np.arange(rows) % 1000, "none": pd.Series([], dtype="str").reindex(
    range(rows))})
df.to_feather(out := io.BytesIO())
print(len(out.getvalue()) < 400_000, pd.read_feather(out).equals(df))
"""
    assert said(sandbox, code) == "True True"


def test_columns_and_types_with_masks_are_chosen(sandbox: BaseSandbox) -> None:
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


def test_what_is_refused_is_refused_in_words(sandbox: BaseSandbox) -> None:
    for code, words in REFUSED.items():
        assert words in said(sandbox, code), code


HOSTILE = {
    "not Feather": "b'ARROW1' + bytes(100)",
    "cut": "data[:-20]",
    "without its beginning": "data[3000:]",
    "a footer of lies": "data[:-10] + b'\\xff\\xff\\xff\\x7f' + b'ARROW1'",
    "junk in the footer": "data[:-300] + bytes(range(200)) + data[-100:]",
    "junk in the batches": "data[:9000] + b'\\xff' * 4000 + data[13000:]",
    "a length of lies": "data.replace(struct.pack('<q', 40), struct.pack('<q', 1 << 30))",
}


@pytest.mark.parametrize(
    ("name", "file"), [*((name, "lz4") for name in HOSTILE), ("junk in the batches", "zstd")]
)
def test_a_hostile_file_is_an_error_in_words(sandbox: BaseSandbox, name: str, file: str) -> None:
    code = f"data = open('{file}.feather', 'rb').read()\n"
    code += f"pd.read_feather(io.BytesIO({HOSTILE[name]}))"
    assert error_of(sandbox.execute(code)).startswith("ArrowError:")
    assert said(sandbox, f"print(len(pd.read_feather('{file}.feather')))") == "5"


def test_a_bomb_is_refused_within_the_memory_of_the_session(tmp_path: Path) -> None:
    policy = ExecutionPolicy(memory_bytes=512 * 1024 * 1024)
    with create_sandbox(workspace=tmp_path, policy=policy) as sandbox:
        code = SETUP + "from wasm_kernel_agent.codecs.arrow_compression import packed, unpacked\n"
        code += "(piece,) = packed(1, [bytes(40_000_000)])\n"
        code += "lie = memoryview(struct.pack('<q', 40_000_000 * 40) + piece[8:] * 40)\n"
        code += "kept = 1; unpacked(1, [lie])"
        assert "more memory is needed" in said(sandbox, code)
        assert said(sandbox, "print(kept)") == "1"
