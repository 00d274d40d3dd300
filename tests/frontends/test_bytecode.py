"""Where an installer left no bytecode, the first confined kernel has it written from outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import wasm_kernel
from wasm_kernel.confinement import walls

pytestmark = pytest.mark.skipif(not walls.possible().standing, reason="no confinement here")

PATIENCE = 60.0
HIRED = """
from wasm_kernel.frontends.jupyter.enclosure import Enclosure
enclosure = Enclosure("auto")
enclosure.hire({})
enclosure.end()
"""


def hire(packages: Path) -> None:
    """Do what a kernel does first, with the modules below `packages`."""
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-P", "-c", HIRED], env=environment, check=True)


def test_a_confined_kernel_leaves_bytecode_for_the_next(tmp_path: Path) -> None:
    ours = Path(wasm_kernel.__file__).parent
    fresh = tmp_path / "wasm_kernel"
    shutil.copytree(ours, fresh, ignore=shutil.ignore_patterns("__pycache__"))
    hire(tmp_path)
    jupyter, memory = fresh / "frontends" / "jupyter", fresh / "engine" / "memory"
    until = time.monotonic() + PATIENCE
    while not list(jupyter.glob("__pycache__/kernel.*.pyc")) and time.monotonic() < until:
        time.sleep(0.05)
    assert list(jupyter.glob("__pycache__/kernel.*.pyc"))
    while not list(memory.glob("__pycache__/recorder.*.pyc")) and time.monotonic() < until:
        time.sleep(0.05)
    assert list(memory.glob("__pycache__/recorder.*.pyc"))
