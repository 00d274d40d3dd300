"""A thread with jobs, such as the one that a sandbox's guest lives on.

Guest recursion uses the native stack of the thread it runs on: wasm may use 32 MiB of it, the
host's callbacks come on top, and on a default thread a deep recursion would end the whole process.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

_LOG = logging.getLogger("wasm_kernel.engine")
_POLITE_SECONDS = 0.00015  # lets the thread that gets the result have the interpreter first
STACK_BYTES = 64 * 1024 * 1024

T = TypeVar("T")
_starting = threading.Lock()  # the stack size of new threads is a setting of the whole process


class JobThread:
    """Runs jobs one after another on one thread. Any thread may submit.

    Its stack is big enough for a guest, or of the system's default size if `stack` is 0.
    """

    def __init__(self, name: str, stack: int = STACK_BYTES) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        with _starting:
            before = threading.stack_size(stack)
            try:
                self._thread.start()
            finally:
                threading.stack_size(before)

    def submit(
        self,
        job: Callable[[], T],
        then: Callable[[], object] | None = None,
        future: Future[T] | None = None,
    ) -> Future[T]:
        """Queues `job` and returns its future, the given one or a new one.

        A job whose future is cancelled before its turn does not run. `then` runs when the future
        is done, and before the next job.
        """
        future = Future() if future is None else future

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = job()
            except BaseException as problem:
                future.set_exception(problem)
            else:
                future.set_result(result)
            if then is not None:
                if self._jobs.empty():
                    time.sleep(_POLITE_SECONDS)
                try:
                    then()
                except Exception:  # no caller waits for it, and the next job must run
                    _LOG.exception("the function after a job has failed")

        self._jobs.put(run)
        return future

    def close(self, last: Callable[[], None] = lambda: None) -> None:
        """Runs `last` after everything submitted, then ends. Does not wait; safe to call twice."""
        if not self._closed:
            self._closed = True
            self._jobs.put(last)
            self._jobs.put(None)

    def join(self, seconds: float) -> bool:
        """Waits until the thread has ended, for `seconds` at most; returns whether it has.

        Returns True at once on the thread itself.
        """
        if threading.current_thread() is self._thread:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # otherwise it keeps its future and result alive until the next job
