"""A real scheduler and real workers, as processes: a worker is killed, the scheduler restarted."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import distributed
import nbformat
import pytest

from wasm_kernel.frontends.batch.cluster import local_cluster
from wasm_kernel.frontends.batch.outcome import Outcome
from wasm_kernel.frontends.batch.reporting import Progress
from wasm_kernel.frontends.batch.runner import run_notebooks

pytestmark = pytest.mark.soak
NOTEBOOKS = int(os.environ.get("CLUSTER_NOTEBOOKS", "200"))
CELLS = (
    "x = 1\nopen('/app/log', 'a').write('a')",
    "import time; time.sleep(0.2)",
    "open('/app/log').read()",
)


class DaskCluster:
    """A scheduler and workers, started by their command lines on loopback."""

    def __init__(self, folder: Path, held: ExitStack) -> None:
        with socket.create_server(("127.0.0.1", 0)) as found:
            self.address = f"127.0.0.1:{found.getsockname()[1]}"
        self._folder, self._held = folder, held
        self.scheduler = self.start_scheduler()
        self.workers = [self.start_worker() for _ in range(2)]

    def start_scheduler(self) -> subprocess.Popen[bytes]:
        host, port = self.address.split(":")
        return self._start("scheduler", "--host", host, "--port", port, "--no-dashboard")

    def start_worker(self) -> subprocess.Popen[bytes]:
        words = ("--nthreads", "1", "--no-dashboard", "--no-nanny", "--host", "127.0.0.1")
        return self._start("worker", self.address, *words)

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        log = self._held.enter_context((self._folder / f"{words[0]}.log").open("ab"))
        command = [sys.executable, "-m", "dask", *words]
        made = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)
        self._held.callback(made.wait)
        self._held.callback(made.kill)
        return made


@pytest.fixture
def dask(tmp_path: Path) -> Iterator[DaskCluster]:
    with ExitStack() as held:
        folder = tmp_path / "dask"
        folder.mkdir()
        yield DaskCluster(folder, held)


class Watching(Progress):
    """Progress that does something after a number of notebooks."""

    def __init__(self) -> None:
        self.ends: list[Outcome] = []
        self.moments: dict[int, threading.Event] = {}

    def ended(self, outcome: Outcome) -> None:
        self.ends.append(outcome)


@pytest.mark.parametrize("is_shared", [False, True])
def test_every_notebook_ends_just_once(dask: DaskCluster, tmp_path: Path, is_shared: bool) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(NOTEBOOKS):
        cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
        book = nbformat.v4.new_notebook(cells=cells)
        nbformat.write(book, source / f"{number:03}.ipynb")
    watching = Watching()

    def disturb() -> None:
        while len(watching.ends) < NOTEBOOKS // 4:
            time.sleep(0.05)
        dask.workers[0].send_signal(signal.SIGKILL)
        dask.workers.append(dask.start_worker())
        while len(watching.ends) < NOTEBOOKS // 2:
            time.sleep(0.05)
        dask.scheduler.kill()
        dask.scheduler.wait()
        dask.scheduler = dask.start_scheduler()
        dask.workers += [dask.start_worker() for _ in range(2)]

    disturbing = threading.Thread(target=disturb, daemon=True)
    disturbing.start()
    shared = tmp_path / "shared" if is_shared else None
    outcomes = run_notebooks(
        [source], tmp_path / "out", cluster=dask.address, progress=watching, shared=shared
    )
    disturbing.join()
    assert [each for each in outcomes if not each.ok] == []
    assert sorted(each.notebook for each in watching.ends) == [
        f"{n:03}.ipynb" for n in range(NOTEBOOKS)
    ]
    for file in (tmp_path / "out").glob("*.ipynb"):
        last = json.loads(file.read_text())["cells"][-1]["outputs"][0]["data"]["text/plain"]
        assert last == ["'a'"]


def test_a_local_cluster_is_its_owners_and_takes_no_module_from_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask pickles: a client that connects could run code here; any local user reaches a port."""
    for name in ("multiprocessing", "signal", "distributed"):
        Path(tmp_path, f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    with local_cluster(1) as (address, security):
        with distributed.Client(address, security=security, set_as_default=False) as own:
            own.wait_for_workers(1, timeout=60)
        with pytest.raises((OSError, TypeError)):
            distributed.Client(address, timeout=2, set_as_default=False)
        gc.collect()  # distributed waits for ever if it is collected in the start of the next one
        port = address.rpartition(":")[2]
        with pytest.raises(OSError):
            distributed.Client(f"tcp://127.0.0.1:{port}", timeout=2, set_as_default=False)
    assert not Path(tmp_path, "ran").exists()
    assert "PYTHONSAFEPATH" not in os.environ
