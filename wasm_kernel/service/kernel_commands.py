"""The commands and facts that only the cells of kernels have, and the notebook's folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.session_guest import SessionGuest
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.notebook import NotShown
from wasm_kernel.folders.private import PrivateFolders
from wasm_kernel.guests.base import switched_off
from wasm_kernel.linux.folders import inode_of
from wasm_kernel.publishing.names import PublishableNames
from wasm_kernel.publishing.publish import (
    PUBLISH,
    PUBLISHED,
    CollectedFiles,
    PublishCommand,
    ResultsNames,
    UnpublishedNotice,
)
from wasm_kernel.service.open_message import KernelSession, NotebookFolder
from wasm_kernel.sessions.forking import FORK, fork_command
from wasm_kernel.sessions.last_use import LastUse

Note = Callable[[str], None]

_PIP_OFF = (
    "%{name} is switched off in this kernel (WasmKernel.pip). Packages of your own can lie in /app "
    "and be imported from there."
)
_FORK_OFF = (
    "%fork is switched off in this kernel (WasmKernel.fork), because sessions that it makes would "
    "stay. None was made."
)
_PRUNE_OFF = (
    "%prune_sessions is off in this kernel, as a notebook by another author could delete "
    "your other sessions with it. Nothing was deleted. To turn it on, start the kernel with "
    "WasmKernel.prune_sessions=True; `wasm-kernel sessions prune` does the same from a terminal."
)
_WRITTEN = "shown as /notebook; files of data that cells write there land in it"
_GONE = "not shown, as it is gone"


def show_notebook(folders: SandboxFolders, beside: NotebookFolder | None, note: Note) -> str:
    """Lets cells see the notebook's folder; returns the result in words.

    Call it before the process is confined: the folder becomes the process's working folder. `note`
    gets the reason why a folder is not shown.
    """
    if beside is None:
        return "not shown"
    privates = PrivateFolders(folders.real.parent, folders.private_root)
    try:
        os.chdir(beside.path)
        if inode_of(Path.cwd().stat()) != beside.identity:
            return _GONE
        folders.show_notebook(privates, Path(beside.secret), tuple(map(Path, beside.kept)))
    except NotShown as problem:
        note(str(problem))
        return f"not shown, as it {problem.why}"
    except OSError:
        return _GONE
    return _WRITTEN if beside.writes else "shown as /notebook, never changed"


def sleeps(kernel: KernelSession, *, deterministic: bool) -> str:
    """Returns in words when the kernel sleeps."""
    if deterministic:
        return "never, as it is deterministic"
    return f"after {kernel.awake_seconds:g} seconds of rest, with its variables on disk"


def add_commands(
    guest: SessionGuest, session: LastUse, kernel: KernelSession, *, pip: bool
) -> None:
    """Adds the commands by which a kernel's cells ask for work that they can't do themselves."""
    commands, path = guest.commands, f"{kernel.workspace}\n"  # for the user only, not the guest
    commands.add("session_path", lambda _, context: context.say(path))
    own = fork_command(guest, of_notebook=kernel.of_notebook)
    commands.add(FORK, own if kernel.fork else switched_off(_FORK_OFF))
    if not pip:
        for name in guest.language_commands:
            commands.add(name, switched_off(_PIP_OFF.format(name=name)))
    if kernel.prune:
        from wasm_kernel.sessions.pruning import prune_command

        commands.add("prune_sessions", prune_command(session.logger))
    else:
        commands.add("prune_sessions", switched_off(_PRUNE_OFF))


def let_results_out(
    guest: SessionGuest, session: LastUse, kernel: KernelSession, note: Note
) -> None:
    """Lets the cells' files reach the notebook's folder if the kernel's settings allow that."""
    names = PublishableNames(kernel.suffixes)
    session = LastUse(session.id, session.folders, SandboxLogger())  # the front end logs files
    publishes = CollectedFiles if kernel.collects else PublishCommand
    publishing = publishes(session, ResultsNames(kernel.results, names))
    link, notebook = publishing.link, session.folders.notebook
    beneath = notebook.beneath if notebook is not None else None
    if beneath is not None and kernel.notebook is not None and kernel.notebook.writes:
        from wasm_kernel.publishing.write_back import WriteBack

        writing = WriteBack(session, beneath.folder, names, note)
        guest.commands.listener, link = writing, writing.link
    elif beneath is not None and not (kernel.publishes_at_end or kernel.collects):
        guest.commands.listener = UnpublishedNotice(session, publishing, note)
    guest.commands.add(PUBLISH, publishing.run)
    guest.commands.add(PUBLISHED, link, from_anywhere=True)
