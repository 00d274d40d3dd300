"""The sandbox of one notebook, with the commands and settings of a kernel."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from traitlets import TraitError
from traitlets.config import Config

from wasm_kernel import events
from wasm_kernel.errors import Door, WorkerLost
from wasm_kernel.events import SandboxLogger
from wasm_kernel.folders.locks import Resume
from wasm_kernel.folders.private import OpenFolder
from wasm_kernel.frontends.batch.batch_session import BatchSession
from wasm_kernel.frontends.batch.outcome import BatchError
from wasm_kernel.kernels.config_files import ConfiguredApp
from wasm_kernel.kernels.session import handlers_beside, opened_beside, place_beside
from wasm_kernel.kernels.settings import SECTION, KernelSettings, SessionSettings, check_names
from wasm_kernel.linux.broker import Handlers
from wasm_kernel.linux.folders import Folder
from wasm_kernel.policy import NetworkMode
from wasm_kernel.service.functions import Functions
from wasm_kernel.service.program_home import ProgramHome
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.service.session_worker import SessionWorker
from wasm_kernel.sessions.session import Session

_NO_SECRET = Path(os.devnull)  # only a kernel has a connection file, which cells must not see
_AWAKE_SECONDS = 3600.0  # between two cells there are only the hooks of a caller
_TOMORROW = "other kernels do not find these files, as no server named a notebook"


def read_config() -> Config:
    """Returns the user's settings of kernels, which hold for batches, too; raises `BatchError`."""
    app = ConfiguredApp()
    try:
        app.load_files()
        check_names(app.config)
    except TraitError as problem:
        raise BatchError(f"{str(problem).removesuffix('.')}. Nothing was run.") from None
    return app.config


def settings_of(config: Config, own: Mapping[str, Any]) -> SessionSettings:
    """Returns the settings of kernels; the batch's `own` settings win."""
    merged = deepcopy(config)
    merged.merge(Config({SECTION: dict(own)}))
    return KernelSettings(config=merged)


class LimitsMet:
    """An `EventLogger` that notes the limits that cells meet, and whether a worker `is_lost`.

    A cell can raise an error of any name, but it can't write events.
    """

    def __init__(self) -> None:
        self.is_lost = False
        self._met = set[str]()

    def info(self, event: str, /, *args: Any, **fields: Any) -> None:
        """Ignores an ordinary event."""

    def warning(self, event: str, /, *args: Any, **fields: Any) -> None:
        """Notes the limit that a cell has met, or the loss of its worker."""
        if event == events.EXECUTION_LIMIT:
            self._met.add(str(fields["limit"]))
        elif event == events.EXECUTION_TRAP and fields["trap"] == WorkerLost.__name__:
            self.is_lost = True

    def pop_all(self) -> set[str]:
        """Returns the limits met since the last call."""
        met, self._met = self._met, set()
        return met


class _NotebookHome(ProgramHome):
    """The home of a notebook's sandbox, which also has the handlers `beside` its notebook."""

    def __init__(self, session: Session, beside: Handlers, exchanges: OpenFolder | None) -> None:
        super().__init__(session)
        self._beside, self._exchanges = beside, exchanges

    def handlers(self, session: SessionWorker) -> Handlers:
        """Returns the handlers of the worker's requests."""
        return {**super().handlers(session), **self._beside}

    def exchanges(self, session: SessionWorker) -> OpenFolder:
        """Returns the opener of the folder that the user named for recorded requests."""
        return self._exchanges or super().exchanges(session)


def _open(folder: Path, *, make: bool) -> Folder:
    if make:
        folder.mkdir(parents=True, exist_ok=True)
    return Folder.open(folder)


def open_sandbox(
    owned: BatchSession,
    settings: SessionSettings,
    folder: Path,
    results: tuple[str, ...],
    limits: LimitsMet,
    *,
    resumes: bool,
    exchanges: Path | None = None,
    functions: Functions,
) -> Sandbox:
    """Opens the sandbox of a notebook in `folder`; its session is `owned`.

    `results` are the names that lead from the executed notebook to the folder for its results.
    `limits` gets the limits that cells meet. If it `resumes` an earlier run, no cell mentions that
    run's variables. `exchanges` is the folder for recorded requests and calls, if the user named
    one. Raises `WasmKernelError` if a setting is not valid, or the session can't be opened.
    """
    policy, logger = settings.policy(Door.BATCH), SandboxLogger(limits)
    session = Session(owned.root, owned.id, logger, mounts=policy.mounts)
    try:
        at = (owned.root, session.id, results)
        place = place_beside(settings, policy, *at, secret=_NO_SECRET, start=folder)
        makes = policy.network_mode == NetworkMode.RECORD
        named = None if exchanges is None else partial(_open, exchanges, make=makes)
        home = _NotebookHome(session, handlers_beside(settings, place), named)
        opened = opened_beside(
            settings,
            policy,
            session,
            place,
            resume=Resume.ALWAYS,
            quiet=resumes,
            collects=True,
            tomorrow=_TOMORROW,
            awake_seconds=_AWAKE_SECONDS,
        )
        made = home.sandbox(opened, policy, logger.bind(session_id=session.id))
        made.take_functions(functions)
        return made
    except BaseException:
        session.closed()
        session.folders.close()
        raise
