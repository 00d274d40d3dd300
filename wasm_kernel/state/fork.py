"""Forking a session: another session's folders get its files, and its states as they are.

Files and the contents of states are cloned if the file system can do that, and copied otherwise. No
file belongs to two sessions: if an attacker took over one session's process, it could write to
files of the other session.

A worker is confined to its own session's folders. So it asks for a fork, and waits with
everything on disk. A process outside the confinement makes the fork (`fork_stored`), and does not
trust what it reads in the session's folders.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from wasm_kernel.errors import ForkError, HistoryError, describe
from wasm_kernel.folders.folders import EXCHANGES, KEPT, STATE, TMP, UNLINKED, SandboxFolders
from wasm_kernel.folders.locks import note_forked
from wasm_kernel.linux.files import FREE_BYTES, FileCopier, file_identity_below, is_full
from wasm_kernel.linux.folders import Folder, closing_fd
from wasm_kernel.linux.task import Cancelled, Task
from wasm_kernel.linux.trees import copy_tree
from wasm_kernel.result import readable
from wasm_kernel.state.commits import CONTENTS, missing_in
from wasm_kernel.state.file_contents import FileContents
from wasm_kernel.state.file_ledger import FileLedger
from wasm_kernel.state.index import GONE, ForkOrigin
from wasm_kernel.state.stored import StoredState, write_state
from wasm_kernel.state.tree import Tree
from wasm_kernel.wasi_files.file_history import is_unlinked_name
from wasm_kernel.wasi_files.preopens import APP, is_hidden_name

INTERRUPTED = "it was interrupted"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_COPIED_MOST = 64 * 1024 * 1024
_OWN = (APP, TMP)
"""The guest's folders whose files belong to one session, which may change them."""


def fork_stored(
    source: SandboxFolders, target: SandboxFolders, *, reseed: bool, task: Task
) -> Mapping[str, str]:
    """Makes a fork, in empty folders, of a session that waits with everything on disk.

    With `reseed`, the fork's guest draws other random numbers. Returns the reasons why files could
    not be copied, by path. After a `ForkError`, discard the folders.
    """
    try:
        _check_disk(target)
        with source.private.enter(STATE) as state:
            image, tree = whole_states(state)
            left_out = _copy_files(source, target, task)
            ledger = FileLedger(source.private, KEPT)
            ledger.load(tree.last, crashed=True)
            names = _names_in(target, source, tree, ledger)
            with contextlib.suppress(OSError):  # the fork then knows fewer earlier versions
                _copy_earlier(ledger, source, target, names)
            note_forked(target.private)
            tree = replace(tree, origin=ForkOrigin(tree.last, reseed, names))
            with target.private.enter(STATE, make=True) as there:
                copy_states(state, there, image, tree, task)
        _check_disk(target)
    except Cancelled as problem:
        raise ForkError(INTERRUPTED) from problem
    except (OSError, HistoryError) as problem:
        raise ForkError(describe(problem)) from problem
    return left_out


def _check_disk(target: SandboxFolders) -> None:
    if is_full(target.workspace.fd) or is_full(target.private.fd):
        why = f"its disk would have less than {readable(FREE_BYTES)} left"
        raise ForkError(why, "Delete files there that are no longer needed, such as old sessions.")


def whole_states(state: Folder) -> tuple[str, Tree]:
    """Returns the base image and the commits of a stored state; `HistoryError` if it is damaged."""
    stored = StoredState.read(state)
    with state.enter(CONTENTS) as contents:
        missing = missing_in(contents, stored.tree.commits.values())
    if missing or (usable := stored.usable(())).is_damaged or not usable.is_certain:
        raise HistoryError("a part of its saved states is damaged or not a regular file")
    return stored.image, usable.tree


def copy_states(source: Folder, target: Folder, image: str, tree: Tree, task: Task) -> None:
    """Writes the commits of a tree and copies of their contents into an empty folder."""
    sizes = {commit.content: commit.page_bytes for commit in tree.commits.values()}
    with source.enter(CONTENTS) as here, target.enter(CONTENTS, make=True) as there:
        for name in sizes.keys() - {""}:
            with (
                closing_fd(here.open_regular(name)) as content,
                closing_fd(there.open_regular(name, _NEW, 0o400)) as copy,
            ):
                FileCopier(task).copy(content, copy, sizes[name])
    write_state(target, image, tree)


def _copy_files(source: SandboxFolders, target: SandboxFolders, task: Task) -> dict[str, str]:
    """Copies all files that a session's guest knows; returns why some could not be copied."""
    left_out: dict[str, str] = {}

    def copy(
        here: Folder, there: Folder, label: str, hidden: Callable[[str], bool] = lambda _: False
    ) -> None:
        for path, why in copy_tree(here.fd, there.fd, hidden, task).items():
            left_out[f"{label}{path}"] = why

    for name, label in ((UNLINKED, "an unnamed file, "), (EXCHANGES, "recorded requests, ")):
        with (
            contextlib.suppress(FileNotFoundError),
            source.private.enter(name) as here,
            target.private.enter(name, make=True) as there,
        ):
            copy(here, there, label)
    copy(source.workspace, target.workspace, "", is_hidden_name)
    copy(source.scratch, target.scratch, f"{TMP}/")
    copy(source.packages, target.packages, "packages/")
    return left_out


def _names_in(
    target: SandboxFolders, source: SandboxFolders, tree: Tree, ledger: FileLedger
) -> Mapping[str, str]:
    """Returns the copies' identities, by those of the files open at any commit (`ForkOrigin`).

    A file is looked up at the path where it was open. If it is gone or replaced by another, the
    copy has no such file either (`GONE`). Mounted folders are the same for both, and left out.
    """
    names: dict[str, str] = {}
    for commit in tree.commits.values():
        for written, known in zip(commit.files, tree.origin.files_of(commit), strict=True):
            if not written.identity or known.path is None or known.guest not in _OWN:
                continue
            names.setdefault(written.identity, GONE)
            here = identity_in(source, known.guest, known.path)
            if here and ledger.first_identity(here) == ledger.first_identity(known.identity):
                names[written.identity] = identity_in(target, known.guest, known.path)
    return names


def identity_in(folders: SandboxFolders, guest: str, path: str) -> str:
    """Returns the identity of a session's own file; empty if it does not exist.

    `path`, in the guest's folder or an unlinked name, may come from a stranger: the lookup follows
    no link, and finds none of the hidden names.
    """
    if guest not in _OWN or (guest == APP and is_hidden_name(path.partition("/")[0])):
        return ""
    if not is_unlinked_name(path):
        seen = folders.app.folder if guest == APP else folders.scratch
        return file_identity_below(seen.fd, path)
    try:
        with folders.private.enter(UNLINKED) as unlinked:
            return file_identity_below(unlinked.fd, path[1:])
    except OSError:
        return ""


def _copy_earlier(
    parent: FileLedger, source: SandboxFolders, target: SandboxFolders, names: Mapping[str, str]
) -> None:
    """Gives a fork the earlier versions of its files, too."""
    with contextlib.closing(FileLedger(target.private, KEPT)) as ledger:
        ledger.inherit(parent, names)
        kept = FileContents(source.private, KEPT, source.workspace, _COPIED_MOST)
        with contextlib.closing(kept), target.private.enter(KEPT) as there:
            for number in ledger.contents:
                if not kept.give(number, there):
                    ledger.drop_content(number, "large")
