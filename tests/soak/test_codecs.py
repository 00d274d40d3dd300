"""Codecs with files of strangers: the corpus of the project parquet-testing, and damaged files.

`PARQUET_TESTING` names a checkout of https://github.com/apache/parquet-testing.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from wasm_kernel import BaseSandbox

pytestmark = pytest.mark.soak

OWN = Path(__file__).parents[1] / "codecs"
CORPUS = os.environ.get("PARQUET_TESTING", "")
REFUSED = {
    "ARROW-GH-41317.parquet",
    "ARROW-GH-41321.parquet",
    "ARROW-GH-45185.parquet",
    "ARROW-GH-47662.parquet",
    "ARROW-RS-GH-6229-DICTHEADER.parquet",
    "ARROW-RS-GH-6229-LEVELS.parquet",
    "PARQUET-1481.parquet",
    "large_string_map.brotli.parquet",  # its texts take more memory than the sandbox has
    "nation.dict-malformed.parquet",  # the codec wants the dictionary's size to be right
}
"""The files that can't be read; all but the last two are damaged on purpose."""

READ = """
import glob, pandas as pd
refused = []
for name in sorted(glob.glob("*.parquet")):
    try:
        pd.read_parquet(name)
    except ValueError as problem:
        assert type(problem).__name__ == "ParquetError", (name, problem)
        refused.append(name)
print("\\n".join(refused))
"""
DAMAGE = """
import io, random
import numpy as np, pandas as pd
from PIL import Image

BOMB = Image.DecompressionBombError

def damaged(data, seed):
    chance, data = random.Random(seed), bytearray(data)
    for _ in range(chance.randint(1, 8)):
        data[chance.randrange(len(data))] = chance.choice([0, 127, 128, 255, chance.randrange(256)])
    return io.BytesIO(data)

def look(name, data):
    if name.endswith("parquet"):
        return pd.read_parquet(data)
    with Image.open(data) as picture:
        picture.seek(getattr(picture, "n_frames", 1) - 1)
        picture.load()

def tried(name, rounds):
    data, ended = open(name, "rb").read(), 0
    for seed in range(rounds):
        try:
            look(name, damaged(data, seed))
        except (ValueError, OSError, SyntaxError, EOFError, MemoryError, BOMB):
            ended += 1
    print(0 < ended < rounds)
"""


@pytest.mark.skipif(not CORPUS, reason="PARQUET_TESTING names no checkout")
def test_every_file_of_the_corpus_is_read_or_refused_in_words(sandbox: BaseSandbox) -> None:
    place = sandbox.execute("1").workspace_path
    for folder in ("data", "bad_data"):
        for path in (Path(CORPUS) / folder).glob("*.parquet"):
            shutil.copy(path, place)
    result = sandbox.execute(READ)
    assert result.error is None
    assert set(result.stdout.split()) == REFUSED


@pytest.mark.parametrize(
    "path",
    [
        OWN / "parquet" / "types.parquet",
        *(
            each
            for each in sorted((OWN / "pictures").iterdir())
            if each.suffix in (".jpg", ".webp")
        ),
    ],
    ids=lambda path: path.name,
)
def test_damaged_files_are_errors_that_a_cell_can_catch(sandbox: BaseSandbox, path: Path) -> None:
    shutil.copy(path, sandbox.execute(DAMAGE).workspace_path)
    result = sandbox.execute(f"tried({path.name!r}, 300)")
    assert result.error is None
    assert result.stdout.strip() == "True"
