"""`NotebookRun`: runs one notebook, cell by cell, in its own sandbox; writes it after each cell."""

# mypy: disable-error-code="no-untyped-call"
# (nbformat carries no types)

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, to_builtins
from msgspec.structs import replace
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from traitlets import TraitError
from traitlets.config import Config

from wasm_kernel.errors import Door, WasmKernelError, describe
from wasm_kernel.frontends.batch import results
from wasm_kernel.frontends.batch.batch_session import BatchSession
from wasm_kernel.frontends.batch.comparing import difference
from wasm_kernel.frontends.batch.notebook_client import CellClient, NotebookPage
from wasm_kernel.frontends.batch.notebook_sandbox import LimitsMet, open_sandbox, settings_of
from wasm_kernel.frontends.batch.notebooks import (
    Cell,
    NotebookError,
    Source,
    code_cells,
    merged,
    read_notebook,
    read_stored,
    runtime_of,
    write_notebook,
)
from wasm_kernel.frontends.batch.outcome import (
    HINT_CHARACTERS,
    BatchError,
    Budgets,
    NotebookEnded,
    Outcome,
    cleaned,
    plain,
    stopping_limit,
    verdict_of,
)
from wasm_kernel.frontends.batch.parameters import put_in
from wasm_kernel.frontends.batch.reporting import Progress
from wasm_kernel.frontends.batch.resuming import DONE, PreviousRun, state_counts
from wasm_kernel.guests.base import info_of
from wasm_kernel.kernels.settings import SessionSettings
from wasm_kernel.outputs.bundle import Mode
from wasm_kernel.policy import NetworkMode, RuntimeType
from wasm_kernel.result import first_of
from wasm_kernel.service.cleaning import WalledCleaner
from wasm_kernel.service.functions import Functions
from wasm_kernel.service.program_home import own_workers
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.sessions.overview import kept_cells
from wasm_kernel.sessions.root import SessionsRoot

HOOKS = (
    *("on_cell_start", "on_cell_execute", "on_cell_complete"),
    *("on_cell_executed", "on_cell_error"),
)
"""The hooks of nbclient that a run calls."""

RUNNING = "running"
"""The verdict in a notebook's record until there is one."""

_SPARE_STATES = 100  # states that attempts to resume may leave
_STATES_MOST = 10_000
_LARGE = 1024 * 1024  # bytes of a notebook; a larger one is written less often
_PAUSES = 10  # the pause after a write, as a multiple of the write's own time
_LOG = logging.getLogger("wasm_kernel.batch")
_FAULT = "The runner failed in a way that it never should ({kind}); its log says more."
_NOT_KEPT = "Every cell ran, but the variables that they left could not be kept."
_NOT_STARTED = "The kernel did not start: {why}."
_CANCELLED = "The run was cancelled."
_GO_ON = "The same command with --resume goes on from here."
_LATE = "The notebook ran longer than its limit of {seconds:g} seconds."
_MORE_TIME = "Raise --notebook-seconds to allow more."
_DIFFERS = "The outputs are not those that the notebook was stored with."
_NOT_COMPARED = "The outputs can't be compared with the stored ones ({why})."
_NOT_HERE = "The notebook is in {language}, in which submissions can't be graded."
_KEPT_IN = "not collected, but kept in session {id}"
_GONE = "not collected, and gone with the worker"
_NAMED_MOST, _NAME_MOST, _LISTED_MOST = 3, 50, 20
_UNRECORDED = ("notebook", "output", "difference", "traceback")
_MARK = "[wasm-kernel] "
_TRACE_CHARACTERS = 10_000
_TOO_MUCH = "The outputs are longer than allowed; the rest is cut."

T = TypeVar("T")


