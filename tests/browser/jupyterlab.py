"""A JupyterLab server with our kernel, and its page in a browser."""

# mypy: disable-error-code="no-untyped-call"
# (nbformat carries no types)

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat

from tests.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "of-the-tests"
SECONDS = 60
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
KERNELS: Mapping[str, tuple[str, ...]] = {
    "wasm-python": (),
    "wasm-trusted": ("--WasmKernel.outputs=trusted",),
    "wasm-tomorrow": ("--WasmKernel.resume=always",),
    "wasm-slow": ("--WasmKernel.confinement=off",),
    "wasm-plots": (f"--WasmKernel.mounts={sysconfig.get_path('purelib')}:/packages",),
}
GO = "go"
"""The file beside the server's folders that ends the start of the kernel `wasm-slow`."""
NATIVE = ROOT / "build" / "gallery-venv" / "bin" / "python"
"""An environment with ipykernel and the gallery's imports; `make soak` makes it."""

_SETTINGS: Mapping[str, Mapping[str, object]] = {
    # two saves at once end in JupyterLab's question which of them to keep
    "docmanager-extension/plugin": {"autosave": False},
    "notebook-extension/tracker": {"windowingMode": "none", "maxNumberOutputs": 10_000},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}


class Server:
    """One JupyterLab process with folders of its own."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            self._command(),
            env=_environment(folder),
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=self.work,
        )
        self._wait()

    def _command(self) -> list[str]:
        never = "jupyterlab.handlers.announcements.NeverCheckForUpdate"
        options = {
            "ServerApp.port": self.port,
            "ServerApp.port_retries": 0,
            "ZMQChannelsWebsocketConnection.iopub_data_rate_limit": 1e9,  # states of all widgets
            "ServerApp.ip": "127.0.0.1",
            "ServerApp.root_dir": self.work,
            "IdentityProvider.token": TOKEN,
            "LabApp.expose_app_in_browser": True,
            "LabApp.extension_manager": "readonly",
            "LabApp.check_for_updates_class": never,
            "LabApp.news_url": None,
        }
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
        return command + [f"--{name}={value}" for name, value in options.items()]

    def _wait(self) -> None:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                urllib.request.urlopen(f"{self.address}/api?token={TOKEN}", timeout=5).close()
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.1)
            else:
                return

    def notebook(self, name: str, cells: Sequence[str], kernel: str = "wasm-python") -> str:
        """Writes a notebook; returns its path on the server."""
        book = nbformat.v4.new_notebook()
        book.metadata["kernelspec"] = {"name": kernel, "display_name": kernel, "language": "python"}
        book.cells = [nbformat.v4.new_code_cell(source) for source in cells]
        nbformat.write(book, self.work / f"{name}.ipynb")
        return f"{name}.ipynb"

    def close(self) -> None:
        """Ends the server and its kernels."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def _environment(folder: Path) -> dict[str, str]:
    share = folder / "share"
    shutil.copytree(ROOT / "labextension", share / "labextensions" / "wasm-kernel")
    for name, arguments in KERNELS.items():
        spec_folder = share / "kernels" / name
        shutil.copytree(ROOT / "wasm_kernel/frontends/jupyter/kernelspec/python", spec_folder)
        spec = json.loads((spec_folder / "kernel.json").read_text())
        spec["argv"] = [sys.executable, *spec["argv"][1:], *arguments]
        spec["env"]["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        if name == "wasm-slow":
            spec["argv"][spec["argv"].index("wasm_kernel")] = "tests.end_to_end.slow_kernel"
            spec["env"]["SLOW_START"] = str(folder / GO)
        if arguments:
            spec["display_name"] = f"{spec['display_name']}, trusted"
        (spec_folder / "kernel.json").write_text(json.dumps(spec))
    if NATIVE.exists():
        (share / "kernels" / "native").mkdir()
        argv = [str(NATIVE), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec = {"argv": argv, "display_name": "ipykernel", "language": "python"}
        (share / "kernels" / "native" / "kernel.json").write_text(json.dumps(spec))
    for name, values in _SETTINGS.items():
        path = folder / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    own = {
        "JUPYTER_PATH": share,
        "JUPYTER_DATA_DIR": folder / "data",
        "JUPYTER_CONFIG_DIR": folder / "config",
        "JUPYTER_RUNTIME_DIR": folder / "runtime",
        "JUPYTERLAB_SETTINGS_DIR": folder / "settings",
        "JUPYTERLAB_WORKSPACES_DIR": folder / "workspaces",
        "WASM_KERNEL_WORKSPACE_ROOT": folder / "sessions",
        "XDG_STATE_HOME": folder / "state",
    }
    return os.environ | {name: str(path) for name, path in own.items()}


_CLOSE_ALL = """async () => {
    for (const widget of [...jupyterapp.shell.widgets('main')]) {
        if (widget.context) {
            await widget.context.sessionContext.shutdown();
            widget.context.model.dirty = false;
        }
        widget.dispose();
    }
}"""
_OPEN = "path => jupyterapp.commands.execute('docmanager:open', {path}).then(() => null)"
_REOPEN = """async () => {
    const widget = jupyterapp.shell.currentWidget;
    const path = widget.context.path;
    await widget.context.save();
    widget.dispose();
    await jupyterapp.commands.execute('docmanager:open', {path});
}"""
_READY = """async () => {
    const widget = jupyterapp.shell.currentWidget;
    if (!widget || !widget.sessionContext) return false;
    await widget.context.ready;
    await widget.sessionContext.ready;
    const kernel = widget.sessionContext.session && widget.sessionContext.session.kernel;
    return kernel ? Boolean((await kernel.info).status) : false;
}"""


class Lab:
    """JupyterLab's page, for tests that use it as people do.

    Attributes:
        page: Playwright's page.
        outside: Addresses beyond the server that the page asked for.
    """

    def __init__(self, page: Any, server: Server) -> None:
        self.page = page
        self.server = server
        self.outside: list[str] = []
        self._is_loaded = False
        page.set_default_timeout(SECONDS * 1000)
        page.on("request", self._note)

    def _note(self, request: Any) -> None:
        if not request.url.startswith((self.server.address + "/", "data:", "blob:", "about:")):
            self.outside.append(request.url)

    def start(self) -> None:
        """Opens the launcher."""
        if self._is_loaded:
            self.page.evaluate(_CLOSE_ALL)  # JupyterLab then shows the launcher
        else:
            self._load("")
        self.page.wait_for_selector(".jp-Launcher")

    def open(self, notebook: str) -> None:
        """Opens a notebook in the place of the last one, and waits for its kernel."""
        if self._is_loaded:
            self.page.evaluate(_CLOSE_ALL)
            self.page.evaluate(_OPEN, notebook)
            self._wait()
        else:
            self.load(notebook)

    def load(self, notebook: str) -> None:
        """Loads the page again with a notebook, and waits for its kernel."""
        self._load(f"/tree/{notebook}")
        self._wait()

    def reopen(self) -> None:
        """Saves and closes the notebook, and opens it again with its kernel."""
        self.page.evaluate(_REOPEN)
        self._wait()

    def _load(self, path: str) -> None:
        self.page.goto(f"{self.server.address}/lab{path}?token={TOKEN}&reset")
        self._is_loaded = True

    def _wait(self) -> None:
        self.page.wait_for_selector(".jp-Notebook .jp-Cell")
        self.ready()

    def ready(self) -> None:
        """Waits until the kernel has identified itself, and is idle."""
        self.identified()
        self.idle()

    def identified(self) -> None:
        """Waits until the kernel of the current notebook has identified itself."""
        self.page.wait_for_function(_READY)

    def idle(self) -> None:
        """Waits until the kernel is idle."""
        # beside a panel the toolbar may be too narrow to show it
        idle = '.jp-Notebook-ExecutionIndicator[data-status="idle"]'
        self.page.wait_for_selector(idle, state="attached")

    def command(self, name: str) -> None:
        """Runs one of JupyterLab's own commands, and waits for its end."""
        self.page.evaluate("name => jupyterapp.commands.execute(name)", name)

    def run_all(self) -> None:
        """Runs every cell, and waits until the outputs no longer change."""
        self.command("notebook:run-all-cells")
        self.idle()
        self.settle()

    def run(self, number: int) -> None:
        """Runs one cell to its end."""
        self.page.evaluate(
            "number => { jupyterapp.shell.currentWidget.content.activeCellIndex = number; }", number
        )
        self.command("notebook:run-cell")
        self.idle()
        self.settle(100)

    def settle(self, milliseconds: int = 250) -> None:
        """Waits until nothing more appears in the outputs."""
        before, same = -1, 0
        while same < 3:
            now = self.page.evaluate(
                "document.querySelectorAll('.jp-OutputArea-output, .jp-OutputArea-output *').length"
            )
            same = same + 1 if now == before else 0
            before = now
            self.page.wait_for_timeout(milliseconds)

    def cell(self, number: int) -> Any:
        """A cell, counted from 0."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(number)

    def output(self, number: int) -> Any:
        """The output of a cell."""
        return self.cell(number).locator(".jp-Cell-outputArea")

    def prompt(self, number: int) -> str:
        """The prompt of a cell, such as `[1]:`."""
        return str(self.cell(number).locator(".jp-InputArea-prompt").inner_text()).strip()

    def type(self, number: int, source: str) -> None:
        """Types into a cell and runs it, as people do."""
        self.cell(number).locator(".cm-content").click()
        self.page.keyboard.insert_text(source)
        self.page.keyboard.press("Shift+Enter")
