"""Which pages of a memory are covered already, where newer things are laid before older ones."""

from __future__ import annotations

from collections.abc import Iterator


class Cover:
    """A flag for each page of a memory."""

    def __init__(self, pages: int) -> None:
        self._flags = bytearray(pages)

    def holds(self, first: int, pages: int) -> bool:
        """Whether a run lies inside the memory."""
        return first >= 0 and pages >= 0 and first + pages <= len(self._flags)

    def free(self, first: int, pages: int) -> Iterator[tuple[int, int]]:
        """Start and end of the stretches of a run that are not covered; afterwards they are."""
        at, end = first, first + pages
        while at < end:
            begin = self._flags.find(b"\0", at, end)
            if begin < 0:
                break
            stop = self._flags.find(b"\1", begin, end)
            at = end if stop < 0 else stop
            yield begin, at
        self._flags[first:end] = b"\1" * pages
