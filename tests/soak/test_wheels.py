"""With all published wheels installed, the first cell compiles nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compiled_wheels import MOST_BYTES

ROOT = Path(__file__).resolve().parents[2]
FIRST = """
from wasm_kernel import create_sandbox
with create_sandbox() as sandbox:
    print(sandbox.execute("import pandas as pd; print(pd.DataFrame({'a': [42]}).a.sum())").stdout)
"""

pytestmark = pytest.mark.soak


def test_an_install_with_all_wheels_compiles_nothing(tmp_path: Path) -> None:
    subprocess.run(["make", "wheels"], cwd=ROOT, check=True)
    wheels = sorted((ROOT / "dist").glob("*.whl"))
    assert len(wheels) == 3
    assert [path.name for path in wheels if path.stat().st_size > MOST_BYTES] == []
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", *wheels], check=True)
    cache = tmp_path / "cache"
    environment = {**os.environ, "WASM_KERNEL_CACHE": str(cache)}
    begun = time.monotonic()
    ran = subprocess.run(
        [python, "-c", FIRST], cwd=tmp_path, env=environment, check=True, capture_output=True
    )
    print(f"first result after {time.monotonic() - begun:.1f} s")
    assert ran.stdout.split() == [b"42"]
    assert not [path for path in cache.iterdir() if path.suffix in (".cwasm", ".image")]
