"""Kills a process at every operation on a file: `python -m tests.attacks.killed_everywhere FOLDER`.

A child runs cells of the tiny guest, which change its memory and files; it is killed before its
first operation, then before its second, and so on until one child lives. After each, another child
must find the last state that was saved, or a later one, with the files as they were then. Nothing
here has run a guest before it forks.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tests.engine.memory.session import Session
from tests.engine.tiny import compiled
from tests.engine.versions.workspace import Tree, Workspace
from tests.execution.committing import Killer, arm

CELLS = 6
RIGHT = 0


def tree_after(cell: int) -> Tree:
    """The files after a cell: one that each cell writes, and one that it makes."""
    return {"same": f"{cell}" * 500, f"made {cell}": "x"} if cell else {}


def run_cells(folder: Path, saved: mmap.mmap) -> None:
    """Runs all cells; `saved` says the last one whose state is on disk."""
    session = Session(folder)
    session.cell(p0="0")
    workspace = Workspace(folder)  # both are at commit 1
    for cell in range(1, CELLS + 1):
        workspace.write("same", f"{cell}" * 500)
        workspace.write(f"made {cell}", "x")
        if cell > 1:
            workspace.remove(f"made {cell - 1}")
        session.cell(p0=f"{cell}", p1="x" * cell)
        workspace.commit()
        if cell == CELLS // 2:
            session.history.name("middle", session.history.head)
        session.flush()
        saved[0] = cell
    session.close()
    workspace.close()


def check(folder: Path, saved: int) -> None:
    """What a later process finds is one of the states that were, and not older than `saved`."""
    session = Session(folder, load=True)
    head = session.history.head
    assert head > saved, f"state {head} is older than that of cell {saved}"
    if head:
        cell = head - 1
        assert session.state == {0: f"{cell}"} | ({1: "x" * cell} if cell else {}), session.state
        workspace = Workspace(folder, load=True)
        assert workspace.versions.load(head, crashed=True), "what the files were is not known"
        assert workspace.bring(head).missed == []
        assert workspace.state == tree_after(cell), (cell, workspace.state)
        workspace.close()
    assert not session.troubles, session.troubles
    session.cell(p5="goes on")
    session.close()


def in_a_child(work: Callable[[], None]) -> int:
    """How a forked process ended that did some work: its exit code, or minus a signal."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        work()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(RIGHT)


def main(root: Path) -> None:
    compiled()
    at, lived = 0, False
    while not lived:
        at += 1
        folder, saved = root / str(at), mmap.mmap(-1, 1)
        folder.mkdir()

        def work(folder: Path = folder, saved: mmap.mmap = saved, at: int = at) -> None:
            arm(Killer(at))
            run_cells(folder, saved)

        lived = in_a_child(work) == RIGHT
        reached = int(saved[0])
        if in_a_child(lambda folder=folder, reached=reached: check(folder, reached)) != RIGHT:
            sys.exit(f"killed at operation {at}, after cell {reached} was saved")
    print(at)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
