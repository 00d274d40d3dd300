"""The recorder: commits the living memory after each cell, and writes it in the background.

To take a commit, the recorder finds the changed pages and copies them before the next cell. Its own
thread then sorts out pages of zeros and writes the rest. The backlog of unwritten pages may take a
share of this machine's free memory; if it would grow larger, the next cell waits. A commit that is
larger than the backlog may be is not copied: it is written to disk from the guest's memory before
the next cell.

Memory that the guest's allocator holds free after a cell goes back to the system, once it is a few
megabytes: the commit records it as zeros, so it is neither written nor read again.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import HistoryError
from wasm_kernel.linux import memory
from wasm_kernel.linux.memory import Range
from wasm_kernel.result import Ran
from wasm_kernel.state import folding, pages
from wasm_kernel.state.commits import GuestPages
from wasm_kernel.state.history import History
from wasm_kernel.state.index import Commit
from wasm_kernel.state.pages import PAGE, Heap, Run, Runs, Tracker, WriteProtect
from wasm_kernel.state.parked import ParkedMemory
from wasm_kernel.wasi_files.open_files import OpenFile
from wasm_kernel.wasi_files.operations import FileOperations

BACKLOG_BYTES = 256 * 1024 * 1024
BACKLOG_SHARE = 8  # the backlog may take an eighth of the free memory
_WAIT_SECONDS = 0.01
PATIENCE_SECONDS = 30.0  # a cell's wait for the writer; then it writes its commit itself
_POLITE_SECONDS = 0.005  # for the cell's reply, which needs the same interpreter
_STEP = 4 * 1024 * 1024
FREE_SMALL, FREE_LARGE = 64 * 1024, 1024 * 1024  # bytes: the smallest free pieces that are cleared
FREE_WORTH = 4 * 1024 * 1024  # bytes in all; clearing less costs more than keeping it

_LOG = logging.getLogger("wasm_kernel.state")

Trouble = Callable[[Exception], None]
"""Called on the recorder's thread when commits can't be written; once until all are written."""

Narrow = Callable[[int], None]
"""Called on the recorder's thread with the few cells that the cap on disk leaves to undo."""


