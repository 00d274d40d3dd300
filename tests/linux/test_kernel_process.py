"""Code that escapes from the sandbox can reach nothing in the kernel's own process."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from threadpoolctl import threadpool_limits

from tests.faces import completed, tells_of_start, wait_for
from tests.linux.inside import needs_walls
from tests.ports import write_connection
from tests.private import folders_of
from tests.sampled import sampled
from wasm_kernel import get_session_sandbox
from wasm_kernel.engine.cache import default_folder
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.sessions.session import session_paths

ROOT = Path(__file__).resolve().parents[2]
REACHABLE = {"own files"}
PRODUCT = """
import numpy as np, zlib
a, b = np.random.default_rng(1).random((2, 200, 200))
print(zlib.crc32((a @ b).tobytes()))
"""
Start = Callable[..., Any]

pytestmark = needs_walls


class Probed:
    """A kernel with a probe in its process, and a client."""

    def __init__(
        self, folder: Path, port: int, *arguments: str, cwd: Path | None = None, **env: str
    ) -> None:
        sessions, self.results = folder / "sessions", folder / "results"
        secret = folder / "secret"
        secret.write_text("as it was")
        self.secret = secret
        Path(os.environ["XDG_STATE_HOME"], "wasm-kernel", "notebooks").mkdir(
            mode=0o700, parents=True, exist_ok=True
        )
        file = folder / "connection.json"
        write_connection(file)
        probe = {"PROBE_SECRET": str(secret), "PROBE_PORT": str(port)}
        probe |= {"PROBE_CACHE": str(default_folder()), "PROBE_RESULTS": str(self.results)}
        probe |= {"WASM_KERNEL_WORKSPACE_ROOT": str(sessions), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.linux.probed_kernel", "-f", str(file)]
        self.process = subprocess.Popen(
            [*command, *arguments],
            env=os.environ | probe | env,
            cwd=cwd or folder,
            stderr=subprocess.PIPE,
        )
        self.client: Any = BlockingKernelClient(connection_file=str(file))
        self.client.load_connection_file()
        self.client.start_channels()

    def run(self, code: str) -> str:
        """The text that a cell printed."""
        said: list[str] = []

        def hear(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream" and not tells_of_start(message["content"]["text"]):
                said.append(message["content"]["text"])

        reply = self.client.execute_interactive(code, output_hook=hear, timeout=300)
        assert reply["content"]["status"] == "ok", reply["content"]["evalue"]
        return "".join(said)

    def found(self) -> dict[str, str]:
        """The probe's results, by attack."""
        self.run("open('/app/probe', 'w').close()")
        wait_for(lambda: self.results.read_text().endswith("\n"))
        answer: dict[str, str] = json.loads(self.results.read_text())
        return answer

    def close(self) -> None:
        self.client.shutdown(reply=True, timeout=60)
        self.client.stop_channels()
        assert self.process.stderr is not None
        self.process.wait(60)
        self.process.stderr.close()


@pytest.fixture
def start(tmp_path: Path, ending: ExitStack) -> Start:
    """Starts a probed kernel, while a server listens on a port of this machine."""
    listening = ending.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = listening.getsockname()[1]
    return lambda *words, **env: ending.enter_context(
        closing(Probed(tmp_path, port, *words, **env))
    )


def test_cells_work_and_native_code_in_the_kernel_reaches_nothing_of_the_users(
    start: Start, tmp_path: Path
) -> None:
    book = tmp_path / "book"
    (book / "data").mkdir(parents=True)
    (book / "data" / "x").write_text("x")
    kernel = start(f"--WasmKernel.private_root={tmp_path / 'mine'}", cwd=book)
    assert kernel.run("print(open('data/x').read())") == "x\n"
    kernel.run("import pandas, sqlite3, matplotlib.pyplot as plt; plt.plot([1, 2])")
    kernel.run("open('/app/a', 'w').write('x'); import os; os.makedirs('/app/b')")
    kernel.run("os.rename('/app/a', '/app/b/c'); x = 1; open('/tmp/scratch', 'w').write('x')")
    assert "x" in kernel.run("%undo\nprint(open('/app/b/c').read())").splitlines()
    with threadpool_limits(1), redirect_stdout(StringIO()) as by_the_host:
        exec(PRODUCT, {})
    assert kernel.run(PRODUCT) == by_the_host.getvalue()
    assert kernel.run("print(__import__('tempfile').mkdtemp()[:5])") == "/tmp/\n"
    (private,) = (tmp_path / "mine").iterdir()
    assert (private / "tmp" / "scratch").read_text() == "x"
    assert list((private / "state" / "contents").iterdir())
    assert {name for name, came in kernel.found().items() if came == "done"} == REACHABLE
    assert kernel.secret.read_text() == "as it was"
    assert [path.name for path in book.iterdir()] == ["data"]


