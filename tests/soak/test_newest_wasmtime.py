"""The newest release of wasmtime, even if our requirement does not accept it yet.

It is installed into its own environment, which takes everything else from ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.faces import completed
from wasm_kernel.engine.wasmtime_api import VERSION

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "newest-wasmtime"
PYTHON = PLACE / "bin" / "python"
KERNELS = Path(sysconfig.get_path("data"), "share", "jupyter")  # the folder with our kernelspecs
SUITES = ("engine", "wasi_files", "state", "specification", "attacks")
SECONDS = 7200


@pytest.fixture(scope="module")
def newest() -> str:
    """The newest release, installed."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(PLACE)], check=True)
    paths = sysconfig.get_paths(vars={"base": str(PLACE), "platbase": str(PLACE)})
    ours = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    Path(paths["purelib"], "ours.pth").write_text(ours)
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed"]
    subprocess.run([*pip, "wasmtime"], check=True)
    say = "from wasm_kernel.engine.wasmtime_api import VERSION; print(VERSION)"
    said = subprocess.run([str(PYTHON), "-c", say], cwd=ROOT, check=True, capture_output=True)
    return said.stdout.decode().strip()


def test_everything_that_meets_the_engine_holds_with_the_newest_release(
    newest: str, environment: dict[str, str]
) -> None:
    if newest == VERSION:
        pytest.skip(f"wasmtime {newest} is the one that everything else here ran with")
    command = [str(PYTHON), "-m", "pytest", "-q", *(f"tests/{suite}" for suite in SUITES)]
    variables = {**environment, "JUPYTER_PATH": str(KERNELS)}
    ended = completed(command, cwd=ROOT, env=variables, timeout=SECONDS)
    assert ended.returncode == os.EX_OK, f"wasmtime {newest}: {ended.stdout[-4000:]}"
