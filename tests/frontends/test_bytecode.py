"""In an installed package, the first kernel starts a forker, which writes bytecode."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import wasm_kernel
from wasm_kernel.linux import confinement

pytestmark = pytest.mark.skipif(not confinement.possible().is_complete, reason="no walls here")

PATIENCE = 60.0
KERNEL = """
import sys
from wasm_kernel.frontends.jupyter import launcher
launcher.start(launcher.forker_name())
sys.stdin.read()  # a kernel lives for a while
"""


@contextmanager
def kernel(packages: Path) -> Iterator[None]:
    """A process that begins like a kernel, with the modules below `packages`."""
    environment = {**os.environ, "PYTHONPATH": str(packages), "XDG_RUNTIME_DIR": str(packages)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-P", "-c", KERNEL]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as process:
        yield
        process.communicate()
    assert process.returncode == 0


def test_the_first_kernel_leaves_bytecode_and_a_forker_for_the_next(tmp_path: Path) -> None:
    fresh = tmp_path / "wasm_kernel"
    ours = Path(wasm_kernel.__file__).parent
    shutil.copytree(ours, fresh, ignore=shutil.ignore_patterns("__pycache__"))
    (fresh / "_guest").mkdir(exist_ok=True)
    (fresh / "_guest" / "NOTICE").touch()  # a wheel has such files, and no checkout
    until = time.monotonic() + PATIENCE
    with kernel(tmp_path):
        for pattern in (
            "wasm_kernel/frontends/jupyter/__pycache__/kernel.*.pyc",
            "wasm_kernel/state/__pycache__/rec*.pyc",
            "wasm-kernel/forkers/*",
        ):
            while not list(tmp_path.glob(pattern)) and time.monotonic() < until:
                time.sleep(0.05)
            assert list(tmp_path.glob(pattern)), pattern
