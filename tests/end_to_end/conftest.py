"""The wheel's kernelspec, for this interpreter and this checkout, and kernels that it starts."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.real_kernel import RealKernel

Starting = Callable[..., RealKernel]
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


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where the sessions of a test lie."""
    return tmp_path / "sessions"


@pytest.fixture
def start(root: Path) -> Iterator[Starting]:
    """Starts kernels, and ends them."""
    started: list[RealKernel] = []

    def one(**traits: str) -> RealKernel:
        started.append(RealKernel(root, None, **traits))
        return started[-1]

    yield one
    for kernel in started:
        kernel.shut_down()
