"""Giving a fork its files: copies of what its parent's guest sees, and how open ones are called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from wasm_kernel.engine.files.names import is_hidden
from wasm_kernel.engine.folders import tree
from wasm_kernel.engine.folders.content import Stopped
from wasm_kernel.engine.folders.descent import Descent
from wasm_kernel.engine.folders.identity import identity
from wasm_kernel.engine.memory.history import History
from wasm_kernel.engine.memory.origin import GONE
from wasm_kernel.engine.versions.inherit import inherit
from wasm_kernel.record import record
from wasm_kernel.sandbox.bundles import PACKAGES_GUEST
from wasm_kernel.sandbox.private import KEPT, LOOSE, PACKAGES, SCRATCH

_PLACES = {"/app": ".", "/tmp": SCRATCH, PACKAGES_GUEST: PACKAGES}  # noqa: S108 - a guest path
"""What a guest sees of its workspace, and where it lies in it."""


@record
class OpenThere:
    """A file that was open at a commit.

    Attributes:
        written: What the system calls it (`engine/folders/identity.py`), as the commit has it.
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


def copy_files(workspace: Path, other: Path, stopped: Stopped = lambda: False) -> dict[str, str]:
    """Copy what a guest sees of its workspace into another, empty one.

    Returns:
        What could not be copied, by path, and why.

    Raises:
        OSError: it can't be written.
        CopyStopped: `stopped` says that it is not wanted any more.
    """
    left_out: dict[str, str] = {}
    with contextlib.suppress(FileNotFoundError), standing_in(workspace, LOOSE) as way:
        (other / LOOSE).mkdir(parents=True, mode=0o700)
        for one in tree.copy(way.fd, other / LOOSE, _nothing, stopped):
            left_out[f"an unnamed file, {one.path}"] = one.why
    for guest, place in _PLACES.items():
        (other / place).mkdir(parents=True, exist_ok=True, mode=0o700)
        hidden = is_hidden if place == "." else _nothing
        with contextlib.suppress(FileNotFoundError), standing_in(workspace, place) as way:
            for one in tree.copy(way.fd, other / place, hidden, stopped):
                left_out[one.path if place == "." else f"{guest}/{one.path}"] = one.why
    return left_out


def copy_earlier(workspace: Path, other: Path, last: int, names: Mapping[str, str]) -> None:
    """Give another workspace, which has the files, their earlier versions up to a commit, too.

    What can't be had is not known there; that is no reason to fail.
    """
    with contextlib.suppress(OSError), standing_in(workspace, KEPT) as way:
        inherit(way.fd, other / KEPT, last, names)


def _nothing(_: str) -> bool:
    return False


@contextlib.contextmanager
def standing_in(workspace: Path, place: str) -> Iterator[Descent]:
    """A walk that stands in a folder below a workspace; no link was followed on the way.

    Raises:
        OSError: it can't be opened.
    """
    with Descent(workspace) as way:
        for name in Path(place).parts:
            way.enter(name)
        yield way


def names_in(other: Path, workspace: Path, inventory: Iterable[OpenThere]) -> Mapping[str, str]:
    """What the copies of files are called that were open at any commit (`origin.py`).

    A file is looked up where it was open. One that is there no more, or another by now, is not in
    the copy either. Mounted folders are the same for both, and not named here.
    """
    found: dict[str, str] = {}
    for file in inventory:
        place = _PLACES.get(file.guest)
        if place is None or not file.written:
            continue
        found.setdefault(file.written, GONE)
        inside = ".." not in file.path.split("/")
        if inside and identity(f"{workspace}/{place}/{file.path}") == file.known:
            found[file.written] = identity(f"{other}/{place}/{file.path}")
    return found


def discard(workspace: Path) -> None:
    """Remove a workspace that nobody is to see."""
    with contextlib.suppress(OSError):
        tree.remove(workspace)
