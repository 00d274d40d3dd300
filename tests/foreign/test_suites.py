"""The test suites of ipykernel, and of tools that run notebooks, against our kernel as `python3`.

The suites are fetched from PyPI into the build folder, beside their own environment.
`exclusions.py` lists tests that can't apply; a test that no longer exists must leave that list.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.faces import completed
from tests.foreign.exclusions import (
    IPYKERNEL,
    NBCLIENT,
    NBMAKE,
    NBVAL_OWN,
    PAPERMILL,
    PYTEST_NOTEBOOK,
)
from wasm_kernel.engine.cache import default_folder

pytestmark = pytest.mark.soak

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "foreign"
BIN = BUILD / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
PYTHON = str(BIN / "python")
SECONDS = 1800
NBVAL = ["--nbval", "--nbval-kernel-name=python3", "-c", "setup.cfg"]
"""nbval brings no settings for pytest, which would otherwise take ours."""
CHANGES = {
    "--nbval-current-env": "--nbval-kernel-name=python3",  # nbval's tests would run ipykernel
    'Version(min="2.1")': "Version()",  # ipykernel's tests read ours after a start of over a second
}
"""The texts of the suites that are replaced."""
NBVAL_NOTEBOOKS = ["exceptions", "latex-example", "minimal_example", "test_coalesce"]
TRAITS = ["--WasmKernel.outputs=trusted", "--WasmKernel.pass_env=PYTEST_NB_EXEC_ENV_VAR"]


@pytest.fixture
def environment_of_suites(environment: dict[str, str]) -> Path:
    """The folder of programs of an environment that has the suites' requirements."""
    done, wanted = BUILD / "installed.txt", (HERE / "requirements.txt").read_text()
    if not done.exists() or done.read_text() != wanted:
        shutil.rmtree(BUILD / "venv", ignore_errors=True)
        make = [sys.executable, "-m", "venv", str(BUILD / "venv")]
        subprocess.run(make, env=environment, check=True)
        fill = [PYTHON, "-m", "pip", "install", "--quiet", "-r", str(HERE / "requirements.txt")]
        subprocess.run(fill, env=environment, check=True)
        done.write_text(wanted)
    return BIN


@pytest.fixture
def default_kernel(
    environment: dict[str, str], environment_of_suites: Path, tmp_path: Path
) -> dict[str, str]:
    """An environment for a process in which the default kernel is ours.

    It shows outputs unchanged, since these suites do not know what is left out for a page. Its
    cache is named, as some of them give each test its own home.
    """
    folder = tmp_path / "kernels" / "python3"
    shutil.copytree(ROOT / "wasm_kernel/frontends/jupyter/kernelspec/python", folder)
    spec = json.loads((folder / "kernel.json").read_text())
    spec["argv"] = [sys.executable, *spec["argv"][1:], *TRAITS]
    spec["env"] |= {"PYTHONPATH": str(ROOT), "WASM_KERNEL_CACHE": str(default_folder())}
    spec["metadata"].pop("kernel_provisioner")  # the suites' environment does not have it
    (folder / "kernel.json").write_text(json.dumps(spec))
    profile = tmp_path / "ipython" / "profile_default"  # one test passes it to its kernel
    profile.mkdir(parents=True)
    temporary = tmp_path / "temporary"  # suites would sweep the folder that contains this one
    temporary.mkdir()
    return environment | {
        "PYTEST_DEBUG_TEMPROOT": str(temporary),
        "IPYTHONDIR": str(profile.parent),
        "JUPYTER_PATH": str(tmp_path),
        "PATH": os.pathsep.join([str(environment_of_suites), environment.get("PATH", "")]),
        "WASM_KERNEL_WORKSPACE_ROOT": str(tmp_path / "sessions"),
    }


def sources(package: str, environment: dict[str, str]) -> Path:
    """The unpacked source distribution of a package, in the version that is required."""
    lines = (HERE / "requirements.txt").read_text().splitlines()
    [pinned] = [line for line in lines if line.startswith(f"{package}==")]
    folder = BUILD / pinned.replace("-", "_").replace("==", "-")
    if not folder.exists():
        command = [PYTHON, "-m", "pip", "download", "--quiet", "--no-deps"]
        options = ["--no-binary", package, "--dest", str(BUILD)]
        subprocess.run([*command, *options, pinned], env=environment, check=True)
        with tarfile.open(BUILD / f"{folder.name}.tar.gz") as archive:
            archive.extractall(BUILD, filter="data")
    for file in folder.glob("tests/test_*.py"):
        text = file.read_text(encoding="utf-8")
        for theirs, ours in CHANGES.items():
            text = text.replace(theirs, ours)
        file.write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("package", "tests", "excluded"),
    [
        ("ipykernel", ["tests"], IPYKERNEL),
        ("nbclient", ["tests"], NBCLIENT),
        ("papermill", ["papermill/tests/test_execute.py"], PAPERMILL),  # others need a cloud
        ("nbval", [*NBVAL, *(f"tests/{name}.ipynb" for name in NBVAL_NOTEBOOKS)], {}),
        ("nbval", ["-c", "setup.cfg", "tests"], NBVAL_OWN),
        ("nbmake", ["tests"], NBMAKE),
        ("pytest-notebook", ["tests"], PYTEST_NOTEBOOK),
    ],
)
def test_a_foreign_suite_passes(
    package: str, tests: list[str], excluded: Mapping[str, str], default_kernel: dict[str, str]
) -> None:
    folder = sources(package, default_kernel)
    pytest_there = [PYTHON, "-m", "pytest", *tests, "--color=no", "--no-showlocals"]
    pytest_there += ["-o", "asyncio_default_fixture_loop_scope=function", "-p", "no:cacheprovider"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return completed(
            [*pytest_there, *arguments], cwd=folder, env=default_kernel, timeout=SECONDS
        )

    known = run("--collect-only", "--quiet").stdout.splitlines()
    assert not [name for name in excluded if not any(line.startswith(name) for line in known)]
    done = run("--timeout=60", *(f"--deselect={name}" for name in excluded))
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