def test_without_walls_the_same_probe_reaches_everything(start: Start) -> None:
    # shows that the test above would fail without walls
    assert set(start("--WasmKernel.confinement=off").found().values()) == {"done"}


def test_mounted_folders_stay_in_reach_and_private_state_that_comes_into_one_is_hidden(
    start: Start, tmp_path: Path
) -> None:
    for name in ("read", "write", "out"):
        (tmp_path / name).mkdir()
    (tmp_path / "read" / "data").write_text("mounted")
    mounts = [f"{tmp_path}/read:/data", f"{tmp_path}/write:/write:rw", f"{tmp_path}/out:/out:rw"]
    kernel = start(f"--WasmKernel.mounts={mounts}")
    kernel.run("open('/write/copy', 'w').write(open('/data/data').read())")
    assert (tmp_path / "write" / "copy").read_text() == "mounted"
    assert kernel.run("import os; print(os.listdir('/out'))") == "[]\n"
    place = tmp_path / "out" / "mine"
    session = get_session_sandbox("one", workspace_root=tmp_path / "other", private_root=place)
    with closing(session):
        assert len(list(place.iterdir())) == 1
        assert kernel.run("print(os.listdir('/out'), os.path.exists('/out/mine'))") == "[] False\n"


SHOW = "from IPython.display import HTML, Markdown\ndisplay(HTML('<b>1</b>'), Markdown('# 2'))"


def installed(name: str) -> Path:
    """The folder of an installed package."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


THEIRS = ("jupyter_client", "jupyter_core", "nh3", "tinycss2")


PATHS = {
    "their packages": (".", THEIRS),
    "here": (".", ()),
    "not there": ("/not/there:/etc/hostname::", ()),
    "above": ("{parent}", THEIRS),
}
FOLDERS = {"the project": ROOT, "home": Path.home(), "the packages": installed("traitlets").parent}


@pytest.mark.parametrize(("where", "packages"), sampled(PATHS, 4))
def test_a_kernel_starts_with_any_path(
    start: Start, tmp_path: Path, where: str, packages: tuple[str, ...]
) -> None:
    """F26: also where Python finds the kernel's packages in a folder with the user's own files."""
    cwd = tmp_path / "project" / "notebooks"
    cwd.mkdir(parents=True)
    path = where.format(cwd=cwd, parent=cwd.parent)
    for name in packages:
        shutil.copytree(installed(name), (cwd / path).resolve() / name)
    kernel = start("--WasmKernel.folder=none", cwd=cwd, PYTHONPATH=f"{ROOT}{os.pathsep}{path}")
    kernel.run(SHOW)
    assert {name for name, came in kernel.found().items() if came == "done"} == REACHABLE


@pytest.mark.parametrize("cwd", sampled(FOLDERS, 4))
def test_a_kernel_starts_in_any_folder(start: Start, cwd: Path) -> None:
    """F26: in this project's folder, among the installed packages, in a home on the path."""
    kernel = start(cwd=cwd, PYTHONPATH=f"{ROOT}{os.pathsep}.")
    kernel.run(SHOW)
    reached = {name for name, came in kernel.found().items() if came == "done"}
    packages = {"working folder"} if cwd.name == "site-packages" else set()
    assert reached == REACHABLE | packages


def test_a_module_that_is_missing_is_named_in_a_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "lib" / "tornado"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no such tornado')")
    done = completed(
        [sys.executable, "-m", "wasm_kernel", "-f", str(tmp_path / "connection.json")],
        env=os.environ | {"PYTHONPATH": str(broken.parent), "PYTHONSAFEPATH": "1"},
        cwd="/",
    )
    assert done.returncode == 1
    assert "wasm-kernel: a module can't be imported (no such tornado)" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cache_made_later_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cold = tmp_path / "not" / "there"
    monkeypatch.setenv("WASM_KERNEL_CACHE", str(cold))
    with closing(folders_of(tmp_path / "app")) as folders:
        kept = session_paths(folders, ExecutionPolicy())
    assert cold in kept.readable
    assert cold.stat().st_mode & 0o777 == 0o700


@pytest.mark.soak
def test_a_cold_cache_is_filled_from_outside_the_walls(start: Start, tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    assert start(WASM_KERNEL_CACHE=str(cold)).run("print(1 + 1)").endswith("2\n")
    assert list(cold.glob("*.cwasm"))
