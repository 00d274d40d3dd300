"""A real Jupyter server with our kernel, and what a front end asks of it for notebooks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient

from tests.end_to_end.real_kernel import SECONDS, heard
from tests.ports import free_port

TOKEN = "of-the-tests"


class OpenNotebook:
    """A notebook that is open in a front end, with its kernel."""

    def __init__(self, server: NotebookServer, path: str) -> None:
        self._server = server
        name = path.rpartition("/")[2]
        kernel = {"name": "wasm-python"}
        asked = {"path": path, "name": name, "type": "notebook", "kernel": kernel}
        self._session = server.ask("POST", "sessions", asked)
        self.kernel_id = self._session["kernel"]["id"]
        self._connect()

    def _connect(self) -> None:
        file = self._server.runtime / f"kernel-{self.kernel_id}.json"
        self.client: Any = BlockingKernelClient(connection_file=str(file))
        self.client.load_connection_file()
        self.client.start_channels()
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                self.client.wait_for_ready(timeout=SECONDS)
            except RuntimeError:  # on a busy machine a kernel's heartbeat begins late
                if time.monotonic() > deadline:
                    raise
            else:
                return

    def run(self, code: str) -> dict[str, str]:
        """Runs a cell; returns its outputs like `RealKernel.run`."""
        return heard(self.client, code)

    def restart(self) -> None:
        """Does what "Restart kernel" does."""
        self.client.stop_channels()
        self._server.ask("POST", f"kernels/{self.kernel_id}/restart", {})
        self._connect()

    def change_kernel(self) -> None:
        """Does what "Change kernel" does: the new kernel starts while the old one runs."""
        self.client.stop_channels()
        asked = {"kernel": {"name": "wasm-python"}}
        session = self._server.ask("PATCH", f"sessions/{self._session['id']}", asked)
        self.kernel_id = session["kernel"]["id"]
        self._connect()

    def rename(self, path: str) -> None:
        """Does what JupyterLab does when a person renames an open notebook."""
        old = self._server.ask("GET", f"sessions/{self._session['id']}")["path"]
        self._server.ask("PATCH", f"contents/{old}", {"path": path})
        name = path.rpartition("/")[2]
        self._server.ask("PATCH", f"sessions/{self._session['id']}", {"path": path, "name": name})

    def close(self) -> None:
        """Does what "Close and shut down notebook" does."""
        self.client.stop_channels()
        self._server.ask("DELETE", f"sessions/{self._session['id']}")


class NotebookServer:
    """A Jupyter server on a folder."""

    def __init__(self, folder: Path, sessions: Path) -> None:
        self.work, self.runtime = folder / "work", folder / "runtime"
        self.work.mkdir()
        self._port = free_port()
        options = {"port": self._port, "port_retries": 0, "root_dir": self.work}
        words = [f"--ServerApp.{name}={value}" for name, value in options.items()]
        token = f"--IdentityProvider.token={TOKEN}"
        command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", token]
        own = {"JUPYTER_RUNTIME_DIR": self.runtime, "WASM_KERNEL_WORKSPACE_ROOT": sessions}
        env = os.environ | {name: str(path) for name, path in own.items()}
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            [*command, *words], env=env, stdout=self._log, stderr=self._log, cwd=self.work
        )

    def wait(self) -> None:
        """Waits until the server answers."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                self.ask("GET", "")
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.1)
            else:
                return

    def ask(self, method: str, path: str, content: object = None) -> Any:
        """Sends a request to the server's REST interface and returns its answer."""
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/api/{path}", data, method=method
        )
        request.add_header("Authorization", f"token {TOKEN}")
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            said = answer.read()
        return json.loads(said) if said else None

    def new(self) -> str:
        """Makes a notebook like "New notebook"; returns its path."""
        return str(self.ask("POST", "contents/", {"type": "notebook"})["path"])

    def save(self, path: str, *cells: str) -> None:
        """Saves a notebook like "Save"."""
        made = [
            {"cell_type": "code", "source": cell, "metadata": {}, "outputs": [], "id": f"cell-{n}"}
            | {"execution_count": None}
            for n, cell in enumerate(cells)
        ]
        book = {"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        self.ask("PUT", f"contents/{path}", {"type": "notebook", "content": book})

    def open(self, path: str) -> OpenNotebook:
        """Opens a notebook with a kernel."""
        return OpenNotebook(self, path)

    def close(self) -> None:
        """Ends the server and its kernels."""
        self._process.terminate()
        self._process.wait(SECONDS)
        self._log.close()


@contextmanager
def serving(folder: Path, sessions: Path) -> Iterator[NotebookServer]:
    """A running server that answers."""
    server = NotebookServer(folder, sessions)
    try:
        server.wait()
        yield server
    finally:
        server.close()
