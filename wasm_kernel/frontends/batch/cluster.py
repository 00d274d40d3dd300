"""`run_on_cluster`: notebooks on the workers of a Dask cluster.

Dask pickles functions and arguments between client, scheduler and workers, so a program that can
connect to one of them can run code in all: only TLS and loopback are used. Notebooks are sent as
bytes, and run in sandboxes on the workers as they do here.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import distributed
import msgspec
import nbformat
from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.frontends.batch import cluster_task
from wasm_kernel.frontends.batch.batch_session import session_id_of
from wasm_kernel.frontends.batch.notebook_run import RunSettings, compared
from wasm_kernel.frontends.batch.notebooks import (
    NotebookError,
    Source,
    code_cells,
    parse_notebook,
    read_notebook,
    write_bytes,
)
from wasm_kernel.frontends.batch.outcome import BatchError, Outcome
from wasm_kernel.frontends.batch.parameters import put_in
from wasm_kernel.frontends.batch.reporting import Progress
from wasm_kernel.frontends.batch.results import earlier_files, remove_earlier, write_results
from wasm_kernel.frontends.batch.resuming import PreviousRun

ATTEMPTS = 3
"""The most times that a notebook is given to a worker, if workers or the scheduler are lost."""

NOTEBOOK_SECONDS = 3600.0
"""The seconds for a notebook without such a budget: a run must not wait for ever for a worker."""

_SPARE_SECONDS = 600.0  # beyond the notebook's own limit, for its kernel to start and to end
_CONNECT_SECONDS = 60.0
_POLL_SECONDS = 0.5
_SAFE_PATH = "PYTHONSAFEPATH"
_LOST = "Its workers were lost, or the scheduler, and that {count} times."
_KILLED = "Workers were lost while they ran it, too often for the scheduler."
_GONE = "The scheduler does not answer any more. Start it, and use --resume."
_STUCK = "Its worker did not say how it ended."
_NO_CERTIFICATES = (
    "tls:// needs certificates, and Dask's configuration names none. Nothing was run. Set "
    "distributed.comm.tls.ca-file, and cert and key of distributed.comm.tls.client."
)
_NOT_SAFE = (
    "{address} is neither tls:// nor on this machine. Any program that connects to a Dask "
    "scheduler runs code on all of its workers, and here. Nothing was run. Set up TLS, or use a "
    "tunnel."
)


class _Attempt(Struct):
    """One attempt at a notebook, which a worker runs or will run."""

    source: Source
    number: int = 0
    future: Any = None
    began: float = 0.0  # when a worker last said that it began


def run_on_cluster(
    sources: Sequence[Source],
    settings: RunSettings,
    words: Sequence[str],
    progress: Progress,
    cluster: str | int,
) -> list[Outcome]:
    """Runs notebooks on a cluster; each executed one is written here as soon as it has ended.

    Notebooks in Python have the packages that `words`, of a `%pip install` line, name. The workers
    have the sessions; `settings.shared` says where. `cluster` is the scheduler's address, or how
    many workers to start on this machine. Raises `BatchError` if it is not safe to use.
    """
    seconds = settings.budgets.notebook_seconds or NOTEBOOK_SECONDS
    budgets = replace(settings.budgets, notebook_seconds=seconds)
    with ExitStack() as held:
        if isinstance(cluster, str):
            address = checked(cluster)
            security = _security_of(address)
        else:
            address, security = held.enter_context(local_cluster(cluster))
        settings = replace(settings, budgets=budgets)
        batch = _ClusterBatch(settings, tuple(words), progress, address, security)
        return batch.run(sources)


def checked(address: str) -> str:
    """Returns a scheduler's address with its scheme; `BatchError` if it is not safe to use."""
    whole = address if "://" in address else f"tcp://{address}"
    found = urlsplit(whole)
    host = found.hostname or ""
    with suppress(ValueError):
        if ip_address(host).is_loopback:
            return whole
    if found.scheme == "tls" or host == "localhost":
        return whole
    raise BatchError(_NOT_SAFE.format(address=address))