class RunSettings(Struct, frozen=True, kw_only=True):
    """The settings of a run of notebooks; those not explained here are as in `run_notebooks`.

    Attributes:
        network_mode: The policy's `network_mode`.
        exchanges: The folder for recorded requests and calls, one subfolder a notebook; with
            `replay` it may itself hold those of all notebooks.
        is_graded: Whether the notebook is a submission: it goes on after a cell that raised an
            error, installs no packages, and is refused if it is not in Python.
        keeps_session: Whether the session, with its files, stays if all went well.
        lasts: Whether a later run finds the session, to go on in it.
        packages: The session whose packages notebooks in Python get, if there are any.
        results_bytes: The most bytes of results collected from a notebook; 0 for the default.
    """

    root: SessionsRoot
    budgets: Budgets = Budgets()
    folder: str = "read"
    mounts: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    network_mode: str = NetworkMode.LIVE.value
    exchanges: Path | None = None
    functions: Functions = Functions()
    inputs: tuple[Path, ...] = ()
    parameters: Mapping[str, Any] = {}
    resume: bool = False
    compare: bool = False
    ignored: tuple[str, ...] = ()
    deterministic: bool = False
    hooks: Mapping[str, Callable[..., Any]] = {}
    is_graded: bool = False
    keeps_session: bool = False
    lasts: bool = True
    results_bytes: int = 0
    packages: BatchSession | None = None
    shared: str = ""


