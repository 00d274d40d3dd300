"""Branching a workspace off: another folder gets a session's files and the history of its memory.

Nothing of the guest's memory is copied: both histories have the same files of commits, which are
never written again. Files of the workspace are cloned where the file system can, and copied
elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from wasm_kernel.errors import ForkError
from wasm_kernel.folders.folders import STATE, SandboxFolders
from wasm_kernel.folders.locks import note_forked
from wasm_kernel.record import record
from wasm_kernel.state import told
from wasm_kernel.state.copying import copy_earlier, copy_files, names_in
from wasm_kernel.state.history import History

if TYPE_CHECKING:
    from wasm_kernel.state.timeline import Timeline


@record
class Branch:
    """What was branched off.

    Attributes:
        history: The history of its memory.
        left_out: Files that could not be copied, by path, and why.
    """

    history: History
    left_out: Mapping[str, str] = field(default_factory=dict)


def branch(timeline: Timeline, other: SandboxFolders, *, reseed: bool) -> Branch:
    """Give an empty workspace what a session has, as it is after the session's last commit.

    Args:
        timeline: The session's history; settled.
        other: The folders of the new workspace.
        reseed: Whether the guest there is to draw other random numbers.

    Raises:
        ForkError: it can't be made; discard the folders.
    """
    folders = timeline.folders
    try:
        left_out = copy_files(folders, other)
        names = names_in(other, folders, timeline.inventory())
        copy_earlier(folders, other, timeline.history.last, names)
        folder = other.private.enter(STATE, make=True)
        history = timeline.history.branch(folder, names, reseed=reseed)
        note_forked(other.private)
    except OSError as problem:
        raise ForkError(told.why(problem)) from problem
    return Branch(history, left_out)
