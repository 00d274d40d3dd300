"""A guest's memory that commits are laid over, from the newest to the oldest, each page once."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import HistoryError
from wasm_kernel.state.commit import CommitFile, Content, Run
from wasm_kernel.state.cover import Cover
from wasm_kernel.state.pages import PAGE

_MAP_PAGES = 64  # shorter stretches are read: a mapping each would cost more


class Target:
    """The memory of an instance that is being brought to a commit; the guest's thread owns it."""

    def __init__(self, instance: Instance) -> None:
        size = instance.memory.size
        self._address = instance.memory.address
        stretch = (ctypes.c_char * size).from_address(self._address)
        self._view = memoryview(stretch).cast("B")
        self._cover = Cover(size // PAGE)

    def lay_bytes(self, first: int, pages: int, content: Content, at: int) -> None:
        """Pages whose content stands in `content` from `at` on."""
        for start, end in self._free(first, pages):
            begin = at + (start - first) * PAGE
            stop = begin + (end - start) * PAGE
            self._view[start * PAGE : end * PAGE] = memoryview(content)[begin:stop]

    def lay_file(self, first: int, pages: int, file: CommitFile, at: int) -> None:
        """Pages whose content stands in a commit's file from `at` on; long stretches are mapped."""
        for start, end in self._free(first, pages):
            begin = at + (start - first) * PAGE
            if end - start < _MAP_PAGES or not self._mapped(start, end, file, begin):
                file.read_into(self._view[start * PAGE : end * PAGE], begin)

    def _mapped(self, start: int, end: int, file: CommitFile, at: int) -> bool:
        try:
            file.map_over(self._address + start * PAGE, (end - start) * PAGE, at)
        except OSError:  # such as too many mappings: that says nothing of the file
            return False
        return True

    def lay_zeros(self, runs: Iterable[Run]) -> None:
        """Pages of zeros."""
        for first, pages in runs:
            for start, end in self._free(first, pages):
                ctypes.memset(self._address + start * PAGE, 0, (end - start) * PAGE)

    def _free(self, first: int, pages: int) -> list[tuple[int, int]]:
        """The stretches of a run that no newer commit has laid, which count as laid from now on.

        Raises:
            HistoryError: the run lies outside of the memory.
        """
        if not self._cover.holds(first, pages):
            raise HistoryError("a commit has pages outside of the memory")
        return list(self._cover.free(first, pages))
