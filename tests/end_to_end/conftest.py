"""A kernelspec as the wheel installs it, but for this interpreter and this checkout."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def installed_kernelspec(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`wasm-python` and, under the name of the default kernel, `python3`: both start ours."""
    data = tmp_path_factory.mktemp("share")
    for name in ("wasm-python", "python3"):
        folder = data / "kernels" / name
        shutil.copytree(ROOT / "kernelspec" / "python", folder)
        spec = json.loads((folder / "kernel.json").read_text())
        spec["argv"][0] = sys.executable
        spec["env"]["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        (folder / "kernel.json").write_text(json.dumps(spec))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(data))
        patch.setenv("WASM_KERNEL_WORKSPACE_ROOT", str(tmp_path_factory.mktemp("sessions")))
        yield data