def _named(name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a hook: an error in it ends the notebook's run, and the reason names the hook."""

    async def call(**facts: Any) -> None:
        try:
            if isawaitable(made := hook(**facts)):
                await made
        except Exception as problem:
            _LOG.exception("the hook %s failed", name)
            why = f"{type(problem).__name__}: {describe(problem)}"
            text = f"The hook {name} failed ({why}); its log says more."
            raise WasmKernelError(text) from problem

    return call


@dataclass
class NotebookRun:
    """The run of one notebook; `stopping` is set to end the whole batch."""

    source: Source
    settings: RunSettings
    config: Config
    progress: Progress
    stopping: asyncio.Event

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._session = BatchSession(self.settings.root, self.source.output, self._tell_wait)
        self._outcome = Outcome(self.source.name, "ok", output=str(self.source.output))
        self._limits = LimitsMet()
        self._sandbox: Sandbox | None = None
        self._cleaner: WalledCleaner | None = None
        self._book = NotebookNode()
        self._cells: Sequence[Cell] = ()
        self._done = 0
        self._end = math.inf
        self._write_from = 0.0
        self._failed: list[NotebookEnded] = []
        self._before: Sequence[str] = ()  # the results of an earlier run, until they are replaced

    async def run(self) -> Outcome:
        """Runs the notebook; returns its outcome in any case.

        Raises `BatchError` if the executed notebook can't be written.
        """
        began = time.monotonic()
        try:
            earlier = await asyncio.to_thread(self._read)
        except NotebookError as problem:
            self._note(verdict="error", reason=str(problem), output="")
            return self._outcome
        self._before = await asyncio.to_thread(results.earlier_files, self.source.output)
        if earlier is not None and earlier.is_whole:
            kept, note = len(self._cells), "an earlier run did it"
            self._note(kept=kept, note=note, files=self._before)
            return self._outcome
        self.progress.began(self.source.name, len(self._cells))
        try:
            await self._run_all(earlier)
        except NotebookEnded as ended:
            self._note(**ended.fields)
        except BatchError:
            raise
        except WasmKernelError as problem:
            self._note(verdict="kernel-lost", reason=str(problem))
        except Exception as problem:  # one failed notebook must not end a thousand others
            _LOG.exception("a notebook could not be run")
            self._note(verdict="kernel-lost", reason=_FAULT.format(kind=type(problem).__name__))
        is_emptied = not self.settings.keeps_session and await self._collect()
        if self._outcome.ok:
            if is_emptied:
                await asyncio.to_thread(self._session.discard)
            if self.settings.compare:
                ignored = self.settings.ignored
                args = (self.source, self._book, ignored, self._outcome)
                self._outcome = await asyncio.to_thread(compared, *args)
        elif self.settings.lasts:
            await self._note_resumption()
        self._note(seconds=round(time.monotonic() - began, 3))
        await self._write(self._outcome.verdict)
        return self._outcome

    async def _collect(self) -> bool:
        """Collects the files that the notebook wrote; returns whether it could collect all."""
        if self._outcome.verdict in ("cancelled", "kernel-lost") or not self._session.exists:
            return False
        settings, output = self.settings, self.source.output
        most = settings.results_bytes or settings.budgets.disk_bytes or results.RESULTS_BYTES
        try:
            args = (self._session, self.source, settings.inputs, most)
            found = await asyncio.to_thread(results.collect, *args)
            await asyncio.to_thread(results.remove_earlier, output, self._before, found.files)
        except (OSError, WasmKernelError) as problem:
            self._add_note(f"its files could not be collected ({describe(problem)})")
            self._note(left=(".",))
            return False
        self._before = ()
        self._note(files=found.files, left=(*found.left,)[:_LISTED_MOST])
        if found.left:
            where = _KEPT_IN.format(id=self._session.id) if settings.lasts else _GONE
            why = next(iter(found.left.values()))
            self._add_note(f"{where}: {_first_names([*found.left])} ({why})")
        if found.packed:
            self._add_note(f"{results.OTHERS} has {_first_names(found.packed)}")
        return not found.left

    def _tell_wait(self, text: str) -> None:
        """Tells on a thread why the notebook does not go on."""
        self._loop.call_soon_threadsafe(self.progress.noted, f"{self.source.name}: {text}")

    def _add_note(self, text: str) -> None:
        self._note(note="; ".join(filter(None, (self._outcome.note, text))))

    async def _note_resumption(self) -> None:
        """Notes after which cell a later run can go on, if that is not the last cell that ran."""
        kept = await asyncio.to_thread(kept_cells, self._session.root, self._session.id)
        counts = state_counts([cell for _, cell in self._cells])[: self._done]
        last = max((n for n, count in enumerate(counts, 1) if count and count in kept), default=0)
        if last < self._done:
            where = f"goes on after code cell {last}" if last else "begins anew"
            self._add_note(f"--resume {where}, as later states are not kept")

    def _read(self) -> PreviousRun | None:
        """Reads the notebook, and with `resume` also the earlier run."""
        book = read_notebook(self.source)
        self._book = put_in(book, self.settings.parameters) if self.settings.parameters else book
        self._cells = code_cells(self._book)
        language = runtime_of(self._book)
        if self.settings.is_graded and language is not RuntimeType.PYTHON:
            raise NotebookError(_NOT_HERE.format(language=language.value))
        return PreviousRun.found(self.source.output, self._cells) if self.settings.resume else None

    def _note(self, **fields: Any) -> None:
        self._outcome = replace(self._outcome, **fields)

    async def _write(self, verdict: str) -> None:
        told = to_builtins(self._outcome) | {"verdict": verdict, DONE: self._done}
        record = {name: told[name] for name in told if name not in _UNRECORDED}
        if self._before:
            record["files"] = self._before
        if self.settings.deterministic:
            record.pop("seconds", None)
        began = time.monotonic()
        size = await asyncio.to_thread(write_notebook, self._book, self.source.output, record)
        now = time.monotonic()
        self._write_from = now + _PAUSES * (now - began) if size > _LARGE else now

    async def _run_all(self, earlier: PreviousRun | None) -> None:
        try:
            page = await self._open(earlier)
            self._end = time.monotonic() + (self.settings.budgets.notebook_seconds or math.inf)
            await self._write(RUNNING)
            for place, cell in self._cells[self._done :]:
                if not self._failed:
                    self._note(cell=place + 1)
                self._note(cells=self._outcome.cells + 1)
                await self._run_or_go_on(page, place, cell)
                self._done += 1
                self.progress.cell_ended(self.source.name, self._done, len(self._cells))
                if time.monotonic() >= self._write_from:
                    await self._write(RUNNING)
            page.client.set_widgets_metadata()
            if self._failed:
                raise self._failed[0]
            self._note(cell=0)
        finally:
            await self._close()

    async def _close(self) -> None:
        """Closes the sandbox; `WasmKernelError` if all cells ran and the session was not saved."""
        if self._sandbox is None:
            return
        if self._cleaner is not None:  # first, because the sandbox may wait for it
            await asyncio.to_thread(self._cleaner.close)
        await asyncio.to_thread(self._sandbox.close)
        stays = self.settings.keeps_session and 0 < self._done == len(self._cells)
        if stays and not await asyncio.to_thread(self._session.is_whole):
            raise WasmKernelError(_NOT_KEPT)

    async def _open(self, earlier: PreviousRun | None) -> NotebookPage:
        """Opens the sandbox, in the state before the first cell to run."""
        if earlier is not None and earlier.can_resume and self._session.exists:
            await asyncio.to_thread(self._session.wait_unused)
            sandbox, settings = await self._open_sandbox(resumes=True)
            self._done = await self._wait_within_limit(asyncio.to_thread(earlier.go_back, sandbox))
            earlier.copy_outputs(self._done)
            self._note(kept=self._done, note=earlier.note(self._done))
            if self._done:
                return await self._page(sandbox, settings)
            await asyncio.to_thread(sandbox.close)
            self._sandbox = None
        await asyncio.to_thread(self._session.begin, self.settings.inputs)
        packages = self.settings.packages
        if packages is not None and runtime_of(self._book) is RuntimeType.PYTHON:
            await asyncio.to_thread(packages.copy_packages, self._session)
        sandbox, settings = await self._open_sandbox(resumes=False)
        try:
            await self._wait_within_limit(asyncio.wrap_future(sandbox.start()))
        except WasmKernelError as problem:
            raise _not_started(problem) from problem
        return await self._page(sandbox, settings)

    async def _open_sandbox(self, *, resumes: bool) -> tuple[Sandbox, SessionSettings]:
        """Opens the sandbox, with the settings of kernels; its guest starts with the first call."""
        own = self.settings
        named = {
            "language": runtime_of(self._book).value,
            "folder": own.folder,
            "history_cells": min(len(self._cells) + _SPARE_STATES, _STATES_MOST),
            "pip": not own.is_graded,
            "fork": False,  # its sessions would stay
            "deterministic": own.deterministic,
            **({"mounts": [*own.mounts]} if own.mounts else {}),
            **({"network": [*own.network]} if own.network else {}),
            "network_mode": own.network_mode,
            **own.budgets.limits(),
        }
        names = () if own.keeps_session else (results.folder_of(self.source.output).name,)
        try:
            settings = settings_of(self.config, named)
            folder, limits = self.source.folder, self._limits
            args = (self._session, settings, folder, names, limits)
            records = own.network_mode == NetworkMode.RECORD
            kept = own.exchanges and self.source.exchanges_in(own.exchanges, records=records)
            opening = partial(open_sandbox, *args, resumes=resumes, functions=own.functions)
            self._sandbox = await asyncio.to_thread(opening, exchanges=kept)
        except (WasmKernelError, TraitError) as problem:
            raise _not_started(problem) from problem
        return self._sandbox, settings

    async def _page(self, sandbox: Sandbox, settings: SessionSettings) -> NotebookPage:
        """Returns the notebook's page, which nbclient's client fills."""
        runtime = runtime_of(self._book)
        self._book.metadata["language_info"] = dict(info_of(runtime).language_info)
        client = CellClient(self._book, record_timing=not self.settings.deterministic)
        for name, hook in self.settings.hooks.items():
            setattr(client, name, _named(name, hook))
        args = (own_workers().fork_server, Mode(settings.outputs), settings.confinement)
        self._cleaner = await asyncio.to_thread(WalledCleaner, *args)
        return NotebookPage(sandbox, self._cleaner, client)

    async def _run_or_go_on(self, page: NotebookPage, place: int, cell: NotebookNode) -> None:
        """Runs one cell; its own error does not end a notebook that is graded."""
        try:
            await self._run_cell(page, place, cell)
        except NotebookEnded as ended:
            if not self.settings.is_graded or not ended.can_go_on:
                raise self._failed[0] if self._failed else ended from None
            self._failed.append(ended)

    async def _run_cell(self, page: NotebookPage, place: int, cell: NotebookNode) -> None:
        """Runs one cell; raises `NotebookEnded`, or `WasmKernelError`."""
        self._limits.pop_all()  # earlier ones do not belong to this cell
        try:
            await self._wait_within_limit(page.client.run_cell(page, cell, place))
        except CellExecutionError as problem:
            if self._limits.is_lost:
                raise WasmKernelError(plain(problem.evalue)) from None
            raise _failure(self._limits.pop_all(), problem) from None
        finally:
            cell.outputs = merged(cell.outputs)
        met = self._limits.pop_all()
        if limit := stopping_limit(met):
            hint = Door.BATCH.raising(limit, purpose="to see more")
            raise NotebookEnded(verdict_of(met, ""), _TOO_MUCH, hint=hint)

    async def _wait_within_limit(self, work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
        """Waits for `work` within the notebook's time, and until the batch is stopped."""
        left = self._end - time.monotonic()
        task = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait(
                {task, stopping},
                timeout=None if left == math.inf else max(0.0, left),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if task.done():
                return task.result()
            if self.stopping.is_set():
                hint = _GO_ON if self.settings.lasts else ""
                raise NotebookEnded("cancelled", _CANCELLED, hint=hint)
            limit = self.settings.budgets.notebook_seconds
            raise NotebookEnded("timeout", _LATE.format(seconds=limit), hint=_MORE_TIME)
        finally:
            for each in (task, stopping):
                each.cancel()
            with contextlib.suppress(BaseException):
                await task


def _not_started(problem: Exception) -> WasmKernelError:
    return WasmKernelError(_NOT_STARTED.format(why=plain(str(problem)).removesuffix(".")))


def compared(
    source: Source, book: NotebookNode, ignored: Sequence[str], outcome: Outcome
) -> Outcome:
    """Returns the outcome of a notebook whose outputs must equal its stored ones."""
    try:
        found, cell = difference(read_stored(source), book, ignored)
    except RecursionError as problem:  # the stored outputs are untrusted, and may be nested deeply
        why = plain(_NOT_COMPARED.format(why=describe(problem)))
        return replace(outcome, verdict="error", reason=why)
    if not found:
        return outcome
    return replace(outcome, verdict="error", reason=_DIFFERS, cell=cell, difference=found)


def _first_names(files: Sequence[str]) -> str:
    """Returns the names of the first files, and the number of the others."""
    return ", ".join(first_of([plain(each, _NAME_MOST) for each in files], _NAMED_MOST))


def _failure(limits: set[str], problem: CellExecutionError) -> NotebookEnded:
    """Returns the end of a failed cell, by the limits that it met and its error.

    The first sentence of a kernel's text about a limit is the reason; the rest says what is kept.
    """
    verdict, trace = verdict_of(limits, problem.ename), cleaned(problem.traceback)
    reason = plain(f"{problem.ename}: {problem.evalue}")
    hints = [each.removeprefix(_MARK) for each in trace.splitlines() if each.startswith(_MARK)]
    if verdict in ("timeout", "out-of-fuel", "out-of-memory") and limits:
        reason = plain(problem.evalue).partition(". ")[0] + "."
        hints = [each for each in map(Door.BATCH.raising, limits) if each in problem.evalue]
    hint = plain(hints[-1], HINT_CHARACTERS) if hints and hints[-1] not in reason else ""
    told = {"hint": hint, "traceback": trace[-_TRACE_CHARACTERS:]}
    return NotebookEnded(verdict, reason, can_go_on=verdict == "error", **told)
