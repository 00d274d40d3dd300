"""The modules that a kernel has imported when its guest begins to start, and at its first answer.

Each module costs time, and large ones milliseconds. The test counts modules, because times are
noise.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

KERNEL = str(Path(__file__).with_name("started_kernel.py"))
PATIENCE = 180.0

Moments = dict[str, set[str]]

# Modules of other parts, or that few cells need; `{name}.` stands for everything below it.
BEFORE_THE_GUEST = {
    *("IPython", "debugpy", "ipykernel", "jupyter_client", "tornado", "zmq", "psutil", "dateutil"),
    *("email", "http", "importlib.metadata", "sqlite3", "zoneinfo", "_strptime"),
}
BEFORE_THE_REPLY = {
    *("IPython.core.interactiveshell", "IPython.terminal", "jupyter_client.manager", "psutil"),
    *("debugpy", "email", "http", "markdown_it", "nbformat", "nh3", "numpy", "threadpoolctl"),
    *(
        "importlib.metadata",
        "sqlite3",
        "structlog",
        "tinycss2",
        "urllib.request",
        "mcp",
        "pydantic",
        "xml",
        "pip",
    ),
    *("wasm_kernel.outputs.html", "wasm_kernel.outputs.charts", "wasm_kernel.outputs.documents"),
    *("wasm_kernel.outputs.markdown", "wasm_kernel.outputs.tex", "curses"),
    *("wasm_kernel.outputs.widgets", "wasm_kernel.guests.python.packages", "installer"),
    "wasm_kernel.sessions.pruning",
    *("wasm_kernel.sessions.files", "wasm_kernel.frontends.cli"),
}


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> Moments:
    """The modules that an ordinary start has imported at each of the two moments."""
    return _start(tmp_path_factory.mktemp("start"))


def _start(folder: Path) -> Moments:
    root = f"--WasmKernel.workspace_root={folder / 'workspace'}"
    argv = [sys.executable, KERNEL, "-f", "{connection_file}", root]
    manager = KernelManager()
    manager._kernel_spec = KernelSpec(argv=argv, env={"PYTHONSAFEPATH": "1"})
    said = folder / "said"
    with said.open("w") as log:
        manager.start_kernel(cwd=str(folder), stderr=log)
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE)
        client.execute_interactive("1+1", timeout=PATIENCE)
        until = time.monotonic() + PATIENCE
        while "reply" not in (found := _found(said)) and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    return found


def _found(said: Path) -> Moments:
    lines = [line for line in said.read_text().splitlines(keepends=True) if line.endswith("}\n")]
    return {name: set(names) for line in lines for name, names in json.loads(line).items()}


def _among(loaded: set[str], unwanted: set[str]) -> list[str]:
    return sorted(
        name for name in loaded if any(name == no or name.startswith(f"{no}.") for no in unwanted)
    )


def test_a_launcher_imports_nothing_long_and_names_all_variables_that_it_reads() -> None:
    code = "import sys; from wasm_kernel.frontends.jupyter import launcher, ports"
    code += "; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    dear = {"typing", "enum", "re", "socket", "signal", "pathlib", "subprocess", "hashlib", "json"}
    assert _among(set(done.stdout.split()), dear | {"traitlets", "msgspec", "asyncio"}) == []
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) - HARMLESS == set()


READ = """
import os, sys
read, its_own = set(), type(os.environ).__getitem__
def getitem(self, name):
    read.add(name)
    return its_own(self, name)
from wasm_kernel.frontends.jupyter import launcher
launcher.variables = dict
type(os.environ).__getitem__ = getitem
from wasm_kernel.frontends.jupyter import forker
forks = forker.WorkerForks()
forks.prepare()
forker._load(forks)
print(*(name for name in read if not f"{name}=".startswith(launcher.VARIABLES)))
"""
HARMLESS = {
    "COLUMNS",
    "LINES",
    "ANDROID_DATA",
    *("FORCE_COLOR", "NO_COLOR", "TERM"),  # for argparse's errors
    *("_PYTHON_HOST_PLATFORM", "_PYTHON_PROJECT_BASE", "_PYTHON_SUBPROCESS_USE_POSIX_SPAWN"),
    *("_PYTHON_SYSCONFIGDATA_NAME", "_PYTHON_SYSCONFIGDATA_PATH"),
}


def test_the_guest_starts_before_jupyter_and_its_cell_waits_for_nothing(moments: Moments) -> None:
    assert _among(moments["guest"], BEFORE_THE_GUEST) == []
    assert _among(moments["reply"], BEFORE_THE_REPLY) == []
