"""Pages of zeros, which need no room: found in what a commit holds, and left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wasm_kernel.engine.memory.commit import Run
from wasm_kernel.engine.memory.pages import PAGE

_ZERO = bytes(PAGE)
_SHORTEST = 4  # pages; fewer zeros in the middle of a run are cheaper to keep


def split_zeros(
    runs: Sequence[Run], content: Sequence[bytes]
) -> tuple[tuple[Run, ...], list[bytes], tuple[Run, ...]]:
    """Runs without their longer stretches of zero pages, their content, and those stretches."""
    kept: list[Run] = []
    pieces: list[bytes] = []
    zeros: list[Run] = []
    for (first, pages), data in zip(runs, content, strict=True):
        at = 0
        for start, end in _stretches(data, pages):
            if start > at:
                kept.append((first + at, start - at))
                pieces.append(data[at * PAGE : start * PAGE])
            zeros.append((first + start, end - start))
            at = end
        if at == 0:
            kept.append((first, pages))
            pieces.append(data)
        elif at < pages:
            kept.append((first + at, pages - at))
            pieces.append(data[at * PAGE :])
    return tuple(kept), pieces, tuple(zeros)


def _stretches(data: bytes, pages: int) -> Iterator[Run]:
    """Start and end of every stretch of at least `_SHORTEST` zero pages."""
    begin = -1
    for page in range(pages + 1):
        if page < pages and data[page * PAGE : (page + 1) * PAGE] == _ZERO:
            begin = page if begin < 0 else begin
            continue
        if begin >= 0 and page - begin >= _SHORTEST:
            yield begin, page
        begin = -1
