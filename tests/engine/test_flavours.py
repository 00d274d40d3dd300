"""The flavours that a process may run, and the kill of a process whose guest has no epochs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.tiny import Guest
from tests.engine.without_epochs import KILLED
from wasm_kernel.engine.flavours import FLAVOURS, THIS_PROCESS, Flavour

WITHOUT_EPOCHS = [flavour for flavour in FLAVOURS.values() if not flavour.epochs]


@pytest.mark.parametrize("flavour", WITHOUT_EPOCHS, ids=lambda flavour: flavour.name)
def test_a_process_that_must_live_on_runs_nothing_that_it_could_not_stop(
    flavour: Flavour, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="nobody may kill"):
        Guest(tmp_path, flavour=flavour)


@pytest.mark.parametrize("metered", [False, True])
def test_such_a_process_chooses_what_it_can_stop(metered: bool) -> None:
    chosen = THIS_PROCESS.flavour(metered=metered)
    assert (chosen.epochs, chosen.fuel) == (True, metered)


def run(flavour: str, *scenes: str) -> tuple[list[str], int]:
    """The output and status of a process that may be killed."""
    command = [sys.executable, "-m", "tests.engine.without_epochs", flavour, *scenes]
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
        "output": "came back",
    }
    assert run(flavour, *ended) == (list(ended.values()), 0)


@pytest.mark.parametrize(
    ("scene", "cause"),
    [("deaf", "grace"), ("overdue", "deadline"), ("closed", "closed"), ("work", "deadline")],
)
def test_a_guest_that_does_not_react_ends_with_its_process(scene: str, cause: str) -> None:
    assert run("unchecked", scene) == ([f"killed for {cause}"], KILLED)
