"""Thinning a history: what nobody will go back to is folded away, as `folding.py` plans it.

This is the recorder's thread's work. Nobody waits for it: memory may be filled meanwhile, from a
commit before or after others became a part of it, and from those, which go in the end if nobody
needs them then.
"""

from __future__ import annotations

from collections.abc import Collection

from wasm_kernel.errors import HistoryError
from wasm_kernel.state import folding
from wasm_kernel.state.history import History

_AT_ONCE = 100


def thin(
    history: History, keep: int, kept: Collection[int] = (), *, all_of_it: bool = False
) -> None:
    """Fold away what lies more than `keep` cells behind the head, has no name and no pin.

    What is in `kept` stays as well, and what is far larger than all that it would become a part of,
    unless `all_of_it` is to be folded that makes the whole smaller.

    Raises:
        OSError, HistoryError: a commit can't be written, or read; all others are folded.
    """
    failed: Exception | None = None
    for child, chain in history.chains(keep, kept).items():
        try:
            _fold(history, _worth_it(history, chain, child, all_of_it), child)
        except (OSError, HistoryError) as problem:
            failed = failed or problem
    if failed is not None:
        raise failed


def _worth_it(history: History, chain: list[int], child: int | None, all_of_it: bool) -> list[int]:
    if child is None or not history.has([child, *chain]):
        return chain
    if all_of_it and folding.saves(history.commits, chain, child):
        return chain
    return folding.spared(history.commits, chain, child)


def _fold(history: History, chain: list[int], child: int | None) -> None:
    if child is None:
        history.let_go(chain)
        return
    while len(chain) > _AT_ONCE:  # each is an open file meanwhile
        some, chain = chain[: _AT_ONCE - 1], chain[_AT_ONCE - 1 :]
        _merge(history, some, chain[0])
    held = history.commits_store.in_memory
    disk = history.on_disk and held(child)
    written = [one for one in chain if disk and not held(one)]
    _merge(history, [one for one in chain if one not in written], child)
    if written:  # a crash must find them on disk, as long as the child is not there
        _merge(history, written[:-1], written[-1])


def _merge(history: History, chain: list[int], child: int) -> None:
    line = [child, *reversed(chain)]
    if not chain or not history.has(line):
        return
    try:
        merged = history.commits_store.fold([history.commits[one] for one in line])
    except (FileNotFoundError, KeyError):
        if history.has(line):
            raise
        return  # given up meanwhile
    history.let_go(chain, merged)
