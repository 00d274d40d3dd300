"""The standard library in a sandbox: missing parts are refused in words, or work in another way."""

from __future__ import annotations

import _thread
import copy
import errno
import functools
import multiprocessing
import os
import platform
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import PurePath
from typing import Any, NoReturn

from IPython.core.error import UsageError

from wasm_kernel_agent import awaited_processes, pools, processes

NO_PROCESSES = (
    "the sandbox has no processes: {what} can't run. Use Python in the notebook itself instead."
)
NO_THREADS = (
    "can't start new thread: the sandbox has no threads. "
    "Call the function directly, use asyncio for things that wait, or "
    "concurrent.futures.ThreadPoolExecutor, which makes its calls one after another here."
)
NO_OTHER_THREAD = (
    "this would wait for ever: only another thread could end the wait, and the sandbox has none. "
    "Wait with a timeout, or use asyncio, whose tasks can wait for each other."
)
NO_NETWORK = (
    "the sandbox has no network, so {what} can't be reached. Download the data with another "
    "program, bring the file into the session, and read it from there."
)
_SHARED_BY_PROCESSES = (
    *("Manager", "Pipe", "Queue", "JoinableQueue", "SimpleQueue", "Lock", "RLock", "Condition"),
    *(
        "Semaphore",
        "BoundedSemaphore",
        "Event",
        "Barrier",
        "Value",
        "Array",
        "RawValue",
        "RawArray",
    ),
)
_SCRIPTS = ("perl", "ruby", "pypy", "python2")
_INSTALLERS = ("conda", "mamba", "micromamba", "uv")
_NO_INSTALL = (
    "%{name} is not available: the sandbox has no network and no processes. "
    "%pip install brings in pure-Python packages; {packages} and some forty more are built in."
)
_BUILT_IN = "numpy, pandas, scipy, scikit-learn, statsmodels, matplotlib, seaborn, sympy, networkx"
_ONLY_HERE = {
    "edit": "there is no editor to open: edit the cell itself, or write files with %%writefile",
    "ed": "there is no editor to open: edit the cell itself, or write files with %%writefile",
    "man": "there are no manual pages in the sandbox: use help() or ?",
    "killbgscripts": "there are no background scripts in the sandbox",
    "qtconsole": "no second console can connect from inside the sandbox",
    "pastebin": "the sandbox has no network: copy the cells, or write them to a file with %save",
    "npm": "packages of JavaScript are for cells in JavaScript; Python's come with %pip install",
    "subshell": "this kernel has no subshells: one cell runs at a time",
    "connect_info": "the connection is made outside the sandbox and is not visible inside",
}
_NAMING_FILES = "access", "chdir", "listdir", "lstat", "mkdir", "open", "scandir", "stat", "utime"


def _refusing(sentence: str) -> Any:
    def magic(*_: str) -> NoReturn:
        raise UsageError(sentence)

    magic.__doc__ = f"Not available: {sentence}"
    return magic


def replace_magics(shell: Any) -> None:
    """Lets the magics that need processes, a network or an editor answer with a sentence."""
    for name in _SCRIPTS:
        refusal = _refusing(NO_PROCESSES.format(what=f"%%{name}"))
        shell.register_magic_function(refusal, "cell", name)
    for name in _INSTALLERS:
        sentence = _NO_INSTALL.format(name=name, packages=_BUILT_IN)
        shell.register_magic_function(_refusing(sentence), "line", name)
    for name, sentence in _ONLY_HERE.items():
        shell.register_magic_function(_refusing(sentence), "line", name)


def install() -> None:
    """Patches the standard library for a guest. Never outside: it would break the interpreter."""
    assert not hasattr(os, "fork"), "this is not a guest"
    processes.install()
    awaited_processes.install()
    _refuse_what_is_missing()
    pools.install()
    _wait_for_nobody()
    _lock_for_nobody()
    _keep_working_folder_plain()
    _refuse_empty_paths()
    _hide_the_missing_installation()


def _refuse_what_is_missing() -> None:
    """Says in plain words why processes, threads and the network can't be used."""
    refusals: list[tuple[Any, str, Any]] = [
        (threading.Thread, "start", _no_thread(threading.Thread.start)),
        (BaseProcess, "start", _no_process("multiprocessing.Process")),
        (socket, "getaddrinfo", _no_network),
        (socket, "gethostbyname", _no_network),
        (socket.socket, "__init__", _no_socket),
    ]
    for name in _SHARED_BY_PROCESSES:
        refusal = _no_process(f"multiprocessing.{name}")
        refusals += [(BaseContext, name, refusal), (multiprocessing, name, refusal)]
    for owner, name, refusal in refusals:
        setattr(owner, name, refusal)


