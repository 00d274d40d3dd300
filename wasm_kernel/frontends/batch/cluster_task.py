"""The task of a cluster's worker: one notebook a task, bytes in and bytes out.

Tasks and results are sent as msgpack of the Structs here, so that they are checked when they are
read. Nothing of a notebook is ever unpickled.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import distributed
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.errors import SessionInUse
from wasm_kernel.frontends.batch.local_run import run_folder, run_sources
from wasm_kernel.frontends.batch.notebook_run import RunSettings
from wasm_kernel.frontends.batch.notebooks import Source
from wasm_kernel.frontends.batch.outcome import BatchError, Budgets, Outcome, Verdict
from wasm_kernel.frontends.batch.packages import installed
from wasm_kernel.frontends.batch.reporting import Progress
from wasm_kernel.frontends.batch.results import SENT_BYTES, read_results
from wasm_kernel.guests.base import load, prepare_on_own_thread
from wasm_kernel.linux.locks import try_lock
from wasm_kernel.policy import RuntimeType
from wasm_kernel.sessions.root import SessionsRoot

_LOG = logging.getLogger("wasm_kernel.batch")
_EXECUTED, _MARK = "executed", "run"
_LOCK_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW  # NFS can't lock folders
_SPARE_SECONDS = 300.0  # beyond a notebook's own limit, for another kernel to start and end
_POLL_SECONDS = 0.25
_TAKEN = "Another worker goes on with this notebook in the shared folder. Nothing was changed."


class NotebookTask(Struct, frozen=True):
    """A notebook to run, with its options; those not explained here are as in `run_notebooks`.

    Attributes:
        topic: The Dask topic for messages about progress.
        packages: Words of a `%pip install` line.
        attempt: The number of earlier attempts.
        place: The name of the notebook's own folder in the shared one; `resume` needs it.
    """

    name: str
    notebook: bytes
    topic: str
    attempt: int
    budgets: Budgets
    mounts: tuple[str, ...]
    network: tuple[str, ...]
    inputs: Mapping[str, bytes]
    packages: tuple[str, ...]
    deterministic: bool
    shared: str
    place: str
    resume: bool


class TaskProgress(Struct, frozen=True):
    """The progress of an attempt at a notebook: the number of code cells `done`, and of all."""

    name: str
    attempt: int
    done: int
    cells: int


class TaskOutcome(Struct, frozen=True):
    """The outcome of a notebook, the executed notebook (empty if there is none), and its results.

    `files` has the results by their paths in the folder for them.
    """

    outcome: Outcome
    executed: bytes
    files: Mapping[str, bytes] = {}


def run_task(data: bytes) -> bytes:
    """Runs one notebook on a worker: takes a `NotebookTask`, and returns a `TaskOutcome`."""
    task = msgspec.msgpack.decode(data, type=NotebookTask)
    try:
        with _alone(task) if task.shared else nullcontext():
            ran = _run(task)
    except (SessionInUse, BatchError) as problem:  # or this worker can't meet its requirements
        verdict: Verdict = "error" if isinstance(problem, BatchError) else "kernel-lost"
        ran = TaskOutcome(Outcome(task.name, verdict, str(problem)), b"")
    except Exception as problem:  # Dask would pickle the error, with all that it refers to
        _LOG.exception("a notebook could not be run")
        reason = f"The worker failed ({type(problem).__name__}); its log says more."
        ran = TaskOutcome(Outcome(task.name, "kernel-lost", reason), b"")
    return msgspec.msgpack.encode(ran)


@contextmanager
def _alone(task: NotebookTask) -> Iterator[None]:
    """Keeps other workers from a notebook's place in the shared folder while the block runs.

    A worker that lost the scheduler was given up, but goes on until its notebook ends, and then
    removes the place. The lock lies beside the place, so that it is the same file for all workers.
    Raises `SessionInUse` if another worker goes on for longer than a notebook may take.
    """
    shared = Path(task.shared)
    shared.mkdir(parents=True, exist_ok=True)
    lock = os.open(shared / f".{task.place}.lock", _LOCK_FLAGS, 0o600)
    try:
        end = time.monotonic() + (task.budgets.notebook_seconds or 0.0) + _SPARE_SECONDS
        while not try_lock(lock):
            if time.monotonic() > end:
                raise SessionInUse(_TAKEN)
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(lock)


def _run(task: NotebookTask) -> TaskOutcome:
    relay = _Relay(distributed.get_worker(), task)
    with run_folder() as here:
        kept = Path(task.shared) / task.place if task.shared else here
        folder, inputs = here / "notebook", here / "inputs"
        for each in (folder, inputs):
            each.mkdir()
        for name, content in task.inputs.items():
            (inputs / Path(name).name).write_bytes(content)
        output = kept / _EXECUTED / Path(task.name).name
        source = Source(task.name, None, output, folder, task.notebook)
        settings = RunSettings(
            root=SessionsRoot(kept / "sessions", kept / "private"),
            budgets=task.budgets,
            mounts=task.mounts,
            network=task.network,
            inputs=tuple(inputs / Path(name).name for name in task.inputs),
            deterministic=task.deterministic,
            lasts=bool(task.shared),
            results_bytes=min(task.budgets.disk_bytes or SENT_BYTES, SENT_BYTES),
            resume=bool(task.shared) and (task.resume or _began_before(kept, task)),
        )
        with installed(settings, task.packages) as with_packages:
            (outcome,) = run_sources([source], with_packages, 1, relay)
        executed = output.read_bytes() if outcome.output else b""
        files = read_results(output, outcome.files)
        if outcome.ok:
            shutil.rmtree(kept, ignore_errors=True)
        return TaskOutcome(replace(outcome, output="", files=()), executed, files)


def _began_before(folder: Path, task: NotebookTask) -> bool:
    """Notes that a task begins; returns whether a lost worker had begun it."""
    mark = folder / _MARK
    with suppress(OSError):
        if mark.read_text(encoding="utf-8") == task.topic:
            return True
    folder.mkdir(parents=True, exist_ok=True)
    mark.write_text(task.topic, encoding="utf-8")
    return False


class _Relay(Progress):
    """Sends the progress of a task to the client."""

    def __init__(self, worker: Any, task: NotebookTask) -> None:
        self._worker = worker
        self._task = task

    def began(self, name: str, cells: int) -> None:
        self.cell_ended(name, 0, cells)

    def cell_ended(self, name: str, done: int, cells: int) -> None:
        told = TaskProgress(name, self._task.attempt, done, cells)
        self._worker.log_event(self._task.topic, msgspec.msgpack.encode(told))


class WarmGuest(distributed.WorkerPlugin):
    """Makes each worker prepare the guest before its first task: no notebook waits for it."""

    name = "wasm-kernel"

    async def setup(self, worker: Any) -> None:
        """Prepares the guest."""
        language = load(RuntimeType.PYTHON)
        await asyncio.to_thread(prepare_on_own_thread, language, UNCHECKED, lambda text: None)
