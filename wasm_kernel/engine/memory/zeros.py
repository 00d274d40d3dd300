"""Pages of zeros, which need no room: found in what a commit holds, and left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wasm_kernel.engine.memory.commit import Content, Run
from wasm_kernel.engine.memory.pages import PAGE

_ZERO = bytes(PAGE)
_SHORTEST = 16  # pages; a shorter stretch is cheaper to keep than to name


def split_zeros(
    runs: Sequence[Run], content: Content
) -> tuple[tuple[Run, ...], Content, tuple[Run, ...]]:
    """Runs without their longer stretches of zero pages, their content, and those stretches."""
    kept: list[Run] = []
    pieces: list[Content] = []
    zeros: list[Run] = []
    position = 0
    for first, pages in runs:
        at = 0
        for start, end in [*_stretches(content, position, pages), (pages, pages)]:
            if start > at:
                kept.append((first + at, start - at))
                pieces.append(content[position + at * PAGE : position + start * PAGE])
            if end > start:
                zeros.append((first + start, end - start))
            at = end
        position += pages * PAGE
    if not zeros:
        return tuple(runs), content, ()
    return tuple(kept), b"".join(pieces), tuple(zeros)


def _stretches(content: Content, position: int, pages: int) -> Iterator[Run]:
    """Start and end of every stretch of at least `_SHORTEST` zero pages in a run."""
    if pages < _SHORTEST:
        return
    begin = -1
    for page in range(pages + 1):
        at = position + page * PAGE
        if page < pages and content[at : at + PAGE] == _ZERO:
            begin = page if begin < 0 else begin
            continue
        if begin >= 0 and page - begin >= _SHORTEST:
            yield begin, page
        begin = -1
