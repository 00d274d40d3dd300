"""Folding old commits away: a commit that nobody will go back to becomes a part of the next one.

The plan is pure. Carrying it out writes a commit anew, with the pages of those before it below its
own, and only then removes those: at every moment the tree on disk is whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.state.index import Commit
from wasm_kernel.state.pages import PAGE, PageSet, Run

HEAVY_BYTES = 64 * 1024 * 1024
_FAR = 4


def lineage(commits: Mapping[int, Commit], one: int) -> list[Commit]:
    """A commit and those it stands on, newest first."""
    line = []
    while one:
        line.append(commits[one])
        one = commits[one].parent
    return line


def nearest(commits: Mapping[int, Commit], one: int, without: Collection[int]) -> int:
    """A commit, or the nearest before it that is not among others; 0 if there is none."""
    while one in without:
        one = commits[one].parent if one in commits else 0
    return one


def standing_on(commits: Mapping[int, Commit], one: int) -> set[int]:
    """A commit, and all those that stand on it."""
    found = {one}
    for other in sorted(commits):
        if commits[other].parent in found:
            found.add(other)
    return found


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
    children stays. Of a row of commits that are no cells' (`cells` is 0) only the last one counts.
    """
    stay = set(kept) | {head} | _last_states(commits, head, keep)
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


def _last_states(commits: Mapping[int, Commit], head: int, keep: int) -> set[int]:
    """The states that so many cells before the head can be undone to."""
    states: set[int] = set()
    at, left = head, keep
    while at and left > 0:
        one = commits[at]
        at, left = one.parent, left - min(one.cells, 1)
        if one.cells or (at and commits[at].cells):
            states.add(at)
    return states


def chains(steps: Iterable[tuple[int, int | None]]) -> dict[int | None, list[int]]:
    """A plan's steps by where they lead in the end: what becomes a part of a commit, oldest first.

    Under None stands what is dropped. So each commit that stays is written once.
    """
    found: dict[int | None, list[int]] = {}
    for one, child in steps:
        chain = found.pop(one, [])
        chain.append(one)
        if child in found:
            found[child] += chain
        else:
            found[child] = chain
    return {child: sorted(chain) for child, chain in found.items()}


def least_bytes(commits: Mapping[int, Commit], head: int, kept: Collection[int]) -> int:
    """Returns how many bytes of pages are left when all is folded away that can be.

    Args:
        commits: Every commit.
        head: The one that memory stands at.
        kept: Commits that must stay.
    """
    folded = chains(plan(commits, head, kept, 0))
    gone = {one for chain in folded.values() for one in chain}
    total = 0
    for one in commits.keys() - gone:
        whole, _ = merge([commits[each] for each in (one, *reversed(folded.get(one, [])))])
        total += whole.page_bytes
    return total


def spared(commits: Mapping[int, Commit], chain: list[int], child: int) -> list[int]:
    """What of a chain is worth folding: the oldest stay, where they are far larger than the rest.

    Folding writes everything anew. A large state that many small ones stand on waits until those
    have become a good part of it.
    """
    sizes = [commits[one].page_bytes for one in (*chain, child)]
    at, rest = 0, sum(sizes[1:])
    while at < len(chain) and sizes[at] > max(HEAVY_BYTES, _FAR * rest):
        at += 1
        rest -= sizes[at]
    return chain[at:]


def saves(commits: Mapping[int, Commit], chain: list[int], child: int) -> bool:
    """Whether folding a chain makes a good part vanish, as there are newer versions of pages."""
    line = [commits[one] for one in (child, *reversed(chain))]
    whole, _ = merge(line)
    return _FAR * (sum(commit.page_bytes for commit in line) - whole.page_bytes) > whole.page_bytes


def free(
    commits: Mapping[int, Commit],
    needed: Collection[int],
    chain: Collection[int],
    child: int | None,
) -> bool:
    """Whether a chain can go still: nobody needs it but those among it, and the child."""
    below = {c.parent for c in commits.values() if c.id not in (*chain, child)}
    return (below | set(needed)).isdisjoint(chain) and (child is None or child in commits)


class Piece(Struct, frozen=True):
    """A stretch of a commit's content, in bytes."""

    commit: int
    at: int
    length: int


def merge(line: Sequence[Commit]) -> tuple[Commit, list[Piece]]:
    """A commit with the pages of those before it below its own, standing where the oldest stood.

    `line` has the newest first. The second value says which bytes make up the content, in order.
    """
    if not line:
        raise ValueError("nothing to merge")
    runs: list[Run] = []
    zeros: list[Run] = []
    pieces: list[Piece] = []
    covered = PageSet(line[0].size // PAGE)
    for commit in line:
        at = 0
        for first, pages in commit.runs:
            for start, end in covered.free(first, pages):
                runs.append((start, end - start))
                offset = at + (start - first) * PAGE
                pieces.append(Piece(commit.id, offset, (end - start) * PAGE))
            at += pages * PAGE
        for first, pages in commit.zeros:
            zeros += [(start, end - start) for start, end in covered.free(first, pages)]
    cells = sum(commit.cells for commit in line)
    whole = replace(line[0], parent=line[-1].parent, cells=cells)
    return replace(whole, runs=tuple(runs), zeros=tuple(zeros), content=""), pieces
