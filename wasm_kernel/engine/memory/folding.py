"""Folding old commits away: a commit that nobody will go back to becomes a part of the next one.

The plan is pure. Carrying it out writes the child anew, with its parent's pages below its own, and
only then removes the parent: at every moment the tree on disk is whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from wasm_kernel.engine.memory.commit import Commit, Content, Run
from wasm_kernel.engine.memory.cover import Cover
from wasm_kernel.engine.memory.pages import PAGE


def plan(
    commits: Mapping[int, Commit], head: int, kept: Collection[int], keep: int
) -> list[tuple[int, int | None]]:
    """What to fold away: pairs of a commit and the child it becomes a part of, oldest first.

    Args:
        commits: Every commit.
        head: The one that memory stands at.
        kept: Commits that must stay, such as named ones.
        keep: How many cells before the head stay.

    A commit without a child that nobody keeps is dropped: its pair has None. One with several
    children stays.
    """
    stay = set(kept) | {head}
    at, left = head, keep
    while at and left > 0:
        at = commits[at].parent
        stay.add(at)
        left -= 1
    children: dict[int, list[int]] = {}
    for commit in commits.values():
        children.setdefault(commit.parent, []).append(commit.id)
    steps: list[tuple[int, int | None]] = []
    for one in sorted(commits):
        below = children.get(one, [])
        if one in stay or len(below) > 1:
            continue
        if below:
            steps.append((one, below[0]))
        elif one < head:
            steps.append((one, None))
    return steps


def merge(parent: Commit, below: Content, child: Commit, above: Content) -> tuple[Commit, bytes]:
    """A child with its parent's pages below its own, standing where the parent stood."""
    size = max(parent.size, child.size)
    cover = Cover(size // PAGE)
    runs: list[Run] = []
    zeros: list[Run] = []
    pieces: list[Content | memoryview] = []
    for commit, content in ((child, above), (parent, below)):
        view, at = memoryview(content), 0
        for first, pages in commit.runs:
            for start, end in list(cover.free(first, pages)):
                offset = at + (start - first) * PAGE
                runs.append((start, end - start))
                pieces.append(view[offset : offset + (end - start) * PAGE])
            at += pages * PAGE
        for first, pages in commit.zeros:
            zeros += [(start, end - start) for start, end in cover.free(first, pages)]
    merged = replace(
        child,
        parent=parent.parent,
        cells=parent.cells + child.cells,
        runs=tuple(runs),
        zeros=tuple(zeros),
    )
    return merged, b"".join(pieces)
