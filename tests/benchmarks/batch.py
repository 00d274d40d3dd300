"""Small notebooks one after another: `wasm-kernel run` against `jupyter execute` and papermill."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nbformat

from tests.benchmarks.sides import Side
from tests.benchmarks.table import Figure, Row

NOTEBOOKS = 20
ENDLESS_SECONDS = 2
PATIENCE = 900
FRAME = (
    "import numpy as np, pandas as pd",
    "frame = pd.DataFrame({'a': np.arange(1000) % 7, 'b': np.arange(1000) ** 2})",
    "frame.groupby('a').b.agg(['mean', 'max'])",
)
FIGURE = (
    "%matplotlib inline\nimport numpy as np\nimport matplotlib.pyplot as plt",
    "plt.plot(np.sin(np.linspace(0, 10, 200)));",
)
PAPERMILL = """
import sys, papermill
for file in sys.argv[1:]:
    papermill.execute_notebook(file, f"{file}.out", progress_bar=False)
"""
BROKEN, ENDLESS = ("1/0",), ("while True: pass",)


class Folder:
    """The notebooks of a benchmark and their outputs.

    Args:
        place: The folder.
        theirs: The side whose kernelspec `python3` is.
    """

    def __init__(self, place: Path, theirs: Side) -> None:
        self.place = place
        spec = place / "kernels" / "python3"
        spec.mkdir(parents=True)
        argv = [str(theirs.python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        facts = {"argv": argv, "display_name": "Python", "language": "python"}
        (spec / "kernel.json").write_text(json.dumps(facts))
        self.environment = {**os.environ, "JUPYTER_PATH": str(place)}

    def make(self, contents: Sequence[tuple[str, ...]]) -> list[Path]:
        """Writes notebooks, and returns their files."""
        files = []
        for number, cells in enumerate(contents):
            made = [nbformat.v4.new_code_cell(cell) for cell in cells]
            spec = {"name": "python3", "display_name": "Python", "language": "python"}
            book = nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": spec})
            files.append(self.place / f"{number:02}.ipynb")
            nbformat.write(book, files[-1])
        return files

    def ours(self, files: Sequence[Path], jobs: int, *more: str) -> float:
        """Returns how long `wasm-kernel run` takes, in seconds."""
        words = [
            "-m",
            "wasm_kernel.frontends.cli.main",
            "run",
            *map(str, files),
            "--jobs",
            str(jobs),
        ]
        places = ["-o", str(self.place / "out"), "--sessions", str(self.place / "kept")]
        return self._timed([[sys.executable, *words, *places, *more]], check=not more)

    def executed(self, files: Sequence[Path]) -> float:
        """Returns how long `jupyter execute` takes."""
        jupyter = Path(sys.executable).with_name("jupyter")
        return self._timed([[str(jupyter), "execute", "--inplace", *map(str, files)]])

    def papermill(self, files: Sequence[Path], jobs: int) -> float:
        """Returns how long papermill takes with this number of processes."""
        parts = [files[number::jobs] for number in range(jobs)]
        return self._timed([[sys.executable, "-c", PAPERMILL, *map(str, part)] for part in parts])

    def _timed(self, commands: Sequence[Sequence[str]], *, check: bool = True) -> float:
        begun = time.perf_counter()
        running = [
            subprocess.Popen(
                command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            for command in commands
        ]
        statuses = [each.wait(PATIENCE) for each in running]
        assert not check or statuses == [0] * len(commands)
        return time.perf_counter() - begun


@contextmanager
def folder_of(theirs: Side) -> Iterator[Folder]:
    """A folder for one measure."""
    with tempfile.TemporaryDirectory(prefix="wasm-kernel-batch-") as place:
        yield Folder(Path(place), theirs)


def batch(sides: tuple[Side, Side], rounds: int) -> Iterator[Row | Figure]:
    """Twenty notebooks of pandas and matplotlib, in one process or two; a batch of broken ones."""
    with folder_of(sides[1]) as folder:
        files = folder.make([FRAME, FIGURE] * (NOTEBOOKS // 2))
        folder.ours(files[:2], 1)
        times: dict[str, list[float]] = {}
        for _ in range(max(1, rounds // 3)):
            times.setdefault("ours", []).append(folder.ours(files, 1))
            times.setdefault("execute", []).append(folder.executed(files))
            times.setdefault("papermill", []).append(folder.papermill(files, 1))
            times.setdefault("ours, 2", []).append(folder.ours(files, 2))
            times.setdefault("papermill, 2", []).append(folder.papermill(files, 2))
        what = f"{NOTEBOOKS} notebooks of pandas and matplotlib"
        yield Row(f"{what}, against jupyter execute", times["ours"], times["execute"], "s", 0.5)
        yield Row(f"{what}, against papermill", times["ours"], times["papermill"], "s", 0.5)
        two = times["ours, 2"], times["papermill, 2"]
        yield Row(f"{what}, 2 processes each, against papermill", *two, "s", 0.5)
        broken = [BROKEN] * (NOTEBOOKS // 10) + [ENDLESS] * (NOTEBOOKS // 10)
        files = folder.make([*broken, *[FRAME, FIGURE] * (NOTEBOOKS * 2 // 5)])
        taken = folder.ours(files, 2, "--cell-seconds", str(ENDLESS_SECONDS))
        yield Figure(f"{NOTEBOOKS} notebooks, a fifth broken or endless, 2 processes", taken, "s")
