"""The sandbox of one notebook, with the commands and settings of a kernel's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from traitlets import TraitError
from traitlets.config import Config

from wasm_kernel import events
from wasm_kernel.errors import Door, WorkerLost
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.interfaces import NewSession
from wasm_kernel.folders.locks import Resume
from wasm_kernel.frontends.batch.batch_session import BatchSession
from wasm_kernel.frontends.batch.outcome import BatchError
from wasm_kernel.kernels.configured import ConfiguredApp
from wasm_kernel.kernels.settings import (
    SECTION,
    KernelSettings,
    SessionSettings,
    check_names,
    jupyters_folders,
)
from wasm_kernel.linux.broker import Handlers
from wasm_kernel.publishing.names import PublishLimits
from wasm_kernel.publishing.place import AdoptFiles, PlaceBeside, WriteFiles
from wasm_kernel.service.open_message import KernelSession, NotebookFolder
from wasm_kernel.service.program_home import ProgramHome, opened_in
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
    """Returns the settings of kernels, of which the batch's `own` ones win."""
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

    def take(self) -> set[str]:
        """Returns the limits met since the last call."""
        met, self._met = self._met, set()
        return met


class _NotebookHome(ProgramHome):
    """The home of a notebook's sandbox, which may write into the notebook's folder."""

    def __init__(self, session: Session, settings: SessionSettings, place: PlaceBeside) -> None:
        super().__init__(NewSession(session.folders, session.id, session))
        self._settings = settings
        self._place = place

    def handlers(self, session: SessionWorker) -> Handlers:
        """Returns the handlers of the worker's requests."""
        handlers, place = super().handlers(session), self._place
        if self._settings.writes_folder:
            handlers = {**handlers, WriteFiles: place.write, AdoptFiles: place.adopt}
        if not self._settings.prune_sessions:
            return handlers
        from wasm_kernel.sessions.pruning import PruneSessions, prune

        return {**handlers, PruneSessions: prune(place.root)}


def open_sandbox(
    owned: BatchSession,
    settings: SessionSettings,
    folder: Path,
    results: tuple[str, ...],
    limits: LimitsMet,
    *,
    resumes: bool,
) -> Sandbox:
    """Opens the sandbox of a notebook.

    Args:
        owned: Its session.
        settings: The settings of kernels.
        folder: The notebook's folder.
        results: The names that lead from the executed notebook to the folder for its results.
        limits: Gets the limits that cells meet.
        resumes: Whether it goes on with variables of an earlier run, so that no cell tells of them.

    Raises:
        WasmKernelError: a setting is not valid, or the session can't be opened.
    """
    policy, logger = settings.policy(Door.BATCH), SandboxLogger(limits)
    session = Session(owned.root, owned.id, logger, mounts=policy.mounts)
    try:
        place = PlaceBeside(
            root=owned.root,
            session_id=session.id,
            folder=results,
            names=settings.publishable(),
            limits=PublishLimits(policy.workspace_bytes, policy.workspace_files),
            secret=_NO_SECRET,
            most_kept=policy.files_history_bytes,
            kept=jupyters_folders(),
            start=folder,
        )
        home = _NotebookHome(session, settings, place)
        opened = opened_in(
            home.new,
            settings.runtime,
            policy,
            resume=Resume.ALWAYS,
            pip=settings.pip,
            quiet=resumes,
            confinement=settings.confinement,
            kernel=_kernel(session, settings, place),
        )
        return home.sandbox(opened, policy, logger.bind(session_id=session.id))
    except BaseException:
        session.closed()
        session.folders.close()
        raise


def _kernel(session: Session, settings: SessionSettings, place: PlaceBeside) -> KernelSession:
    """Returns what a notebook's cells may ask of the host."""
    notebook = None
    if settings.shows_folder:
        found = place.start.stat()
        notebook = NotebookFolder(
            path=str(place.start),
            identity=(found.st_dev, found.st_ino),
            secret=str(place.secret),
            kept=tuple(map(str, place.kept)),
            writes=settings.writes_folder,
        )
    return KernelSession(
        workspace=str(session.workspace),
        tomorrow=_TOMORROW,
        of_notebook=False,
        reopened=session.folders.reopened,
        fork=False,  # its sessions would stay
        prune=settings.prune_sessions,
        suffixes=place.names.suffixes,
        results=place.folder,
        collects=True,
        publishes_at_end=False,
        notebook=notebook,
        logs=True,
        awake_seconds=_AWAKE_SECONDS,
    )
