"""The stop of a guest, and the kill of its process if it does not react."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.killed import KILLED


def run(flavour: str, *scenes: str) -> tuple[list[str], int]:
    """The output and status of a process that may be killed."""
    command = [sys.executable, "-m", "tests.engine.killed", flavour, *scenes]
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        command, cwd=root, stdout=subprocess.PIPE, text=True, timeout=120, check=False
    )
    return [line.strip() for line in ended.stdout.splitlines()], ended.returncode


@pytest.mark.parametrize("flavour", ["unchecked", "fuel"])
def test_a_guest_that_reacts_is_stopped_through_its_memory(flavour: str) -> None:
    ended = {
        "interrupt": "came back",
        "deadline": "CellTimeout",
        "sleep": "CellTimeout",
        "asking": "CellTimeout",
        "work": "CellTimeout",
        "output": "came back",
    }
    assert run(flavour, *ended) == (list(ended.values()), 0)


@pytest.mark.parametrize(
    ("scene", "cause"),
    [
        ("deaf", "grace"),
        ("overdue", "deadline"),
        pytest.param("closed", "closed", marks=pytest.mark.soak),
    ],
)
def test_a_guest_that_does_not_react_ends_with_its_process(scene: str, cause: str) -> None:
    assert run("unchecked", scene) == ([f"killed for {cause}"], KILLED)
