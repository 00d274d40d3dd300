"""Functions that wait, which a thread may leave and call again."""

from __future__ import annotations

import functools
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import CodeType, FrameType
from typing import Any

_events: dict[CodeType, Callable[[Any], Any] | None] = {}
_inner: set[CodeType] = set()


def add(
    function: Callable[..., Any],
    has_happened: Callable[[Any], Any] | None = None,
    *inner: Callable[..., Any],
) -> None:
    """Adds a function that a thread may leave and call again.

    Args:
        function: The function.
        has_happened: Returns whether a call would end at once, given the object whose method the
            function is. Needed if the function waits for a notice.
        inner: Functions that it calls to wait.
    """
    _events[function.__code__] = has_happened
    _inner.update(each.__code__ for each in inner)


def find() -> tuple[FrameType, Callable[[], Any] | None] | None:
    """Returns the frame of the waiting function, and a function that tells if its event happened.

    Returns:
        None if the waiting function must not be called again, such as a barrier's.
    """
    found, frame = None, sys._getframe(1)
    while frame.f_code in _events or frame.f_code in _inner:
        found = frame if frame.f_code in _events else found
        frame = frame.f_back  # type: ignore[assignment]
    if found is None:
        return None
    has_happened = _events[found.f_code]
    if has_happened is None:
        return found, None
    return found, functools.partial(look, has_happened, found.f_locals["self"])


def look(has_happened: Callable[[Any], Any], of: Any) -> Any:
    """Returns whether an event of an object has happened; True if looking raises an error.

    The thread that waits for it then goes on, and meets the error itself.
    """
    try:
        return has_happened(of)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return True


def install() -> None:
    """Adds the functions of the standard library."""
    add(queue.Queue.get, lambda of: of._qsize() or of.is_shutdown)
    add(queue.Queue.put, lambda of: of._qsize() < of.maxsize or of.is_shutdown)
    add(queue.Queue.join, lambda of: not of.unfinished_tasks)
    add(queue.SimpleQueue.get, lambda of: not of.empty())
    add(threading.Event.wait, lambda of: of._flag)
    add(threading.Semaphore.acquire, lambda of: of._value)
    add(vars(threading)["_PyRLock"].acquire)
    add(threading.Thread.join)
    for function in (Future.result, Future.exception):
        add(function, lambda of: of._state not in ("PENDING", "RUNNING"))
