"""The recorder: takes a commit of the living memory after each cell, and has it written behind.

Taking one is a look at which pages changed and a copy of those, in the cell's own time. Sorting
out pages of zeros and writing happen on the recorder's own thread. How far that may be behind
follows the memory that is left on this machine; a cell waits where it would be more. What is larger
than that by itself is not copied, but written to disk from the guest's memory, in the cell's own
time.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from msgspec.structs import replace

from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.memory import available_memory
from wasm_kernel.state import folding
from wasm_kernel.state.gather import gather, in_steps, stretch
from wasm_kernel.state.history import History
from wasm_kernel.state.index import Commit
from wasm_kernel.state.pages import PAGE, Range, Tracker, best, merge, sort_out
from wasm_kernel.state.thinning import thin
from wasm_kernel.wasi_files.calls import WasiFiles
from wasm_kernel.wasi_files.open_files import OpenFile

BACKLOG_BYTES = 256 * 1024 * 1024
_SHARE = 8  # of the memory that is left, an eighth may be taken
_WAIT_SECONDS = 0.01
_PATIENCE_SECONDS = 30.0  # that a cell waits for the writer; then it writes by itself
_POLITE_SECONDS = 0.005  # the cell's reply is on its way through the same interpreter

_LOG = logging.getLogger("wasm_kernel.state")
_UNEXPECTED = "an unexpected error, which the log describes"

Trouble = Callable[[Exception], None]
"""Hears, on the recorder's thread, that commits can't be written; once until all are again."""

Narrow = Callable[[int], None]
"""Hears, on the recorder's thread, that the cap on disk leaves so few cells to undo."""


