"""The examples do what they say."""

from __future__ import annotations

import csv
import shutil
import sys
from pathlib import Path

import pytest

from tests.faces import completed

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.soak


@pytest.fixture
def examples(tmp_path: Path, environment: dict[str, str]) -> Path:
    """A copy of all examples, which finds the command of this environment."""
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    return Path(shutil.copytree(ROOT / "examples", tmp_path / "examples"))


def run(folder: Path, environment: dict[str, str]) -> str:
    done = completed([str(folder / "run.sh")], env=environment, timeout=None)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_course(examples: Path, environment: dict[str, str]) -> None:
    told = run(examples / "course", environment)
    rows = [*csv.DictReader((examples / "course/graded/grades.csv").read_text().splitlines())]
    assert [row["earned"] for row in rows] == ["10", "0"]
    assert "the_stack_has_a_docstring" in told
    assert "mean_is_quick" not in (examples / "course/graded/feedback/bob.md").read_text()


def test_the_nightly_reports(examples: Path, environment: dict[str, str]) -> None:
    folder = examples / "nightly"
    assert "2 notebooks: 2 ok" in run(folder, environment)
    assert "data:image/png" in (folder / "done/2026-11-23/index.html").read_text()
    assert "an earlier run did it" in run(folder, environment)


def test_the_cluster(examples: Path, environment: dict[str, str]) -> None:
    assert "2 notebooks: 2 ok" in run(examples / "cluster", environment)


def test_an_agent_makes_a_mistake_and_has_its_totals_in_the_end(
    examples: Path, environment: dict[str, str]
) -> None:
    told = run(examples / "agent", environment)
    assert "KeyError: 'town'" in told
    assert "<image/png" in told
    assert told.rstrip().endswith("city,amount\nOslo,320\nPisa,45\nRome,390")
