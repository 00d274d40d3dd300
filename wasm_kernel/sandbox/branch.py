"""Branching a workspace off: another folder gets a session's files and the history of its memory.

Nothing of the guest's memory is copied: both histories have the same files of commits, which are
never written again. Files of the workspace are cloned where the file system can, and copied
elsewhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wasm_kernel.engine import tree
from wasm_kernel.engine.descriptors import OpenFile
from wasm_kernel.engine.identity import identity
from wasm_kernel.engine.memory.history import History
from wasm_kernel.engine.memory.origin import GONE
from wasm_kernel.engine.names import is_hidden
from wasm_kernel.engine.preopens import Preopens
from wasm_kernel.errors import ForkError
from wasm_kernel.sandbox import told
from wasm_kernel.sandbox.bundles import PACKAGES_GUEST
from wasm_kernel.sandbox.claim import leave_fork
from wasm_kernel.sandbox.private import PACKAGES, PRIVATE, SCRATCH

if TYPE_CHECKING:
    from wasm_kernel.sandbox.timeline import Timeline


@dataclass(frozen=True)
class Branch:
    """What was branched off.

    Attributes:
        workspace: The new workspace.
        history: The history of its memory, in its private folder.
        left_out: Files that could not be copied, by path, and why.
    """

    workspace: Path
    history: History
    left_out: Mapping[str, str] = field(default_factory=dict)


def branch(timeline: Timeline, here: Preopens, there: Preopens, *, reseed: bool) -> Branch:
    """Give a new workspace what a session has, as it is after the session's last commit.

    Args:
        timeline: The session's history; settled.
        here: The folders of the session's guest.
        there: Those of a guest in the new workspace, which is empty.
        reseed: Whether the new guest is to draw other random numbers.

    Raises:
        ForkError: it can't be made, and nothing of it is left.
    """
    workspace, other = _workspace(here), _workspace(there)
    try:
        left_out = _copy_files(workspace, other)
        names = _names(timeline.inventory(), here, there)
        history = timeline.branch(other / PRIVATE, names, reseed=reseed)
        leave_fork(other / PRIVATE)
    except OSError as problem:
        discard(other)
        raise ForkError(told.why(problem)) from problem
    except BaseException:
        discard(other)
        raise
    return Branch(other, history, left_out)


_SEEN = {SCRATCH: "/tmp", PACKAGES: PACKAGES_GUEST}  # noqa: S108 - as the guest calls them
"""What a guest sees of the host's own folder in its workspace."""


def discard(workspace: Path) -> None:
    """Remove a workspace that nobody is to see."""
    with contextlib.suppress(OSError):
        tree.remove(workspace)


def _workspace(folders: Preopens) -> Path:
    return next(folder.host for folder in folders.fixed if folder.tracked)


def _copy_files(workspace: Path, other: Path) -> dict[str, str]:
    left_out = {one.path: one.why for one in tree.copy(workspace, other, is_hidden)}
    for private, guest in _SEEN.items():
        (other / private).mkdir(parents=True, exist_ok=True, mode=0o700)
        for one in tree.copy(workspace / private, other / private, lambda name: False):
            left_out[f"{guest}/{one.path}"] = one.why
    return left_out


def _names(
    inventory: set[tuple[OpenFile, OpenFile]], here: Preopens, there: Preopens
) -> dict[str, str]:
    """How the files that were open at any commit are called in the copy (`origin.py`).

    A file of the session's own folders is looked up where it was open; one that is there no more,
    or another by now, is not in the copy either. Mounted folders are the same for both.
    """
    copies = {
        old.guest: (old.host, new.host)
        for old, new in zip(here.fixed, there.fixed, strict=True)
        if old.host != new.host
    }
    found: dict[str, str] = {}
    for written, known in inventory:
        if written.identity and written.guest in copies and known.path is not None:
            old, new = copies[written.guest]
            found.setdefault(written.identity, GONE)
            if identity(f"{old}/{known.path}") == known.identity:
                found[written.identity] = identity(f"{new}/{known.path}")
    return found
