"""The wheel's kernelspecs for this interpreter and this checkout, and kernels started from them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.real_kernel import RealKernel
from tests.faces import PATIENCE

Starting = Callable[..., RealKernel]
ROOT = Path(__file__).resolve().parents[2]
SLOW = ["-m", "tests.end_to_end.slow_kernel", "--WasmKernel.confinement=off"]


@pytest.fixture(scope="session")
def installed_kernelspec(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Installs the kernels of all languages; the default kernel also has the name `python3`.

    `wasm-slow` is the kernel of `slow_kernel.py`.
    """
    data = tmp_path_factory.mktemp("share")
    languages = {"wasm-python": "python", "python3": "python", "wasm-javascript": "javascript"}
    languages["wasm-slow"] = "python"
    for name, language in languages.items():
        folder = data / "kernels" / name
        shutil.copytree(ROOT / "wasm_kernel/frontends/jupyter/kernelspec" / language, folder)
        spec = json.loads((folder / "kernel.json").read_text())
        spec["argv"][0] = sys.executable
        if name == "wasm-slow":
            spec["argv"][1:3] = SLOW
        paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
        spec["env"]["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        (folder / "kernel.json").write_text(json.dumps(spec))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(data))
        patch.setenv("WASM_KERNEL_WORKSPACE_ROOT", str(tmp_path_factory.mktemp("sessions")))
        yield data


@pytest.fixture(scope="module", autouse=True)
def _installed(
    installed_kernelspec: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Every test here starts kernels by name. A busy machine may take long for a completion."""
    folder = tmp_path_factory.mktemp("config")
    settings = f"c.WasmKernel.query_seconds = {PATIENCE}\n"
    (folder / "jupyter_wasm_kernel_config.py").write_text(settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_CONFIG_PATH", str(folder))
        yield


@contextmanager
def starting_in(root: Path) -> Iterator[Starting]:
    """Starts kernels whose sessions lie in one folder, and ends them."""
    with ExitStack() as ending:

        def one(*given: Any, **options: Any) -> RealKernel:
            return ending.enter_context(RealKernel(root, *given, **options))

        yield one


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKernel]:
    """One kernel for the tests of a file that leave each other's variables alone."""
    with RealKernel(tmp_path_factory.mktemp("kernel") / "sessions") as kernel:
        yield kernel


@pytest.fixture
def start(root: Path) -> Iterator[Starting]:
    """Starts kernels, and ends them."""
    with starting_in(root) as start:
        yield start