def _security_of(address: str) -> distributed.Security | None:
    """Returns the certificates of Dask's own configuration, or `BatchError`; None without TLS."""
    if not address.startswith("tls://"):
        return None
    security = distributed.Security()
    if security.get_connection_args("client").get("ssl_context") is None:
        raise BatchError(_NO_CERTIFICATES)
    return security


@contextmanager
def local_cluster(workers: int) -> Iterator[tuple[str, distributed.Security]]:
    """Yields the address and certificate of a cluster on this machine, which ends with the block.

    A client of the cluster runs code with its owner's rights, and any user of the machine reaches
    the port. So clients need the certificate, which exists only in memory.
    """
    security = distributed.Security.temporary()
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"  # Dask's processes would take modules from the current folder
    try:
        with distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None, security=security
        ) as cluster:
            yield str(cluster.scheduler_address), security
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM act as Ctrl-C in the block, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass
class _ClusterBatch:
    """One run of many notebooks on a cluster."""

    settings: RunSettings
    words: tuple[str, ...]
    progress: Progress
    address: str
    security: distributed.Security | None
    topic: str = field(default_factory=lambda: f"wasm-kernel-{uuid.uuid4()}")
    guard: threading.Lock = field(default_factory=threading.Lock)
    attempts: dict[str, _Attempt] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    client: Any = None

    def run(self, sources: Sequence[Source]) -> list[Outcome]:
        """Runs the notebooks; Ctrl-C makes those without an outcome `cancelled`."""
        self.attempts = {source.name: _Attempt(source) for source in sources}
        with _interrupted_by_sigterm():
            try:
                self._connect()
                self._begin()
                while self.attempts:
                    self._poll()
            except KeyboardInterrupt:
                for name in [*self.attempts]:
                    self._end(name, Outcome(name, "cancelled", "The run was cancelled."))
            finally:
                if self.client is not None:
                    self.client.close()
        return [self.outcomes[source.name] for source in sources]

    # -- the cluster

    def _connect(self) -> None:
        """Connects or reconnects to the scheduler; `BatchError` if it does not answer."""
        if self.client is not None:
            self.client.close()
        try:
            self.client = distributed.Client(
                self.address, timeout=_CONNECT_SECONDS, security=self.security, set_as_default=False
            )
            self.client.register_plugin(cluster_task.WarmGuest())
            self.client.subscribe_topic(self.topic, self._heard)
        except (OSError, TimeoutError) as problem:
            raise BatchError(
                f"The scheduler at {self.address} does not answer. Nothing was run."
            ) from problem

    def _begin(self) -> None:
        """Submits all notebooks that no worker has."""
        for name, attempt in [*self.attempts.items()]:
            if attempt.future is None:
                try:
                    data = self._task_of(attempt)
                except NotebookError as problem:
                    self._end(name, Outcome(name, "error", str(problem)))
                    continue
                if data is not None:
                    attempt.future = self.client.submit(cluster_task.run_task, data, pure=False)

    def _task_of(self, attempt: _Attempt) -> bytes | None:
        """The task of a notebook; None if an earlier run finished it.

        Raises `NotebookError` if it can't be run.
        """
        settings, source = self.settings, attempt.source
        book = read_notebook(source)
        if settings.parameters:
            book = put_in(book, settings.parameters)
        cells = code_cells(book)
        earlier = PreviousRun.found(source.output, cells) if settings.resume else None
        if earlier is not None and earlier.is_whole:
            done = Outcome(source.name, "ok", kept=len(cells), note="an earlier run did it")
            files, output = earlier_files(source.output), str(source.output)
            self._end(source.name, replace(done, output=output, files=files))
            return None
        task = cluster_task.NotebookTask(
            name=source.name,
            notebook=nbformat.v4.writes(book).encode(),
            topic=self.topic,
            attempt=attempt.number,
            budgets=settings.budgets,
            mounts=settings.mounts,
            network=settings.network,
            inputs={file.name: file.read_bytes() for file in settings.inputs},
            packages=self.words,
            deterministic=settings.deterministic,
            shared=settings.shared,
            place=session_id_of(source.output),
            resume=settings.resume,
        )
        return msgspec.msgpack.encode(task)

    def _poll(self) -> None:
        """Waits a moment, and takes the results of the notebooks that ended."""
        time.sleep(_POLL_SECONDS)
        if self.client.status == "closed":
            try:
                self._connect()
            except BatchError:
                for name in [*self.attempts]:
                    self._end(name, Outcome(name, "kernel-lost", _GONE))
                return
        limit = self.settings.budgets.notebook_seconds or NOTEBOOK_SECONDS
        begun_since = time.monotonic() - limit - _SPARE_SECONDS
        for name, attempt in [*self.attempts.items()]:
            status = attempt.future.status
            if status == "finished":
                self._take_result(name, attempt)
            elif status in ("error", "cancelled", "lost"):
                self._again(name, attempt)
            elif attempt.began and attempt.began < begun_since:
                attempt.future.cancel()
                self._end(name, Outcome(name, "kernel-lost", _STUCK))
        self._begin()

    def _again(self, name: str, attempt: _Attempt) -> None:
        """Gives a notebook to another worker, or gives it up."""
        number = attempt.number + 1
        if attempt.future.status == "error":
            problem = attempt.future.exception()
            is_killed = isinstance(problem, distributed.KilledWorker)
            why = _KILLED if is_killed else f"The worker failed ({type(problem).__name__})."
            self._end(name, Outcome(name, "kernel-lost", why))
            return
        if number >= ATTEMPTS:
            self._end(name, Outcome(name, "kernel-lost", _LOST.format(count=number)))
            return
        self.attempts[name] = _Attempt(attempt.source, number)

    def _take_result(self, name: str, attempt: _Attempt) -> None:
        """Takes the result of a notebook, and writes it."""
        try:
            ran = msgspec.msgpack.decode(attempt.future.result(), type=cluster_task.TaskOutcome)
        except (msgspec.DecodeError, distributed.CancelledError, OSError):
            self._again(name, attempt)
            return
        if ran.outcome.verdict == "kernel-lost" and attempt.number + 1 < ATTEMPTS:
            self._again(name, attempt)  # perhaps that worker's machine is out of memory
            return
        outcome = replace(ran.outcome, notebook=name, output="", files=())
        try:
            self._end(name, self._write_results(attempt.source, outcome, ran))
        except NotebookError as problem:
            self._end(name, replace(outcome, verdict="kernel-lost", reason=str(problem)))

    def _write_results(
        self, source: Source, outcome: Outcome, ran: cluster_task.TaskOutcome
    ) -> Outcome:
        """Writes an executed notebook and its results, and compares it if the settings ask for it.

        Raises `NotebookError` if the worker's bytes are not a notebook.
        """
        if not ran.executed:
            return outcome
        book, before = parse_notebook(ran.executed), earlier_files(source.output)
        write_bytes(source.output, ran.executed)
        files = write_results(source.output, ran.files)
        remove_earlier(source.output, before, files)
        left = outcome.left or ((".",) if len(files) < len(ran.files) else ())
        outcome = replace(outcome, output=str(source.output), files=files, left=left)
        if not (self.settings.compare and outcome.ok):
            return outcome
        return compared(source, book, self.settings.ignored, outcome)

    def _end(self, name: str, outcome: Outcome) -> None:
        with self.guard:
            self.attempts.pop(name, None)
            self.outcomes[name] = outcome
            self.progress.ended(outcome)

    def _heard(self, event: tuple[float, bytes]) -> None:
        """Takes a worker's message; called on a thread of Dask's client."""
        with self.guard, suppress(msgspec.DecodeError):
            told = msgspec.msgpack.decode(event[1], type=cluster_task.TaskProgress)
            attempt = self.attempts.get(told.name)
            if attempt is None or attempt.number != told.attempt:
                return
            if told.done:
                self.progress.cell_ended(told.name, told.done, told.cells)
            else:  # maybe not for the first time: the scheduler can give it to another worker
                attempt.began = time.monotonic()
                self.progress.began(told.name, told.cells)
