"""The recorder: takes a commit of the living memory after each cell, and has it written behind.

Taking one is a look at which pages changed and a copy of those, in the cell's own time. Sorting
out pages of zeros and writing happen on the recorder's own thread, at most `BACKLOG_BYTES` behind;
a cell that changed more waits for it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from wasm_kernel.engine.instance import Instance
from wasm_kernel.engine.memory.commit import Commit
from wasm_kernel.engine.memory.gather import gather
from wasm_kernel.engine.memory.history import History
from wasm_kernel.engine.memory.pages import PAGE, Tracker, best

BACKLOG_BYTES = 512 * 1024 * 1024
_WAIT_SECONDS = 0.01
_POLITE_SECONDS = 0.005  # the cell's reply is on its way through the same interpreter

Trouble = Callable[[OSError], None]
"""Hears, on the recorder's thread, that commits can't be written; once until one can be again."""


class Recorder:
    """Commits one instance after another into one history. The guest's thread owns it."""

    def __init__(self, history: History, trouble: Trouble, *, keep: int, cap: int) -> None:
        self.history = history
        self._keep = keep
        self._cap = cap
        self._trouble = trouble
        self._troubled = False
        self._tracker: Tracker | None = None
        self._jobs: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._write, name="commits", daemon=True)
        self._thread.start()

    def watch(self, instance: Instance) -> None:
        """From now on commits are of this instance, and relative to its memory as it is now."""
        self.unwatch()
        self._tracker = best(instance.reach.address, instance.reach.size)

    def unwatch(self) -> None:
        """The instance is about to be closed."""
        if self._tracker is not None:
            self._tracker.close()
            self._tracker = None

    def commit(self, instance: Instance, *, cell: int, count: int, label: str) -> Commit:
        """Take a commit of the instance that is watched."""
        if self._tracker is None:
            raise RuntimeError("no instance is watched")
        size = instance.reach.size
        ranges = self._tracker.changed(size)
        commit = Commit(
            id=self.history.next_id(),
            parent=self.history.head,
            image=self.history.image,
            cell=cell,
            count=count,
            label=label,
            time=time.time(),
            size=size,
            clock=instance.clock(),
            runs=tuple((start // PAGE, (end - start) // PAGE) for start, end in ranges),
            files=instance.descriptors.save(),
        )
        self.history.add(commit, gather(instance.reach.address, ranges))
        self._idle.clear()
        self._jobs.put(commit.id)
        self._wait_while_behind()
        return commit

    def _wait_while_behind(self) -> None:
        while self.history.unwritten > BACKLOG_BYTES and not self._troubled:
            if self._idle.wait(_WAIT_SECONDS):
                return

    def flush(self) -> None:
        """Wait until everything is written, or can't be."""
        self._idle.wait()

    def close(self) -> None:
        """Write what is left and end; idempotent."""
        self.unwatch()
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join()

    def _fold(self) -> None:
        """Fold old commits away, some cells at a time: each folding writes a commit anew."""
        if not self._jobs.empty():
            return
        keep = self._keep
        if len(self.history.commits) > 2 * keep + len(self.history.names):
            self.history.fold(keep)
        while self.history.disk_bytes > self._cap and keep > 1:
            keep //= 2
            self.history.fold(keep)

    def _write(self) -> None:
        while (one := self._jobs.get()) is not None:
            time.sleep(_POLITE_SECONDS)
            try:
                self.history.squeeze(one)
                self.history.store(one)
                self._fold()
                self._troubled = False
            except OSError as problem:
                if not self._troubled:
                    self._troubled = True
                    self._trouble(problem)
            if self._jobs.empty():
                self._idle.set()
