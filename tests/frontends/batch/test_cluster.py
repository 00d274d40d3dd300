# mypy: disable-error-code="no-untyped-call"

"""Notebooks on a cluster: the work of a worker on bytes, and the loss of workers.

Real schedulers and workers are in `tests/soak/test_cluster.py`.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import nbformat
import pytest

from tests.frontends.batch.conftest import Making, executed
from wasm_kernel.frontends.batch import cluster, cluster_task
from wasm_kernel.frontends.batch.cluster import checked, run_on_cluster
from wasm_kernel.frontends.batch.cluster_task import (
    NotebookTask,
    TaskOutcome,
    TaskProgress,
    run_task,
)
from wasm_kernel.frontends.batch.notebook_run import RunSettings
from wasm_kernel.frontends.batch.notebooks import find_sources
from wasm_kernel.frontends.batch.outcome import BatchError, Budgets, Outcome
from wasm_kernel.frontends.batch.reporting import Lines
from wasm_kernel.linux.locks import FileLock
from wasm_kernel.sessions.root import SessionsRoot


class FakeWorker:
    """A worker that records its reports."""

    def __init__(self) -> None:
        self.told: list[TaskProgress] = []

    def log_event(self, topic: str, message: bytes) -> None:
        self.told.append(msgspec.msgpack.decode(message, type=TaskProgress))


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> FakeWorker:
    made = FakeWorker()
    monkeypatch.setattr("distributed.get_worker", lambda: made)
    return made


def task(file: Path, **fields: Any) -> bytes:
    told: dict[str, Any] = {
        "name": "a.ipynb",
        "notebook": file.read_bytes(),
        "topic": "t",
        "attempt": 0,
        "budgets": Budgets(notebook_seconds=60.0),
        "mounts": (),
        "network": (),
        "inputs": {"../extra.csv": b"7"},
        "packages": (),
        "deterministic": False,
        "shared": "",
        "place": "p",
        "resume": False,
    }
    return msgspec.msgpack.encode(NotebookTask(**{**told, **fields}))


def test_a_worker_takes_bytes_and_gives_bytes(
    make: Making, worker: FakeWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = "open('/app/log', 'a').write('{}');"
    first = make("a.ipynb", note.format("a"), note.format("b") + "1/0", "open('/app/log').read()")
    shared = tmp_path / "shared"
    ran = msgspec.msgpack.decode(run_task(task(first, shared=str(shared))), type=TaskOutcome)
    assert (ran.outcome.verdict, ran.outcome.cell) == ("error", 2)
    (lock,) = shared.glob(".*.lock")
    another = FileLock(lock)
    assert another.acquire()
    data = task(first, shared=str(shared), budgets=Budgets(notebook_seconds=0.01))
    with monkeypatch.context() as patched:
        patched.setattr(cluster_task, "_SPARE_SECONDS", 0.0)
        taken = msgspec.msgpack.decode(run_task(data), type=TaskOutcome)
    assert taken.outcome.verdict == "kernel-lost" and "Another worker" in taken.outcome.reason
    threading.Timer(0.1, another.release).start()
    second = make("a.ipynb", note.format("a"), note.format("c"), "open('/app/log').read()")
    again = msgspec.msgpack.decode(run_task(task(second, shared=str(shared))), type=TaskOutcome)
    assert (again.outcome.verdict, again.outcome.kept) == ("ok", 1)
    (tmp_path / "got.ipynb").write_bytes(again.executed)
    assert executed(tmp_path / "got.ipynb")[2][1] == "'ac'"
    assert [*again.files] == ["others.zip"] and not again.outcome.files
    assert [(told.done, told.cells) for told in worker.told] == [
        (0, 3),
        (1, 3),
        (0, 3),
        (2, 3),
        (3, 3),
    ]
    assert [*shared.iterdir()] == [lock]


def test_a_failure_of_the_worker_itself_is_an_outcome(make: Making, worker: FakeWorker) -> None:
    data = task(make("a.ipynb", "1"), shared="/proc/self/nothing")
    ran = msgspec.msgpack.decode(run_task(data), type=TaskOutcome)
    assert ran.outcome.verdict == "kernel-lost" and "/proc" not in ran.outcome.reason


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:8786", "example.org:8786", "tcp://0.0.0.0:1"])
def test_an_open_network_is_refused(address: str) -> None:
    with pytest.raises(BatchError, match="runs code on all"):
        checked(address)


def test_loopback_and_tls_are_taken() -> None:
    assert checked("127.0.0.1:8786") == "tcp://127.0.0.1:8786"
    assert checked("tls://example.org:8786") == "tls://example.org:8786"
    assert checked("tcp://[::1]:8786") == "tcp://[::1]:8786"


def test_tls_without_certificates_is_refused_in_words(tmp_path: Path) -> None:
    settings = RunSettings(root=SessionsRoot(tmp_path))
    with pytest.raises(BatchError, match="needs certificates"):
        run_on_cluster([], settings, (), Lines(io.StringIO()), "tls://example.org:8786")


class FakeFuture:
    def __init__(self, status: str, result: bytes) -> None:
        self.status, self._result = status, result

    def result(self) -> bytes:
        return self._result

    def exception(self) -> Exception:
        return ValueError("why")

    def cancel(self) -> None:
        self.status = "cancelled"


class FakeClient:
    """A client of a cluster that answers by a rule: the fate of each attempt."""

    rule: Callable[[NotebookTask], str]
    status = "running"

    def __init__(self, *args: Any, **options: Any) -> None:
        self.tasks: list[NotebookTask] = []

    def register_plugin(self, plugin: Any) -> None: ...

    def subscribe_topic(self, topic: str, handler: Any) -> None:
        self.heard = handler

    def submit(self, function: Any, data: bytes, *, pure: bool) -> FakeFuture:
        told = msgspec.msgpack.decode(data, type=NotebookTask)
        self.heard((0.0, msgspec.msgpack.encode(TaskProgress(told.name, told.attempt, 0, 1))))
        self.heard((0.0, b"rubbish"))
        book = nbformat.v4.writes(nbformat.v4.new_notebook()).encode()
        names = ("r.csv", "../r.csv", "/r.csv", ".r.csv", "r.sh", "test_r.txt")
        ran = TaskOutcome(
            Outcome(told.name, "ok", files=("../r",)), book, dict.fromkeys(names, b"1")
        )
        if told.name == "good.ipynb" and not told.attempt:
            ran = TaskOutcome(Outcome(told.name, "kernel-lost"), b"")
        if told.name == "liar.ipynb":
            ran = TaskOutcome(Outcome("good.ipynb", "ok", output="/etc/passwd"), b"rubbish")
        return FakeFuture(type(self).rule(told), msgspec.msgpack.encode(ran))

    def close(self) -> None: ...


def test_a_scheduler_that_is_gone_for_good_ends_what_is_left(
    make: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class GoneClient(FakeClient):
        status, made = "closed", 0

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__()
            GoneClient.made += 1
            if GoneClient.made == 2:
                raise OSError

    make("a.ipynb", "1")
    monkeypatch.setattr(GoneClient, "rule", lambda task: "pending", raising=False)
    monkeypatch.setattr("distributed.Client", GoneClient)
    monkeypatch.setattr(cluster, "_POLL_SECONDS", 0.01)
    settings = RunSettings(root=SessionsRoot(tmp_path / "sessions"))
    sources = find_sources([str(tmp_path / "in")], tmp_path / "out")
    (lost,) = run_on_cluster(sources, settings, (), Lines(io.StringIO()), "127.0.0.1:1")
    assert lost.verdict == "kernel-lost" and "use --resume" in lost.reason
    GoneClient.made = 1
    with pytest.raises(BatchError, match="Nothing was run"):
        run_on_cluster(sources, settings, (), Lines(io.StringIO()), "127.0.0.1:1")


def test_notebooks_of_lost_workers_go_to_others_a_limited_number_of_times(
    make: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("good", "once", "always", "broken", "stuck", "liar"):
        make(f"{name}.ipynb", "1")
    rules = {
        "good": lambda task: "finished",
        "once": lambda task: "finished" if task.attempt else "lost",
        "always": lambda task: "cancelled",
        "broken": lambda task: "error",
        "stuck": lambda task: "pending",
        "liar": lambda task: "finished",
    }
    monkeypatch.setattr(FakeClient, "rule", lambda task: rules[task.name[:-6]](task), raising=False)
    monkeypatch.setattr("distributed.Client", FakeClient)
    monkeypatch.setattr(cluster, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(cluster, "_SPARE_SECONDS", 0.05)
    settings = RunSettings(
        root=SessionsRoot(tmp_path / "sessions"), budgets=Budgets(notebook_seconds=0.05)
    )
    sources = find_sources([str(tmp_path / "in")], tmp_path / "out")
    lines = io.StringIO()
    outcomes = run_on_cluster(sources, settings, (), Lines(lines), "127.0.0.1:1")
    verdicts = {each.notebook[:-6]: each.verdict for each in outcomes}
    assert verdicts == {
        "good": "ok",
        "once": "ok",
        "always": "kernel-lost",
        "broken": "kernel-lost",
        "stuck": "kernel-lost",
        "liar": "kernel-lost",
    }
    assert not any(each.output.startswith("/etc") for each in outcomes)
    assert outcomes[2].files == ("good.files/r.csv",)
    assert {
        str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*.*")
    } == {
        *("good.ipynb", "good.files", "good.files/r.csv"),
        *("once.ipynb", "once.files", "once.files/r.csv"),
    }
    assert len(lines.getvalue().splitlines()) == 6
