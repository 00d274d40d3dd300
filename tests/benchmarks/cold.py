"""A new machine: the time from the end of `pip install` to the first result, without a cache."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import ClassVar

from tests.benchmarks.sides import Side

FIRST = "import wasm_kernel as w, sys; w.create_sandbox(workspace=sys.argv[1]).execute('1+1')"
WHEELS = Path("dist").absolute()


@dataclass(frozen=True)
class ColdRow:
    """One way to the first result, compared with compiling everything with full optimization."""

    HEAD: ClassVar[tuple[str, ...]] = ("a new machine's first result", "s", "ratio", "aim", "")

    what: str
    seconds: list[float]
    in_full: list[float]
    aim: float

    def line(self) -> tuple[str, ...]:
        """The row as text."""
        ratio = median(self.seconds) / median(self.in_full)
        verdict = "met" if ratio <= self.aim else "MISSED"
        return (self.what, f"{median(self.seconds):.1f}", f"{ratio:.2f}", f"{self.aim}", verdict)


def cold(sides: tuple[Side, Side], rounds: int) -> Iterator[ColdRow]:
    """Measures the baseline compiler, and the wheels of `make wheels` if they are there."""
    with tempfile.TemporaryDirectory() as place:
        ours = sides[0].python
        ways = {"compiled in full": (ours, "0"), "baseline": (ours, "1")}
        if len(list(WHEELS.glob("*.whl"))) == 3:
            ways["wheels"] = (_with_wheels(Path(place, "venv")), "0")
        samples: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(max(1, rounds // 9)):  # a round takes minutes
            for way, (python, baseline) in ways.items():
                samples[way].append(_sample(python, baseline, Path(place)))
        in_full = samples.pop("compiled in full")
        yield ColdRow("compiled in full", in_full, in_full, 1.0)
        aims = {"baseline": 0.25, "wheels": 0.05}
        yield from (ColdRow(way, taken, in_full, aims[way]) for way, taken in samples.items())


def _with_wheels(venv: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    python = venv / "bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", *WHEELS.glob("*.whl")], check=True)
    return python


def _sample(python: Path, baseline: str, place: Path) -> float:
    with tempfile.TemporaryDirectory(dir=place) as cache:
        environment = {"WASM_KERNEL_CACHE": cache, "WASM_KERNEL_BASELINE": baseline}
        workspace = tempfile.mkdtemp(dir=place)
        begun = time.perf_counter()
        command = [str(python), "-c", FIRST, workspace]
        subprocess.run(command, env={**os.environ, **environment}, cwd=place, check=True)
        taken = time.perf_counter() - begun
        _end_background(Path(cache))
    return taken


def _end_background(cache: Path) -> None:
    time.sleep(1.0)  # the process may still be starting
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int((cache / "background.process").read_text()), signal.SIGTERM)
        time.sleep(0.5)
