"""`ThreadPoolExecutor` without threads: each call is made at once, by the one who submits it.

Programs that only want several answers get them, in the same order and with the same exceptions.
One whose calls wait for each other would wait for ever, as it would with a single worker.
"""

from __future__ import annotations

import concurrent.futures
import errno
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from wasm_kernel_agent.outbox import note

_NOTICE = (
    "the sandbox has no threads: ThreadPoolExecutor makes each call at once, one after another. "
    "(This is said once.)"
)
_NO_PROCESSES = (
    "the sandbox has no processes: ProcessPoolExecutor can't run. Call the function directly, "
    "or use ThreadPoolExecutor, which makes the calls one after another."
)


class _Once:
    told = False


def submit(
    self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Future[Any]:
    """Call `fn(*args, **kwargs)` now; a finished future of its value or its exception.

    Raises:
        RuntimeError: the executor was shut down.
    """
    __tracebackhide__ = True
    pool: Any = self
    if pool._shutdown:
        raise RuntimeError("cannot schedule new futures after shutdown")
    if not _Once.told:
        _Once.told = True
        note(_NOTICE)
    _initialize(pool)
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    try:
        future.set_result(fn(*args, **kwargs))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as problem:
        future.set_exception(problem)
    return future


def _initialize(pool: Any) -> None:
    """Run the initializer of the one worker, before its first call."""
    if not getattr(pool, "_wasm_kernel_began", False):
        pool._wasm_kernel_began = True
        pool._create_worker_context().initialize()


def _no_processes(*_: Any, **__: Any) -> None:
    __tracebackhide__ = True
    raise OSError(errno.ENOTSUP, _NO_PROCESSES)


def install() -> None:
    """Let the executors of this interpreter do without threads and processes."""
    pools: Any = ThreadPoolExecutor
    pools.submit = submit
    processes: Any = concurrent.futures.ProcessPoolExecutor
    processes.__init__ = _no_processes
