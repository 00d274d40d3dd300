"""Every benchmark comes to its figures; what they are is not looked at."""

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
BY_THEMSELVES = {
    "files": ("--rounds", "1"),
    "forks": ("--rounds", "1"),
    "sessions": ("--rounds", "3", "--sessions", "50"),
    "workspace": ("--rounds", "3", "--files", "100"),
}


def printed(*words: str) -> str:
    command = [sys.executable, "-m", *words]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("name", BY_THEMSELVES)
def test_one_by_itself_prints_figures(name: str) -> None:
    said = printed(f"tests.benchmarks.{name}", *BY_THEMSELVES[name])
    assert any(map(str.isdigit, said))


@pytest.mark.parametrize("name", MEASURES)
def test_a_measure_of_the_table_prints_its_rows(name: str) -> None:
    if not NATIVE.exists():
        pytest.skip(f"{NATIVE} is missing; make bench makes it")
    table = printed("tests.benchmarks", "--native", str(NATIVE), "--rounds", "1", "--only", name)
    assert len(table.splitlines()) > 3
