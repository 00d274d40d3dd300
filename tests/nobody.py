"""Runs a test as a user without privileges, also if root runs the tests."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534
_PASSABLE = 0o055


def mkdir(path: Path, mode: int, owner: int = -1) -> Path:
    """Makes a folder with this mode, which only root can give to another user."""
    path.mkdir()
    path.chmod(mode)
    os.chown(path, owner, owner)
    return path


@contextmanager
def as_nobody(folder: Path) -> Iterator[None]:
    """Gives a folder with its content to the user `nobody`, and becomes that user.

    If root does not run the tests, nothing changes.
    """
    if os.geteuid() != 0:
        yield
        return
    with _one_at_a_time():
        yield from _being_nobody(folder)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Lets only one process of the tests in at a time, because their folders share parents."""
    turn = os.open(tempfile.gettempdir(), os.O_RDONLY)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield
    finally:
        os.close(turn)


def _being_nobody(folder: Path) -> Iterator[None]:
    """Gives a folder and the state folder to nobody, and the parents' modes back at the end."""
    state = Path(os.environ["XDG_STATE_HOME"])
    parents = (*state.parents, *folder.parents)
    above = [(parent, parent.stat().st_mode & 0o7777) for parent in parents]
    for parent, mode in above:
        parent.chmod(mode | _PASSABLE)
    for path in (folder, *folder.rglob("*")):
        os.lchown(path, NOBODY, NOBODY)
    _give(state, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        _give(state, 0)
        for parent, mode in above:
            parent.chmod(mode)


def _give(state: Path, owner: int) -> None:
    """Gives the state folder to a user; it is only used if it belongs to its user."""
    for path in (state, *state.rglob("*")):
        os.lchown(path, owner, owner)
