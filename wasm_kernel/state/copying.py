"""Giving a fork its files: copies of what its parent's guest sees, and how open ones are called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping

from wasm_kernel.folders.folders import APP, KEPT, LOOSE, TMP, SandboxFolders
from wasm_kernel.guests.python.files import PACKAGES_GUEST
from wasm_kernel.linux import trees
from wasm_kernel.linux.files import file_identity_below
from wasm_kernel.linux.task import QUIET, Task
from wasm_kernel.record import record
from wasm_kernel.state.history import History
from wasm_kernel.state.index import GONE
from wasm_kernel.state.inherit import inherit
from wasm_kernel.wasi_files.preopens import is_hidden_name

_GUESTS = (APP, TMP, PACKAGES_GUEST)


@record
class OpenThere:
    """A file that was open at a commit.

    Attributes:
        written: What the system calls it (`linux/files.py`), as the commit has it.
        known: What it is called in this session; the same, but for what a fork inherited.
        guest: The guest's folder that it lies in.
        path: Its path below that.
    """

    written: str
    known: str
    guest: str
    path: str


def inventory(history: History, twins: Callable[[str], Iterable[str]]) -> set[OpenThere]:
    """The files that were open at any commit of a history, by all that each is called now."""
    return {
        OpenThere(written.identity, identity, known.guest, known.path)
        for commit in list(history.commits.values())
        for written, known in zip(commit.files, history.origin.files_of(commit), strict=True)
        if written.identity and known.path is not None
        for identity in twins(known.identity)
    }


def copy_files(
    folders: SandboxFolders, other: SandboxFolders, task: Task = QUIET
) -> dict[str, str]:
    """Copies what a guest sees of its workspace into another, empty one.

    Returns:
        What could not be copied, by path, and why.

    Raises:
        OSError: it can't be written.
        Cancelled: `task` says that it is not wanted any more.
    """
    left_out: dict[str, str] = {}
    with (
        contextlib.suppress(FileNotFoundError),
        folders.private.enter(LOOSE) as source,
        other.private.enter(LOOSE, make=True) as target,
    ):
        for one in trees.copy_tree(source.fd, target.fd, _nothing, task):
            left_out[f"an unnamed file, {one.path}"] = one.why
    for guest in _GUESTS:
        app = guest == APP
        source, target = folders.seen_at(guest), other.seen_at(guest)
        hidden = is_hidden_name if app else _nothing
        for one in trees.copy_tree(source.fd, target.fd, hidden, task):
            left_out[one.path if app else f"{guest}/{one.path}"] = one.why
    return left_out


def copy_earlier(
    folders: SandboxFolders, other: SandboxFolders, last: int, names: Mapping[str, str]
) -> None:
    """Gives another workspace, which has the files, their earlier versions up to a commit, too.

    What can't be had is not known there; that is no reason to fail.
    """
    with contextlib.suppress(OSError), folders.private.enter(KEPT) as source:
        inherit(source.fd, other.private, KEPT, last, names)


def _nothing(_: str) -> bool:
    return False


def names_in(
    other: SandboxFolders, folders: SandboxFolders, inventory: Iterable[OpenThere]
) -> Mapping[str, str]:
    """What the copies of files are called that were open at any commit (`origin.py`).

    A file is looked up where it was open. One that is there no more, or another by now, is not in
    the copy either. Mounted folders are the same for both, and not named here.
    """
    found: dict[str, str] = {}
    for file in inventory:
        if file.guest not in _GUESTS or not file.written:
            continue
        found.setdefault(file.written, GONE)
        if _called(folders, file) == file.known:
            found[file.written] = _called(other, file)
    return found


def _called(folders: SandboxFolders, file: OpenThere) -> str:
    """What the system calls a file in some folders; empty if it is not there."""
    if not file.path.startswith("/"):
        return file_identity_below(folders.seen_at(file.guest).fd, file.path)
    try:
        with folders.private.enter(LOOSE) as loose:
            return file_identity_below(loose.fd, file.path.removeprefix("/"))
    except OSError:
        return ""
