"""Folding old commits away: a commit that is not needed any more becomes a part of the next one.

The plan is pure. Folding rewrites a commit, with the pages of those before it below its own, and
only then removes those: the tree on disk is whole at every moment. The recorder's thread folds
without blocking the guest's thread, which may fill memory at the same time from a commit before or
after its merge.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from wasm_kernel.errors import HistoryError
from wasm_kernel.state.commits import merge
from wasm_kernel.state.history import History
from wasm_kernel.state.index import Commit

HEAVY_BYTES = 64 * 1024 * 1024
_FAR = 4
_AT_ONCE = 100  # commits; each is an open file while they are merged

Commits = Mapping[int, Commit]


def plan(
    commits: Commits, head: int, kept: Collection[int], keep: int
) -> list[tuple[int, int | None]]:
    """Returns pairs of a commit to fold and the child that absorbs it, oldest first.

    The head, the states `keep` cells before it and the commits `kept` stay. Of the others, a commit
    without a child is dropped: its pair has None. One with several children stays. Of consecutive
    commits that belong to no cell (`cells` is 0), only the last one stays.
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


def _last_states(commits: Commits, head: int, keep: int) -> set[int]:
    """Returns the states to which the last `keep` cells before the head can be undone."""
    states: set[int] = set()
    at, left = head, keep
    while at and left > 0:
        one = commits[at]
        at, left = one.parent, left - min(one.cells, 1)
        if one.cells or (at and commits[at].cells):
            states.add(at)
    return states


def chains(steps: Iterable[tuple[int, int | None]]) -> dict[int | None, list[int]]:
    """Groups a plan's steps by the commit that absorbs them in the end, oldest first.

    Dropped commits are under None. So each commit that stays is written only once.
    """
    found: dict[int | None, list[int]] = {}
    for one, child in steps:
        chain = [*found.pop(one, []), one]
        found[child] = sorted(found.get(child, []) + chain)
    return found


def can_fit(history: History, kept: Collection[int], most: int) -> bool:
    """Returns whether the history has at most `most` bytes with all but the head and `kept` folded.

    Files that were set aside count as well.
    """
    if history.disk_bytes <= most:
        return True
    commits, head = history.tree.commits, history.tree.head
    folded = chains(plan(commits, head, kept, 0))
    gone = {one for chain in folded.values() for one in chain}
    total = 0
    for one in commits.keys() - gone:
        whole, _ = merge([commits[each] for each in (one, *reversed(folded.get(one, [])))])
        total += whole.page_bytes
    return total <= most


def spared(commits: Commits, chain: list[int], child: int) -> list[int]:
    """Returns a chain without its oldest commits that are far larger than the rest.

    Folding rewrites all pages of a chain. A large state is folded only when the small ones that
    stand on it have grown to a good part of its size.
    """
    sizes = [commits[one].page_bytes for one in (*chain, child)]
    at, rest = 0, sum(sizes[1:])
    while at < len(chain) and sizes[at] > max(HEAVY_BYTES, _FAR * rest):
        at += 1
        rest -= sizes[at]
    return chain[at:]


def _saves_much(commits: Commits, chain: list[int], child: int) -> bool:
    """Returns whether folding a chain would drop many pages that have newer versions."""
    line = [commits[one] for one in (child, *reversed(chain))]
    whole, _ = merge(line)
    return _FAR * (sum(commit.page_bytes for commit in line) - whole.page_bytes) > whole.page_bytes


def fold(
    history: History, keep: int, kept: Collection[int] = (), *, all_of_it: bool = False
) -> None:
    """Folds commits more than `keep` cells behind the head that have no name and no pin.

    The commits `kept` stay as well. A commit far larger than those that would absorb it stays, too;
    with `all_of_it` it is folded if that makes the history smaller. Commits whose folding fails
    stay, all others are folded, and the first error (`OSError` or `HistoryError`) is raised at the
    end.
    """
    failed: Exception | None = None
    with history.lock:
        tree, stay = history.tree, {*kept, *history.needed}
    for child, chain in chains(plan(tree.commits, tree.head, stay, keep)).items():
        try:
            if child is None:
                _drop(history, chain)
            elif all_of_it and _saves_much(tree.commits, chain, child):
                _fold_chain(history, chain, child)
            else:
                _fold_chain(history, spared(tree.commits, chain, child), child)
        except (OSError, HistoryError) as problem:
            failed = failed or problem
    if failed is not None:
        raise failed


def _fold_chain(history: History, chain: list[int], child: int) -> None:
    while len(chain) > _AT_ONCE:
        some, chain = chain[: _AT_ONCE - 1], chain[_AT_ONCE - 1 :]
        _merge(history, some, chain[0])
    waiting = history.waiting
    written = [one for one in chain if one not in waiting] if child in waiting else []
    _merge(history, [one for one in chain if one not in written], child)
    if written:  # while the child is not on disk, a crash must find these there
        _merge(history, written[:-1], written[-1])


def _merge(history: History, chain: list[int], child: int) -> None:
    commits, line = history.tree.commits, [child, *reversed(chain)]
    if not chain or not commits.keys() >= set(line):
        return
    try:
        merged, content = history.contents.fold([commits[one] for one in line])
    except FileNotFoundError:
        if history.has(line):
            raise
        return  # another call dropped one
    gone = [merged]
    try:
        with history.lock:
            if _is_free(history, chain, child) and (before := history.put_merged(merged, content)):
                gone = [before, *history.drop(chain)]
    finally:
        history.remove_contents(gone)


def _drop(history: History, chain: list[int]) -> None:
    gone: list[Commit] = []
    with history.lock:
        if _is_free(history, chain, None):
            gone = history.drop(chain)
    history.remove_contents(gone)


def _is_free(history: History, chain: Collection[int], child: int | None) -> bool:
    """Returns whether a chain can still go: only its own commits and the child stand on it."""
    commits = history.tree.commits
    below = {c.parent for c in commits.values() if c.id not in (*chain, child)}
    return (below | history.needed).isdisjoint(chain) and (child is None or child in commits)
