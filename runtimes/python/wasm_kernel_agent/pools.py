"""Pools of threads and processes.

The pools of `concurrent.futures` have the threads of `threads.py`. Those of `multiprocessing` make
each call at once. Calls for a process work on copies of their arguments, and return copies.
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.process
import concurrent.futures.thread
import logging
import pickle
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any

from wasm_kernel_agent.host import note

_SENTENCE = "the sandbox has no {kind}: {name} makes its calls {how}. (This is said once.)"
_OF_THREADS = "threads side by side", "ThreadPool", "one after another"
_OF_PROCESSES = "processes", "multiprocessing.Pool", "one after another, in the notebook"
_said: set[str] = set()
_start_if_none_waits: Any = vars(ThreadPoolExecutor)["_adjust_thread_count"]


def _say_once(kind: str, name: str, how: str) -> None:
    if kind not in _said:
        _said.add(kind)
        note(_SENTENCE.format(kind=kind, name=name, how=how))


def install() -> None:
    """Makes the executors of `concurrent.futures` run in threads, also those of processes."""
    module: Any = concurrent.futures.thread
    module._worker = _work
    pool: Any = ThreadPoolExecutor
    pool.__exit__ = _end_block
    pool._adjust_thread_count = _adjust_thread_count
    for module in (concurrent.futures, concurrent.futures.process):
        module.ProcessPoolExecutor = ProcessPoolExecutor
    ProcessPoolExecutor.__module__ = "concurrent.futures.process"


def _end_block(self: ThreadPoolExecutor, kind: Any, *_: object) -> None:
    """Waits for the calls of a pool, unless an interrupt ends them."""
    __tracebackhide__ = True
    is_interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
    self.shutdown(wait=not is_interrupted, cancel_futures=is_interrupted)


def _adjust_thread_count(self: Any) -> None:
    """Starts a thread for a call if no thread waits; an interrupt may have ended some that did."""
    ended = {each for each in self._threads if each._os_thread_handle.is_done()}
    if ended:
        self._threads -= ended
        self._idle_semaphore = threading.Semaphore(0)
    _start_if_none_waits(self)


def _work(executor: Any, context: Any, calls: Any) -> None:
    """Makes a pool's calls, in one of its threads; a thread can't leave Python's own function."""
    if not _is_initialized(executor, context):
        return
    while True:
        if calls.empty():
            _note_idle(executor())
        call = calls.get()
        if call is not None:
            _make(call)
            del call
        elif _is_shut_down(executor()):
            calls.put(None)  # for the other threads
            return


def _is_initialized(executor: Any, context: Any) -> bool:
    try:
        context.initialize()
    except Exception:
        logging.getLogger("concurrent.futures").critical("Exception in initializer:", exc_info=True)
        if (pool := executor()) is not None:
            pool._initializer_failed()
        return False
    return True


def _note_idle(pool: Any) -> None:
    if pool is not None:
        pool._idle_semaphore.release()


def _is_shut_down(pool: Any) -> bool:
    return pool is None or pool._shutdown


def _make(call: Any) -> None:
    __tracebackhide__ = True
    if not call.future.set_running_or_notify_cancel():
        return
    fn, args, kwargs = call.task
    try:
        value = _call(fn, args, kwargs)
    except (Exception, SystemExit, GeneratorExit) as problem:
        call.future.set_exception(problem)
    else:
        call.future.set_result(value)


def _call(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    __tracebackhide__ = True
    return fn(*args, **kwargs)


def _pickled(value: Any) -> bytes:
    return bytes(ForkingPickler.dumps(value))


def _call_with_copies(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    __tracebackhide__ = True
    return _call_sent(_pickled((fn, args, kwargs)))


def _call_sent(sent: bytes) -> Any:
    __tracebackhide__ = True
    fn, args, kwargs = pickle.loads(sent)
    value = fn(*args, **kwargs)
    return pickle.loads(_pickled(value))


class ProcessPoolExecutor(ThreadPoolExecutor):
    """The executor of processes, whose calls are made in threads."""

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: Any = None,
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        max_tasks_per_child: int | None = None,
    ) -> None:
        super().__init__(max_workers, initializer=initializer, initargs=initargs)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Calls `fn` with copies, in a thread. Returns the future of its value or exception."""
        __tracebackhide__ = True
        _say_once("processes", "ProcessPoolExecutor", "in threads, which take turns")
        try:
            sent = _pickled((fn, args, kwargs))
        except Exception as problem:
            failed: Future[Any] = Future()
            failed.set_exception(problem)
            return failed
        return super().submit(_call_sent, sent)


class _TasksAtOnce:
    """The queue of a pool of `multiprocessing`, which does each task as it is put."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def put(self, job: tuple[Iterable[Any], Callable[[int], None] | None]) -> None:
        """Makes the calls of a job, and hands their outcomes to its result."""
        tasks, set_length = job
        number = -1
        for job_number, number, fn, args, kwargs in tasks:
            try:
                outcome = True, self._pool._call(fn, args, kwargs)
            except Exception as problem:
                outcome = False, problem
            self._pool._cache[job_number]._set(number, outcome)
        if set_length is not None:
            set_length(number + 1)


def make_calls_at_once(module: ModuleType) -> None:
    """Makes the pools of `multiprocessing` do without threads and processes."""
    pools: Any = module

    def begin(
        self: Any,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
        *_: Any,
        **__: Any,
    ) -> None:
        if processes is not None and processes < 1:
            raise ValueError("Number of processes must be at least 1")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        is_threads = isinstance(self, pools.ThreadPool)
        _say_once(*(_OF_THREADS if is_threads else _OF_PROCESSES))
        self._call = _call if is_threads else _call_with_copies
        self._processes = processes or 1
        self._pool = [None] * self._processes  # `map` divides its calls by their number
        self._cache, self._taskqueue, self._state = {}, _TasksAtOnce(self), pools.RUN
        if initializer is not None:
            initializer(*initargs)

    def close(self: Any) -> None:
        """Takes no more calls."""
        self._state = pools.CLOSE

    def terminate(self: Any) -> None:
        """Takes no more calls."""
        self._state = pools.TERMINATE

    def join(self: Any) -> None:
        """Waits for nothing: all calls have been made."""
        if self._state == pools.RUN:
            raise ValueError("Pool is still running")

    pool = pools.Pool
    pool.__init__, pool.close, pool.terminate, pool.join = begin, close, terminate, join
    del pool.__del__
