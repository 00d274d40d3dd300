"""Locks that let other threads run while something waits for them."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from wasm_kernel_agent import threads

_make_lock = _thread.allocate_lock


def install() -> None:
    """Replaces the locks of `threading`."""
    _Lock.__module__, _Lock.__qualname__, _Lock.__name__ = "_thread", "lock", "lock"
    module: Any = _thread
    module.allocate_lock = module.allocate = module.LockType = module.lock = _Lock
    module = threading
    module.Lock = module._allocate_lock = _Lock
    module._CRLock = None  # CPython's own asks for the guest's one thread


class _Lock:
    """A lock that runs other threads while it is taken; CPython's own would end the guest there."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = _make_lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Takes the lock; False if it is still taken when the timeout is over."""
        __tracebackhide__ = True
        if not (blocking and self._lock.locked()) or -1 != timeout < 0:
            return self._lock.acquire(blocking, timeout)
        is_free = threads.wait(lambda: not self._lock.locked(), None if timeout == -1 else timeout)
        return is_free and self._lock.acquire(False)

    @property
    def __enter__(self) -> Callable[[], bool]:
        # no code of ours may run once the lock is taken: an interrupt there would leave it taken
        return self.acquire if self._lock.locked() else self._lock.acquire

    @property
    def __exit__(self) -> Callable[..., None]:  # noqa: PLE0302 - it returns the method
        return self._lock.__exit__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def __repr__(self) -> str:
        state = "locked" if self._lock.locked() else "unlocked"
        return f"<{state} _thread.lock object at {id(self):#x}>"

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise TypeError("cannot pickle '_thread.lock' object")