class Recorder:
    """Commits one instance after another into one history. The guest's thread owns it."""

    def __init__(
        self, history: History, trouble: Trouble, narrow: Narrow, *, keep: int, cap: int
    ) -> None:
        self.history = history
        self._keep = self._narrowed_to = keep
        self._narrow = narrow
        self._cap = cap
        self._trouble = trouble
        self._troubled = False
        self._tracker: Tracker | None = None
        self._files: WasiFiles | None = None
        self._missed: list[Range] = []
        self._jobs: queue.Queue[int | None] = queue.Queue()
        for one in history.waiting:
            self._jobs.put(one)
        self._thread = threading.Thread(target=self._write, name="commits", daemon=True)
        self._thread.start()

    def limit(self, *, keep: int, cap: int) -> None:
        """Keep so many cells, and so many bytes of them, from now on."""
        self._keep = self._narrowed_to = keep
        self._cap = cap

    def watch(self, instance: Instance, files: WasiFiles) -> None:
        """Begins to track an instance: commits are of it, relative to its memory as it is now."""
        self.unwatch()
        self._missed = []
        self._files = files
        self._tracker = best(instance.memory.address, instance.memory.size)

    def unwatch(self) -> None:
        """Ends tracking; the instance is about to be closed."""
        if self._tracker is not None:
            self._tracker.close()
            self._tracker = self._files = None

    def commit(
        self, instance: Instance, *, cell: int, count: int, label: str, cells: int = 1
    ) -> Commit:
        """Take a commit of the instance that is watched.

        Raises:
            OSError, MemoryError: it can't be taken; the next one will have these changes, too.
        """
        if self._tracker is None or self._files is None:
            raise RuntimeError("no instance is watched")
        size = instance.memory.size
        ranges = self._missed = merge([*self._missed, *self._tracker.changed(size)])
        commit = Commit(
            id=self.history.next_id(),
            parent=self.history.head,
            cell=cell,
            count=count,
            label=_plain(label),
            time=time.time(),
            size=size,
            cells=cells,
            clock=instance.monotonic(),
            runs=tuple((start // PAGE, (end - start) // PAGE) for start, end in ranges),
            files=tuple(map(_writable, self._files.opened())),
        )
        if self._room(commit.page_bytes) or not self._written(commit, instance, ranges):
            self.history.add(commit, gather(instance.memory.address, ranges))
        self._missed = []
        self._jobs.put(commit.id)
        return commit

    def _written(self, commit: Commit, instance: Instance, ranges: list[Range]) -> bool:
        """Write a large commit from the guest's memory; False where the disk does not take it."""
        if not self.history.on_disk:
            return False
        runs, zeros = sort_out(instance.memory.address, ranges)
        content = in_steps(stretch(instance.memory.address, commit.size), runs)
        try:
            self.history.add_written(replace(commit, runs=runs, zeros=zeros), content)
        except OSError:
            return False  # the recorder's thread will find out, and say so
        return True

    def _room(self, more: int) -> bool:
        """Whether so many bytes more can be behind, now or after a wait for what is.

        False if that is too much at any time, or if the writer makes no room for too long.
        """
        if self.history.unwritten + more <= BACKLOG_BYTES:
            return True
        most = max(BACKLOG_BYTES, (self.history.unwritten + available_memory()) // _SHARE)
        until = time.monotonic() + _PATIENCE_SECONDS
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
        """Whether commits come to disk: they have a place there, and it takes them."""
        return self.history.on_disk and not self._troubled

    @property
    def behind(self) -> bool:
        """Whether a commit could not be taken, so that memory is not as the head has it."""
        return bool(self._missed)

    def flush(self) -> None:
        """Wait until everything is written, or can't be."""
        self._jobs.join()

    def catch_up(self, seconds: float) -> None:
        """Wait until the commits are on disk, but so long at most, and not where they can't be."""
        until = time.monotonic() + seconds
        while self.history.waiting and not self._troubled and time.monotonic() < until:
            time.sleep(_WAIT_SECONDS / 4)

    def close(self) -> None:
        """Write what is left, also what could not be written before, and end; idempotent."""
        self.unwatch()
        if self._thread.is_alive():
            self._jobs.put(self.history.last)
            self._jobs.put(None)
            self._thread.join()

    def _fold(self) -> None:
        self._thin()
        self.history.tidy()

    def _thin(self) -> None:
        """Fold old commits away, some cells at a time: each folding writes a commit anew.

        It waits for a pause between cells, but not for ever: there may be none, and no more than
        twice the cap may be on disk. What is still to be
        written is left alone then: else a crash would lose more the longer it goes on.
        """
        keep, paused = self._keep, self._jobs.empty()
        unwritten = () if paused or self._troubled else self.history.waiting
        most = (2 if paused else 6) * keep + _staying(self.history) + len(unwritten)
        between = sum(not commit.cells for commit in list(self.history.commits.values()))
        if len(self.history.commits) - min(between, keep) > most:
            thin(self.history, keep, unwritten)
        if not paused and self.history.disk_bytes <= 2 * self._cap:
            return
        if self.history.disk_bytes > self._cap:
            _drop_unused(self.history)
        while self.history.disk_bytes > self._cap and keep > 1:
            keep //= 2
            thin(self.history, keep, unwritten, all_of_it=True)
        if keep < self._narrowed_to:
            self._narrow(keep)
        self._narrowed_to = keep

    def _write(self) -> None:
        while (one := self._jobs.get()) is not None:
            if self._jobs.empty():
                time.sleep(_POLITE_SECONDS)
            try:
                self._take_up(one)
            finally:
                self._jobs.task_done()
        self._jobs.task_done()

    def _take_up(self, one: int) -> None:
        stored = self._tried(lambda: self._store(one))
        if self._tried(self._fold) and stored:
            self._troubled = False

    def _store(self, last: int) -> None:
        """Write what waits, oldest first; what stands on a commit that can't be written waits on.

        Raises:
            Exception: a commit could not be written. All others were tried.
        """
        self.history.squeeze(last)
        failed: dict[int, Exception] = {}
        for one in self.history.waiting:
            commit = self.history.commits.get(one)
            if one > last or (commit is not None and commit.parent in failed):
                continue
            try:
                self.history.store(one)
            except Exception as problem:
                failed[one] = problem
        self.history.save_head()
        for failure in failed.values():
            raise failure

    def _tried(self, work: Callable[[], None]) -> bool:
        """Whether work succeeded; whatever goes wrong is told, and never ends the thread."""
        try:
            work()
        except (OSError, HistoryError, MemoryError) as problem:
            self._tell(problem)
        except BaseException:
            _LOG.exception("The history of a session could not be written")
            self._tell(HistoryError(_UNEXPECTED))
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


def _staying(history: History) -> int:
    """How many commits stay when old ones are folded, besides the last cells."""
    commits = list(history.commits.values())
    return len(history.names) + sum(c.page_bytes > folding.HEAVY_BYTES for c in commits)


def _drop_unused(history: History) -> None:
    if history.place is not None:
        history.place.drop_unused()


def _plain(text: str) -> str:
    """Text as UTF-8 can have it: a lone surrogate becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def _writable(file: OpenFile) -> OpenFile:
    """What was open; a path that UTF-8 can't have counts as lost."""
    if file.path is None or _plain(file.path) == file.path:
        return file
    return OpenFile(file.fd, file.guest, None, 0, 0, 0, 0, 0)
