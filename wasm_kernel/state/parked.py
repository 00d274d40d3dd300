"""The memory of a guest that was closed, kept for the next guest of the session.

After an undo, a restore or the loss of a guest, a new instance needs a memory that differs in few
pages from the old one's. So the old memory is moved over to the new instance, whatever its size,
and only the pages that differ are laid over it: those written since the last commit, and those that
differ between that commit and the new head.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence

from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import HistoryError
from wasm_kernel.linux import memory
from wasm_kernel.linux.memory import MovedMemory, Range
from wasm_kernel.state.commits import GuestPages
from wasm_kernel.state.history import History
from wasm_kernel.state.index import Commit
from wasm_kernel.state.pages import Content, merge, without

_LONG = 256 * 1024  # bytes; a shorter range is overwritten without being cleared first


class NotMoved(HistoryError):
    """The error of a memory that was moved only in part; its new instance must be discarded."""


class ParkedMemory:
    """Memory without an instance. The guest's thread owns it; close it."""

    def __init__(
        self,
        instance: Instance,
        at: int,
        changed: list[Range],
        *,
        mapped: list[Range],
        cleared: list[Range],
    ) -> None:
        """Takes the memory, `at` a commit, of an instance that must be closed without another call.

        The ranges `changed` were written since. The rest is as in `GuestPages`.
        """
        self._at, self._changed = at, changed
        self._mapped, self._cleared = mapped, cleared
        self._moved = MovedMemory(instance.memory.address, instance.memory.size)

    def fill(self, history: History, instance: Instance) -> GuestPages | None:
        """Moves this memory to an instance that has the base image's, and brings it to the head.

        Returns None, with nothing done, if this memory can't be used for that. After `NotMoved`,
        take another instance and discard this memory. Raises the errors of `History.fill`, too.
        """
        with history.lock:
            tree, contents = history.tree, history.contents
            line = tree.lineage(tree.head)
            if not line or self._at not in tree.commits:
                return None
            if not all(map(contents.is_untouched, line)):  # this memory may map a changed file
                return None
            ranges = differing(tree.lineage(self._at), line, self._changed)
            held = merge(one for commit in line for one in commit.ranges)
            bare = without(ranges, held)
            pages = self._move(instance, line[0].size, ranges, bare)
            history.lay(pages, filter(pages.needs, line))
            return pages

    def _move(
        self, instance: Instance, size: int, ranges: list[Range], bare: list[Range]
    ) -> GuestPages:
        """Moves the memory to an instance; the ranges `bare` get the base image's content back."""
        image = instance.memory.size
        instance.grow_to(size)
        address = instance.memory.address
        own = without(bare, [(image, 1 << 63)])
        content = memory.read_ranges(address, own)
        try:
            self._moved.move_to(address, min(size, self._moved.size))
        except OSError as problem:
            raise NotMoved("memory could not be moved") from problem
        _write(address, own, content)
        used = [(0, min(size, self._moved.size))]
        long = [one for one in without(ranges, [(0, image)]) if one[1] - one[0] >= _LONG]
        anonymous = without(long, self._mapped)
        empty = merge(memory.clear_ranges(address, anonymous, without(long, anonymous)))
        pages = GuestPages(instance, without(used, empty), ranges)
        pages.mapped += without(self._mapped, empty)  # laying pages over a mapping does not end it
        pages.cleared += without(self._cleared, ranges)
        pages.clear(without(bare, own))
        return pages

    def close(self) -> None:
        """Frees the memory. Safe to call twice."""
        self._moved.close()


def differing(
    before: Sequence[Commit], after: Sequence[Commit], changed: Iterable[Range]
) -> list[Range]:
    """Returns the ranges in which a memory may differ from the commit of the line `after`.

    It was at the commit of the line `before`; the ranges `changed` were written since.
    """
    common = {one.id for one in before} & {one.id for one in after}
    between = [one for one in (*before, *after) if one.id not in common]
    ranges = merge([*changed, *(one for each in between for one in each.ranges)])
    return without(ranges, [(after[0].size, 1 << 63)])


def _write(address: int, ranges: Iterable[Range], content: Content) -> None:
    at = ctypes.addressof(ctypes.c_char.from_buffer(content)) if content else 0
    for start, end in ranges:
        ctypes.memmove(address + start, at, end - start)
        at += end - start
