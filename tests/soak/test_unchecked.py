"""The suites also hold for guests without epochs, in a process that may be killed.

If a guest does not react, where an epoch would stop it, this process ends: in a long call into C,
and in a loop that swallows interrupts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sampled import SOAK_SECONDS
from tests.soak import killable

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[2]
SUITES = (
    "tests/attacks/test_interrupts.py",
    "tests/attacks/test_leftovers.py",
    "tests/execution/test_guest_tasks.py",
    "tests/soak/test_interrupts.py",
)
DEAF = ("case_02", "case_04", "leftover", "a_long_cell")
"""Parts of the names of tests whose guests do not react."""
SECONDS = 3600


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_holds_without_epochs(
    suite: str, warm: None, tmp_path: Path, environment: dict[str, str]
) -> None:
    begun, killed = tmp_path / "begun", set[str]()
    begun.touch()
    command = [sys.executable, "-m", "pytest", "-q", "-p", killable.__name__, "-m", "", suite]
    own = {killable.VARIABLE: str(begun), "SOAK_SECONDS": str(SOAK_SECONDS / 3)}
    while True:
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=environment | own,
            stdout=subprocess.PIPE,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if ended.returncode != killable.STATUS:
            break
        killed.add(begun.read_text().splitlines()[-1])
    # the test that was killed may have been the last one
    assert ended.returncode in (os.EX_OK, pytest.ExitCode.NO_TESTS_COLLECTED), ended.stdout[-4000:]
    assert all(any(part in name for part in DEAF) for name in killed), killed
