"""Records the native values of the expressions, on x86-64.

`python -m tests.numbers.record PYTHON` lets an interpreter evaluate them that has numpy, pandas,
scipy, scikit-learn, statsmodels and networkx in the guest's versions (`MANIFEST` in the guest's
folder names them), and writes `native.tsv`: an expression, its type and its values a line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.numbers.expressions import GRID, LIBRARIES, OTHERS, SETUP, SINGLE

HERE = Path(__file__).resolve().parent
RECORDED = HERE / "native.tsv"


def record(python: str) -> None:
    """Writes an interpreter's values of all expressions."""
    expressions = [*GRID, *SINGLE, *OTHERS]
    done = subprocess.run(
        [python, str(HERE / "shown.py")],
        input=json.dumps([expressions, [SETUP, LIBRARIES]]),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rows = zip(expressions, json.loads(done.stdout), strict=True)
    lines = ["\t".join((on_one_line(text), *as_recorded(*answer))) for text, answer in rows]
    RECORDED.write_text("\n".join(lines) + "\n")


def recorded() -> dict[str, tuple[str, str]]:
    """Reads the kinds and values by their expressions."""
    rows = [line.split("\t") for line in RECORDED.read_text().splitlines()]
    return {text: (kind, values) for text, kind, values in rows}


def as_recorded(kind: str, values: str) -> tuple[str, str]:
    """Returns an answer in the form of the file, without the texts of errors."""
    if kind == "error":
        values = values.partition(":")[0]
    return on_one_line(kind), on_one_line(values)


def on_one_line(text: str) -> str:
    """Returns a text in the form of the file."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")


if __name__ == "__main__":
    record(sys.argv[1])
