"""The session of a notebook by the settings of kernels: its requests beyond its worker."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wasm_kernel.folders.locks import Resume
from wasm_kernel.folders.notebook_file import NotebookFile
from wasm_kernel.kernels.settings import SessionSettings, jupyters_folders
from wasm_kernel.linux.broker import Handlers
from wasm_kernel.linux.folders import inode_of
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.publishing.names import PublishableNames
from wasm_kernel.publishing.place import AdoptFiles, PlaceBeside, WriteFiles
from wasm_kernel.service.open_message import KernelSession, NotebookFolder, Open
from wasm_kernel.service.program_home import opened_in
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session

if TYPE_CHECKING:
    from wasm_kernel.sessions.upkeep import Upkeep


def place_beside(
    settings: SessionSettings,
    policy: ExecutionPolicy,
    root: SessionsRoot,
    session_id: str,
    folder: tuple[str, ...],
    *,
    secret: Path,
    follows: NotebookFile | None = None,
    start: Path = Path(),
) -> PlaceBeside:
    """Returns the place beside a notebook that files of its session go to; see `PlaceBeside`."""
    names, kept = PublishableNames(settings.publish_suffixes), jupyters_folders()
    return PlaceBeside(root, session_id, folder, names, policy, secret, kept, follows, start)


def handlers_beside(settings: SessionSettings, place: PlaceBeside) -> Handlers:
    """Returns the handlers of requests that the settings allow, whatever the notebook.

    Each handler checks its request as untrusted input.
    """
    handlers: Handlers = {}
    if settings.folder == "write":
        handlers = {WriteFiles: place.write, AdoptFiles: place.adopt}
    if not settings.prune_sessions:
        return handlers
    from wasm_kernel.sessions.pruning import PruneSessions, prune

    return {**handlers, PruneSessions: prune(place.root)}


def opened_beside(
    settings: SessionSettings,
    policy: ExecutionPolicy,
    session: Session,
    place: PlaceBeside,
    *,
    resume: Resume,
    quiet: bool = False,
    **own: Any,
) -> Open:
    """Returns the message that opens a notebook's session in a worker.

    `own` are the fields of `KernelSession` that the caller knows, not the settings.
    """
    kernel = KernelSession(
        workspace=str(session.workspace),
        reopened=session.folders.reopened,
        fork=settings.fork,
        prune=settings.prune_sessions,
        suffixes=place.names.suffixes,
        results=place.into,
        notebook=_shown_folder(settings, place),
        **own,
    )
    return opened_in(
        session,
        settings.runtime,
        policy,
        resume=resume,
        pip=settings.pip,
        quiet=quiet,
        confinement=settings.confinement,
        kernel=kernel,
    )


def upkeep_of(settings: SessionSettings, root: SessionsRoot) -> Upkeep:
    """Returns the upkeep of all sessions of a root, by the settings' bounds."""
    from wasm_kernel.sessions.upkeep import Upkeep

    return Upkeep(root, most_bytes=settings.sessions_bytes, days=settings.sessions_days)


def begin_upkeep(settings: SessionSettings, root: SessionsRoot, seconds: float = 0.0) -> None:
    """Begins the upkeep after some seconds, on another thread, if the settings have bounds."""
    if settings.sessions_bytes or settings.sessions_days:
        later = threading.Timer(seconds, lambda: upkeep_of(settings, root).run())
        later.daemon = True
        later.start()


def _shown_folder(settings: SessionSettings, place: PlaceBeside) -> NotebookFolder | None:
    """Returns the notebook's folder, if cells see it; None if it is gone."""
    if settings.folder == "none":
        return None
    try:
        here = place.start.absolute()
        found = here.stat()
    except OSError:
        return None
    return NotebookFolder(
        path=str(here),
        identity=inode_of(found),
        secret=str(place.secret),
        kept=tuple(map(str, place.kept)),
        writes=settings.folder == "write",
    )
