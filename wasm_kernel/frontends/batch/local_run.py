"""`run_sources`: runs many notebooks from this process, some at a time, each in its own sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

from traitlets.config import Config

from wasm_kernel.errors import Door, PolicyError, describe
from wasm_kernel.execution.descriptors import make_room
from wasm_kernel.frontends.batch.comparing import IGNORABLE
from wasm_kernel.frontends.batch.notebook_run import HOOKS, NotebookRun, RunSettings
from wasm_kernel.frontends.batch.notebook_sandbox import read_config, settings_of
from wasm_kernel.frontends.batch.notebooks import NotebookError, Source, read_notebook
from wasm_kernel.frontends.batch.outcome import BatchError, Budgets, Outcome, require
from wasm_kernel.frontends.batch.parameters import check_parameters
from wasm_kernel.frontends.batch.reporting import Progress
from wasm_kernel.kernels.session import begin_upkeep
from wasm_kernel.linux.folders import closing_fd, making_folder
from wasm_kernel.linux.locks import FileLock, try_lock
from wasm_kernel.policy import ExecutionPolicy, Mount, NetworkMode, is_limit
from wasm_kernel.service.program_home import OF_WORKER, own_workers

LOCK = ".wasm-kernel-run"
"""The file beside executed notebooks that a run locks."""

_PREFIX = "wasm-kernel-run-"
_FOLDERS = ("none", "read", "write")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LEFT_SECONDS = 600.0  # by then the workers of a killed run have ended
_NO_HOSTS = (
    "--record and --replay need --network with the hosts that cells may use, or --functions."
)
_NO_OUT = "The folder {folder} can't be written to ({why}). Nothing was run. Name another one."
_NO_SESSIONS = (
    "The folder {folder} for sessions can't be made ({why}). Nothing was run. Name another one "
    "with --sessions."
)
_IN_USE = "Another run writes into {name}. Nothing was run. Wait for it, or name another folder."


def run_sources(
    sources: Sequence[Source], settings: RunSettings, jobs: int | None, progress: Progress
) -> list[Outcome]:
    """Runs `jobs` notebooks at a time, by default one per processor; returns their outcomes.

    Raises `BatchError` if the run can't begin, `BatchStopped` if an executed notebook can't be
    written.
    """
    count = jobs_of(jobs)
    check(sources, settings)
    _check_here(settings)
    remove_left_folders()
    config = read_config()
    own_workers().fork_server.start()  # its process loads while the notebooks are read
    make_room(None, count * OF_WORKER)
    batch = _Batch(settings, progress, config)
    with locked(sources):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(batch.run(sources, count))
        return batch.run_beside(sources, count)  # the caller has a running loop


def jobs_of(jobs: int | None) -> int:
    """Returns how many run at a time, by default one per processor; `BatchError` if below 1."""
    count = len(os.sched_getaffinity(0)) if jobs is None else jobs
    if not is_limit("jobs", count):
        raise BatchError(f"jobs is a whole number above 0, not {jobs!r}. Nothing was run.")
    return count


@dataclass
class _Batch:
    """One run of many notebooks."""

    settings: RunSettings
    progress: Progress
    config: Config
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def run_beside(self, sources: Sequence[Source], jobs: int) -> list[Outcome]:
        """Runs all notebooks on another thread, as this one has a running event loop."""
        loop = asyncio.new_event_loop()
        with ThreadPoolExecutor(1) as threads, contextlib.closing(loop):
            ran = threads.submit(loop.run_until_complete, self.run(sources, jobs))
            try:
                return ran.result()
            except KeyboardInterrupt:
                loop.call_soon_threadsafe(self.stopping.set)
                return ran.result()

    async def run(self, sources: Sequence[Source], jobs: int) -> list[Outcome]:
        """Runs all notebooks; a signal to end makes the remaining ones `cancelled`."""
        loop = asyncio.get_running_loop()
        is_main = threading.current_thread() is threading.main_thread()
        signals = (signal.SIGINT, signal.SIGTERM) if is_main else ()
        for number in signals:
            loop.add_signal_handler(number, self.stopping.set)
        free = asyncio.Semaphore(jobs)
        begin_upkeep(settings_of(self.config, {}), self.settings.root)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._one(source, free)) for source in sources]
        except BaseExceptionGroup as problems:
            raise problems.exceptions[0] from None
        finally:
            for number in signals:
                loop.remove_signal_handler(number)
        return [task.result() for task in tasks]

    async def _one(self, source: Source, free: asyncio.Semaphore) -> Outcome:
        async with free:
            if self.stopping.is_set():
                outcome = Outcome(source.name, "cancelled", "The run was cancelled before it.")
            else:
                run = NotebookRun(source, self.settings, self.config, self.progress, self.stopping)
                outcome = await run.run()
            self.progress.ended(outcome)
            return outcome


def check(sources: Sequence[Source], settings: RunSettings) -> None:
    """Raises `BatchError` for settings that would fail every notebook, before any is run."""
    _check_values(settings)
    if settings.network or settings.exchanges is not None:
        _check_network(settings)
    if settings.parameters:
        require("A parameter", "papermill")
    for file in settings.inputs:
        if not file.is_file():
            raise BatchError(f"There is no file {file}. Nothing was run.")
    for source in sources:
        if settings.parameters:
            with contextlib.suppress(NotebookError):  # its verdict will say so
                check_parameters(read_notebook(source), source.name, settings.parameters)


def _check_values(settings: RunSettings) -> None:
    """Raises `BatchError` for a value of the wrong type, or a name that does not exist."""
    for name, hook in settings.hooks.items():
        if name not in HOOKS:
            raise BatchError(f"There is no hook {name}; there are {', '.join(HOOKS)}.")
        if not callable(hook):
            raise BatchError(f"The hook {name} is not a function. Nothing was run.")
    for wanted, known, found in (
        ("ignored names", IGNORABLE, settings.ignored),
        ("folder is one of", _FOLDERS, (settings.folder,)),
    ):
        if strange := [each for each in found if each not in known]:
            words = f"{wanted} {', '.join(known)}, not {strange[0]!r}"
            raise BatchError(f"{words}. Nothing was run.")
    if not isinstance(settings.budgets, Budgets):
        raise BatchError(f"budgets is of type Budgets, not {settings.budgets!r}. Nothing was run.")


def _check_here(settings: RunSettings) -> None:
    """Raises `BatchError` if no notebook could run on this machine."""
    _check_policy(mounts=settings.mounts)
    try:
        with making_folder(settings.root.path, 0o700):
            pass
    except OSError as problem:
        why = describe(problem)
        raise BatchError(_NO_SESSIONS.format(folder=settings.root.path, why=why)) from None


def _check_policy(**fields: Any) -> None:
    try:
        ExecutionPolicy(**fields)
    except PolicyError as problem:
        option = Door.BATCH.name_of(problem.field)
        raise BatchError(f"{option} {problem.rule}. Nothing was run.") from None


def _check_network(settings: RunSettings) -> None:
    """Raises `BatchError` if no notebook could have its network, or its recorded answers."""
    if not (settings.network or settings.functions.offered):
        raise BatchError(f"{_NO_HOSTS} Nothing was run.")
    _check_policy(network=settings.network, network_mode=settings.network_mode)
    if settings.network:
        require("--network", "h11", "httpcore")
    folder = settings.exchanges
    if folder is None:
        return
    if settings.network_mode == NetworkMode.REPLAY and not folder.is_dir():
        raise BatchError(f"There is no folder {folder} of recorded answers. Nothing was run.")
    here = folder.resolve()
    for mount in map(Mount.parse, settings.mounts):
        there = mount.host.resolve()
        if mount.writable and (here.is_relative_to(there) or there.is_relative_to(here)):
            raise BatchError(f"Cells could change {folder}: a mount has it. Nothing was run.")


@contextlib.contextmanager
def locked(sources: Sequence[Source]) -> Iterator[None]:
    """Keeps other runs from the folders of executed notebooks while the block runs."""
    with contextlib.ExitStack() as held:
        for folder in sorted({source.output.parent for source in sources}):
            lock = FileLock(folder / LOCK)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                is_free = lock.acquire()
            except OSError as problem:
                raise BatchError(_NO_OUT.format(folder=folder, why=describe(problem))) from None
            if not is_free:
                raise BatchError(_IN_USE.format(name=folder.name))
            held.callback(lock.release)
        yield


@contextlib.contextmanager
def run_folder() -> Iterator[Path]:
    """Makes a temporary folder, which is locked while the block runs, and removed at its end."""
    with TemporaryDirectory(prefix=_PREFIX) as path, closing_fd(os.open(path, _FOLDER)) as lock:
        try_lock(lock)
        yield Path(path)


def remove_left_folders() -> None:
    """Removes the folders of killed runs, which hold requirements, and notebooks of a cluster."""
    for path in Path(gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), closing_fd(os.open(path, _FOLDER)) as folder:
            found = os.fstat(folder)
            is_old = time.time() - found.st_mtime > _LEFT_SECONDS
            if is_old and found.st_uid == os.geteuid() and try_lock(folder):
                shutil.rmtree(path)