class Recorder:
    """Commits one instance after another into one history. The guest's thread owns it."""

    def __init__(
        self, history: History, trouble: Trouble, narrow: Narrow, *, keep: int, cap: int
    ) -> None:
        self.history = history
        self._narrow = narrow
        self._trouble = trouble
        self._troubled = False
        self._tracker: Tracker | None = None
        self._last_tracker: Tracker | None = None
        self._files: FileOperations | None = None
        self._instance: Instance | None = None
        self._at = 0  # the commit that its memory is relative to
        self._missed: list[Range] = []
        self._heap: Heap | None = None
        self._cleared: list[Range] = []  # free memory that holds zeros
        self._mapped: list[Range] = []
        self._parked: ParkedMemory | None = None
        self._jobs: queue.Queue[int | None] = queue.Queue()
        self._sync_asked = False
        self._keep = self._narrowed_to = keep
        self._cap = cap
        self._thread = threading.Thread(target=self._write, name="commits", daemon=True)
        self._thread.start()

    def fill(self, instance: Instance) -> GuestPages:
        """Brings an instance that has the base image's memory to the head.

        After `NotMoved`, try again with another instance. Raises the errors of `History.fill`, too.
        """
        parked, self._parked = self._parked, None
        if parked is not None:
            with contextlib.closing(parked):
                laid = parked.fill(self.history, instance)
            if laid is not None:
                return laid
        return self.history.fill(instance)

    def watch(
        self,
        instance: Instance,
        files: FileOperations,
        heap: Heap | None = None,
        laid: GuestPages | None = None,
    ) -> None:
        """Begins to track an instance; its commits are relative to its memory as it is now.

        `heap` finds its free memory; `laid` are the pages that were laid over it.
        """
        self.unwatch()
        self._missed, self._heap = [], heap
        self._cleared = pages.merge(laid.cleared if laid else ())
        self._mapped = pages.merge(laid.mapped if laid else ())
        self._files, self._instance, self._at = files, instance, self.history.tree.head
        self._tracker = pages.best(instance.memory.address, instance.memory.size)

    def unwatch(self, *, keep: bool = False) -> None:
        """Ends tracking; the instance is about to be closed.

        Its memory is kept if `keep`, and if that takes less time than to lay everything.
        """
        self._close_last()
        tracker, instance = self._tracker, self._instance
        self._tracker = self._files = self._instance = None
        if tracker is None or instance is None:
            return
        if not keep or not isinstance(tracker, WriteProtect) or self.history.fills_quickly():
            self._last_tracker = tracker  # closed once the memory is gone: no page to unprotect
            return
        with contextlib.suppress(OSError):  # then all pages are laid again
            with contextlib.closing(tracker):
                changed = tracker.changed(instance.memory.size)
            changed = pages.merge([*self._missed, *changed])
            self._parked = ParkedMemory(
                instance, self._at, changed, mapped=self._mapped, cleared=self._cleared
            )

    def _close_last(self) -> None:
        """Closes the tracker and the memory that are left of the previous instance."""
        for last in (self._parked, self._last_tracker):
            if last is not None:
                last.close()
        self._parked = self._last_tracker = None

    def commit(
        self,
        instance: Instance,
        *,
        cell: int,
        count: int,
        label: str,
        cells: int = 1,
        ran: Ran | None = None,
    ) -> Commit:
        """Takes a commit of the watched instance. If that fails, the next one has the changes."""
        assert self._tracker is not None and self._files is not None, "an instance is watched"
        address, size = instance.memory.address, instance.memory.size
        ranges = self._missed = pages.merge([*self._missed, *self._tracker.changed(size)])
        cleared = self._clear_free(address, size, ranges)
        ranges = pages.without(ranges, cleared)
        commit = Commit(
            id=self.history.next_id(),
            parent=self.history.tree.head,
            cell=cell,
            count=count,
            label=_plain(label),
            time=time.time(),
            size=size,
            cells=cells,
            clock=instance.monotonic(),
            runs=_runs_of(ranges),
            zeros=_runs_of(cleared),
            files=tuple(map(_writable, self._files.open_records())),
            ran=ran,
        )
        if self._room(commit.page_bytes) or not self._write_large(commit, address, ranges):
            self.history.add(commit, memory.read_ranges(address, ranges))
        self._missed, self._at = [], commit.id
        self._jobs.put(commit.id)
        return commit

    def _clear_free(self, address: int, size: int, changed: list[Range]) -> list[Range]:
        """Clears free memory if it is worth it; returns the ranges that were cleared now.

        Small pieces are searched only after a cell that wrote much: to free many pieces, a cell
        must write to all of them.
        """
        known = self._cleared = pages.without(self._cleared, changed)
        if self._heap is None or self._tracker is None:
            return []
        wrote = sum(end - start for start, end in changed)
        least = FREE_SMALL if wrote >= FREE_WORTH else FREE_LARGE
        free = pages.without(self._heap.free(least), known)
        anonymous = pages.without(free, self._mapped)
        mapped = [
            (start, end)
            for start, end in pages.without(free, anonymous)
            if end - start >= FREE_LARGE  # each becomes a mapping of its own
        ]
        if sum(end - start for start, end in (*anonymous, *mapped)) < FREE_WORTH:
            return []
        self._missed = pages.merge([*changed, *anonymous, *mapped])
        cleared = pages.merge(memory.clear_ranges(address, anonymous, mapped))
        try:
            self._tracker.cleared(cleared)
        except OSError:  # the tracker does not notice writes there any more
            self._tracker.close()
            self._tracker = pages.best(address, size)
        self._mapped = pages.without(self._mapped, cleared)
        self._cleared = pages.merge([*known, *cleared])
        return cleared

    def _write_large(self, commit: Commit, address: int, ranges: list[Range]) -> bool:
        """Writes a large commit from the guest's memory; False if it can't be written to disk."""
        if not self.history.on_disk:
            return False
        runs, zeros = pages.sort_out(address, ranges)
        content = _in_steps(memory.view(address, commit.size), runs)
        try:
            self.history.add_written(
                replace(commit, runs=runs, zeros=(*commit.zeros, *zeros)), content
            )
        except OSError:
            return False  # the recorder's thread will fail, too, and tell the user
        return True

    def _room(self, more: int) -> bool:
        """Returns whether the backlog has room for `more` bytes, now or after a wait.

        False if they never fit, or if the writer makes no room within `PATIENCE_SECONDS`.
        """
        if self.history.unwritten + more <= BACKLOG_BYTES:
            return True
        available = memory.available_memory()
        most = max(BACKLOG_BYTES, (self.history.unwritten + available) // BACKLOG_SHARE)
        until = time.monotonic() + PATIENCE_SECONDS
        while (
            self.history.unwritten + more > most
            and more <= most
            and self._jobs.unfinished_tasks
            and not self._troubled
        ):
            if time.monotonic() > until:
                return False
            time.sleep(_WAIT_SECONDS)
        return more <= most

    @property
    def saves(self) -> bool:
        """True if commits have a place on disk, and can be written there."""
        return self.history.on_disk and not self._troubled

    @property
    def is_kept(self) -> bool:
        """True if the head on disk has the instance's whole state.

        Changes by questions, such as completion, do not count unless they opened or closed files.
        """
        tree, files = self.history.tree, self._files
        head = tree.commits.get(tree.head)
        if head is None or files is None or not self.saves or self.history.waiting or self._missed:
            return False
        return tree.origin.files_of(head) == tuple(map(_writable, files.open_records()))

    @property
    def has_uncommitted_changes(self) -> bool:
        """True if a commit could not be taken, so that memory differs from the head."""
        return bool(self._missed)

    def flush(self) -> None:
        """Waits until everything is written, or has failed."""
        self._jobs.join()

    def wait_written(self, seconds: float) -> bool:
        """Waits for `seconds` until commits are written; returns whether all changes are."""
        until = time.monotonic() + seconds
        while self.history.waiting and not self._troubled and time.monotonic() < until:
            time.sleep(_WAIT_SECONDS / 4)
        return self.saves and not (self.history.waiting or self._missed)

    def save(self) -> None:
        """Appends the records that the index lacks; an error goes to `trouble`."""
        try:
            self.history.save()
        except OSError as problem:
            self._trouble(problem)

    def sync(self) -> None:
        """Asks the recorder's thread to flush all that was written to the disk itself."""
        self._sync_asked = True
        self._jobs.put(self.history.tree.last)

    def close(self) -> None:
        """Writes all waiting commits, also those that failed before. Safe to call twice."""
        self.unwatch()
        self._close_last()
        if self._thread.is_alive():
            self._jobs.put(self.history.tree.last)
            self._jobs.put(None)
            self._thread.join()

    # -- the recorder's thread

    def _write(self) -> None:
        while (last := self._jobs.get()) is not None:
            if self._jobs.empty():
                time.sleep(_POLITE_SECONDS)
            stored = self._tried(partial(self._store, last))
            if self._tried(self._clean_up) and stored:
                self._troubled = False
            self._jobs.task_done()
        self._jobs.task_done()

    def _store(self, last: int) -> None:
        """Writes waiting commits, oldest first, but none whose parent could not be written.

        All are tried before the first error is raised.
        """
        self.history.squeeze(last)
        failed: dict[int, Exception] = {}
        for one in self.history.waiting:
            commit = self.history.tree.commits.get(one)
            if one > last or (commit is not None and commit.parent in failed):
                continue
            try:
                self.history.store(one)
            except Exception as problem:
                failed[one] = problem
        self.history.save()
        for failure in failed.values():
            raise failure

    def _clean_up(self) -> None:
        self._fold()
        self.history.tidy()
        if self._sync_asked:
            self._sync_asked = False
            self.history.sync()

    def _fold(self) -> None:
        """Folds old commits away, some cells at a time, as each folding rewrites a commit.

        Folding waits for a pause between cells, but not for ever: there may be no pause, and at
        most twice the cap may be on disk. Without a pause, commits that are not written yet are
        left alone: otherwise a crash would lose more the longer it goes on.
        """
        history, keep, paused = self.history, self._keep, self._jobs.empty()
        commits, names = history.tree.commits, history.tree.names
        unwritten = () if paused or self._troubled else history.waiting
        heavy = sum(commit.page_bytes > folding.HEAVY_BYTES for commit in commits.values())
        most = (2 if paused else 6) * keep + len(names) + heavy + len(unwritten)
        between = sum(not commit.cells for commit in commits.values())
        if len(commits) - min(between, keep) > most:
            folding.fold(history, keep, unwritten)
        if not paused and history.disk_bytes <= 2 * self._cap:
            return
        if history.disk_bytes > self._cap and history.place is not None:
            history.place.drop_unused()
        while history.disk_bytes > self._cap and keep > 1:
            keep //= 2
            folding.fold(history, keep, unwritten, all_of_it=True)
        if keep < self._narrowed_to:
            self._narrow(keep)
        self._narrowed_to = keep

    def _tried(self, work: Callable[[], None]) -> bool:
        """Returns whether work succeeded; an error goes to `trouble`, and never ends the thread."""
        try:
            work()
        except (OSError, HistoryError, MemoryError) as problem:
            self._tell(problem)
        except BaseException:
            _LOG.exception("The history of a session could not be written")
            self._tell(HistoryError("an unexpected error, which the log describes"))
        else:
            return True
        return False

    def _tell(self, problem: Exception) -> None:
        if not self._troubled:
            self._troubled = True
            try:
                self._trouble(problem)
            except BaseException:
                _LOG.exception("A notice on a session's history was lost")


def _in_steps(view: memoryview, runs: Sequence[Run]) -> Iterator[memoryview]:
    """Yields the content of runs of pages, in order and in steps."""
    for first, count in runs:
        end = (first + count) * PAGE
        for at in range(first * PAGE, end, _STEP):
            yield view[at : min(at + _STEP, end)]


def _runs_of(ranges: Iterable[Range]) -> Runs:
    return tuple((start // PAGE, (end - start) // PAGE) for start, end in ranges)


def _plain(text: str) -> str:
    """Returns text that UTF-8 can encode: a lone surrogate becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def _writable(file: OpenFile) -> OpenFile:
    """Returns an open file's record; a path that UTF-8 can't encode counts as lost."""
    if file.path is None or _plain(file.path) == file.path:
        return file
    return OpenFile(file.fd, file.guest, None, 0, 0, 0, 0)
