"""Every benchmark prints its figures; their values are not checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.measures import MEASURES

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "build" / "bench-venv"
"""The environment with ipykernel and pandas that `make bench` makes."""


def printed(*words: str) -> str:
    command = [sys.executable, "-m", *words]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_of_the_table_prints_its_rows(name: str) -> None:
    if not NATIVE.exists():
        pytest.skip(f"{NATIVE} is missing; make bench makes it")
    table = printed("tests.benchmarks", "--native", str(NATIVE), "--rounds", "1", "--only", name)
    assert len(table.splitlines()) > 3
