"""Codecs with files of strangers: the corpus of the project parquet-testing, and damaged files.

`PARQUET_TESTING` may name another place of the corpus's repository, such as a folder.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wasm_kernel import BaseSandbox, ExecutionPolicy, create_sandbox

pytestmark = pytest.mark.soak

OWN = Path(__file__).parents[1] / "codecs"
BUILD = Path(__file__).parents[2] / "build" / "suites"
CORPUS = os.environ.get("PARQUET_TESTING", "https://github.com/apache/parquet-testing")
COMMIT = "1a2a75127be06fc0123f03ebd36c966f7beda27d"
NATIVE = ("pandas==3.0.6", "pyarrow==26.0.1")
OTHERWISE = {
    "data/nation.dict-malformed.parquet": "the codec wants the dictionary's size to be right",
    "data/int96_from_spark.parquet": "years beyond 2262 come out wrong in both, in two ways",
    "data/incorrect_map_schema.parquet": "pyarrow alone refuses it",
    "data/nested_structs.rust.parquet": "pyarrow alone refuses it, for a year beyond 9999",
}
"""The files that are not read as pyarrow reads them, with the reasons."""

LOOK = """
import datetime, glob, json, os
import numpy as np, pandas as pd

def plain(value):
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if value is None or value is pd.NaT or value is pd.NA or value != value:
        return None
    if isinstance(value, (float, np.floating)):  # also integers, if some are missing
        return int(value) if float(value).is_integer() else repr(float(value))
    if isinstance(value, datetime.datetime):
        return (value.astimezone(datetime.timezone.utc) if value.tzinfo else value).isoformat()
    return int(value) if isinstance(value, (int, np.integer)) else repr(value)

def look(corpus, output):
    found = {}
    for name in sorted(glob.glob(corpus + "/*/*.parquet")):
        try:
            df = pd.read_parquet(name)
        except Exception as problem:
            outcome = [type(problem).__name__]
        else:
            kinds = [str(kind).replace("storage='python', ", "") for kind in df.dtypes]
            columns = [[plain(each) for each in df.iloc[:, n]] for n in range(len(kinds))]
            outcome = [[*map(str, df.columns)], kinds, plain(df.index.tolist()), columns]
        found[os.path.relpath(name, corpus)] = outcome
    with open(output, "w") as file:
        json.dump(found, file)
"""
DAMAGE = """
import collections, io, random
import numpy as np, pandas as pd
from PIL import Image
from wasm_kernel_agent.codecs.arrow_schema import ArrowError
from wasm_kernel_agent.codecs.parquet_file import ParquetError

TABLES = (ParquetError, ArrowError)
PICTURES = (OSError, SyntaxError, EOFError, Image.DecompressionBombError)
NUMBERS = [bytes([255] * 8), b"\\x7f" + bytes([255] * 7), bytes(8), b"\\xff\\xff\\xff\\x7f"]

def damaged(data, seed):
    chance, data = random.Random(seed), bytearray(data)
    at = chance.randrange(len(data))
    match chance.randrange(6):
        case 0:  # cut off
            del data[at:]
        case 1:  # without a piece
            del data[at : at + chance.randrange(1, 200)]
        case 2:  # with a piece twice
            data[at:at] = data[chance.randrange(len(data)) :][: chance.randrange(1, 300)]
        case 3:  # with another number
            number = chance.choice(NUMBERS)[: chance.choice([2, 4, 8])]
            data[at : at + len(number)] = number
        case kind:  # with other bytes, which may lie in the footer
            first = 0 if kind == 4 else max(0, len(data) - 1500)
            for _ in range(chance.randint(1, 8)):
                byte = chance.choice([0, 127, 128, 255, chance.randrange(256)])
                data[chance.randrange(first, len(data))] = byte
    return io.BytesIO(data)

def look(name, data):
    if name.endswith("parquet"):
        return pd.read_parquet(data)
    if name.endswith("feather"):
        return pd.read_feather(data)
    with Image.open(data) as picture:
        picture.seek(getattr(picture, "n_frames", 1) - 1)
        picture.load()

def tried(name, rounds):
    data, ends = open(name, "rb").read(), collections.Counter()
    expected = TABLES if name.endswith(("parquet", "feather")) else PICTURES
    for seed in range(rounds):
        try:
            look(name, damaged(data, seed))
        except expected:
            ends["error"] += 1
        except Exception as problem:
            ends[f"{type(problem).__name__} of {seed}"] += 1
        else:
            ends["read"] += 1
    print(sorted(ends))
"""


@pytest.fixture(scope="module")
def corpus() -> Path:
    """The corpus, as its commit has it."""
    folder = BUILD / f"parquet-testing-{COMMIT[:8]}"
    if not (folder / "README.md").exists():
        git = ["git", "-C", str(folder)]
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([*git, "init", "--quiet"], check=True)
        subprocess.run([*git, "fetch", "--quiet", "--depth=1", CORPUS, COMMIT], check=True)
        subprocess.run([*git, "checkout", "--quiet", "FETCH_HEAD"], check=True)
    return folder


@pytest.fixture(scope="module")
def read_by_pyarrow(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the content of each file, as pandas reads it with pyarrow."""
    environment = BUILD / "pyarrow"
    python = str(environment / "bin" / "python")
    if not (environment / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *NATIVE], check=True)
        (environment / "done").touch()
    output = tmp_path_factory.mktemp("pyarrow") / "found.json"
    code = f"{LOOK}\nlook({str(corpus)!r}, {str(output)!r})"
    subprocess.run([python, "-W", "ignore", "-c", code], check=True)
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def test_every_file_of_the_corpus_is_read_as_pyarrow_reads_it(
    corpus: Path, read_by_pyarrow: dict[str, Any], tmp_path: Path
) -> None:
    policy = ExecutionPolicy(cell_timeout=1800, memory_bytes=3 << 30, mounts=[f"{corpus}:/corpus"])
    with create_sandbox(workspace=tmp_path / "app", policy=policy) as sandbox:
        result = sandbox.execute(f"{LOOK}\nlook('/corpus', '/app/found.json')")
        assert result.error is None, result.error
    found = json.loads((tmp_path / "app" / "found.json").read_text())
    assert found.keys() == read_by_pyarrow.keys()
    refusals = {name: each[0] for name, each in found.items() if len(each) == 1}
    assert set(refusals.values()) <= {"ParquetError"}, refusals
    same = {
        name
        for name, outcome in read_by_pyarrow.items()
        if found[name] == outcome or len(found[name]) == len(outcome) == 1
    }
    assert found.keys() - same == OTHERWISE.keys()


FILES = [
    *(each for each in sorted((OWN / "parquet").glob("*.parquet")) if each.stem != "bomb"),
    *(each for each in sorted((OWN / "feather").glob("*.feather")) if "version" not in each.stem),
    *(each for each in sorted((OWN / "pictures").iterdir()) if each.suffix in (".jpg", ".webp")),
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_damaged_files_are_errors_in_words_or_are_read(sandbox: BaseSandbox, path: Path) -> None:
    shutil.copy(path, sandbox.execute(DAMAGE).workspace_path)
    result = sandbox.execute(f"tried({path.name!r}, 300)")
    assert result.error is None
    assert result.stdout.strip() in ("['error', 'read']", "['error']")