def _no_process(what: str) -> Any:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        __tracebackhide__ = True
        raise OSError(errno.ENOTSUP, NO_PROCESSES.format(what=what))

    return refuse


def _no_network(address: Any = None, *_: Any, **named: Any) -> NoReturn:
    __tracebackhide__ = True
    host = named.get("host", address[0] if isinstance(address, tuple) else address)
    raise OSError(errno.ENETUNREACH, NO_NETWORK.format(what=host or "another machine"))


def _no_socket(*_: Any, **__: Any) -> NoReturn:
    __tracebackhide__ = True
    raise OSError(errno.ENOTSUP, "the sandbox has no network: no socket can listen or connect")


def _no_thread(start: Any) -> Any:
    def refuse(self: Any) -> None:
        __tracebackhide__ = True
        try:
            start(self)
        except RuntimeError as problem:
            if "already" in str(problem) or "once" in str(problem):
                raise
            raise RuntimeError(NO_THREADS) from None

    return refuse


def _wait_for_nobody() -> None:
    """Ends waits for other threads, such as those of events, queues, semaphores and futures.

    A wait with a timeout takes the whole timeout. CPython without threads would crash in both
    cases.
    """

    def wait(self: threading.Condition, timeout: float | None = None) -> bool:
        """Waits until the timeout is over, as no other thread can notify; returns False."""
        __tracebackhide__ = True
        condition: Any = self
        if not condition._is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        if timeout is None:
            raise RuntimeError(NO_OTHER_THREAD)
        time.sleep(max(timeout, 0))
        return False

    threading.Condition.wait = wait  # type: ignore[method-assign]
    module: Any = queue
    module.SimpleQueue = module._PySimpleQueue  # it waits by a condition


_make_lock = _thread.allocate_lock


class _Lock:
    """A lock that refuses to wait for another thread; CPython's own would end the guest there."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = _make_lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Takes the lock; False if it is still taken when the timeout is over."""
        __tracebackhide__ = True
        if not (blocking and self._lock.locked()) or -1 != timeout < 0:
            return self._lock.acquire(blocking, timeout)
        if timeout == -1:
            raise RuntimeError(NO_OTHER_THREAD)
        time.sleep(timeout)
        return False

    @property
    def __enter__(self) -> Callable[[], bool]:
        # no code of ours may run once it is taken: an interrupt there would leave it so
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


def _lock_for_nobody() -> None:
    """Makes locks refuse a wait that can have no end."""
    _Lock.__module__, _Lock.__qualname__, _Lock.__name__ = "_thread", "lock", "lock"
    module: Any = _thread
    module.allocate_lock = module.allocate = module.LockType = module.lock = _Lock
    module = threading
    module.Lock = module._allocate_lock = _Lock


def _keep_working_folder_plain() -> None:
    """Lets `os.chdir` leave one plain path behind, as an operating system does.

    WASI's C library keeps the text that it was given: after `cd a` and `cd ..`, `/app/a/..`.
    """
    change = os.chdir

    def chdir(path: Any) -> None:
        """Changes the working folder."""
        __tracebackhide__ = True
        if isinstance(path, str | PurePath) and ".." in str(path).split("/"):
            path = os.path.realpath(path)
        change(path)

    os.chdir = chdir


def _refuse_empty_paths() -> None:
    """Lets an empty path name no file, as an operating system does.

    WASI's C library takes it for the working folder, which `shutil.rmtree("")` would remove.
    """
    for name in _NAMING_FILES:
        setattr(os, name, _refusing_empty_path(getattr(os, name)))


def _refusing_empty_path(function: Any) -> Any:
    @functools.wraps(function)
    def checked(*args: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        path = args[0] if args else named.get("path")
        if path in ("", b""):
            if function.__name__ == "access":
                return False
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return function(*args, **named)

    checked.__module__ = "os"
    for capable in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if function in capable:
            capable.add(checked)
    return checked


def _hide_the_missing_installation() -> None:
    """Keeps Python from looking for, or giving advice on, its files on a disk: a guest has none."""
    sys.executable = "/usr/bin/python3"  # the shell's name of it
    replace: Any = vars(copy)["replace"]  # which Python has since 3.13
    sys.flags = replace(sys.flags, no_site=0)  # else printed ImportErrors blame it
    platform.libc_ver = lambda executable=None, lib="", version="", chunksize=0: (lib, version)
