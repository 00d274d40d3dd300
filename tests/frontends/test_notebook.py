"""The notebook for which a kernel was started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wasm_kernel.kernels.settings import LAUNCHER, SESSION_NAME, notebook_of

HANDING_ON = """
import os
from wasm_kernel.kernels.settings import LAUNCHER, notebook_of
print(notebook_of(os.environ | {LAUNCHER: str(os.getpid())}))
"""


def test_the_notebook_is_the_one_that_the_server_names(tmp_path: Path) -> None:
    path = tmp_path / "\udcff.ipynb"
    assert notebook_of({SESSION_NAME: str(path)}) == path
    assert notebook_of({SESSION_NAME: str(path), LAUNCHER: str(os.getpid())}) == path


@pytest.mark.parametrize("name", ["", "a.ipynb", "console-1-1b4e28ba"])
def test_a_name_that_is_not_a_path_names_no_notebook(name: str) -> None:
    assert notebook_of({SESSION_NAME: name}) is None
    assert notebook_of({}) is None


def test_a_batch_run_that_a_notebook_starts_does_not_run_that_notebook(tmp_path: Path) -> None:
    env = os.environ | {SESSION_NAME: str(tmp_path / "outer.ipynb")}
    done = subprocess.run(
        [sys.executable, "-c", HANDING_ON], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "None\n"
