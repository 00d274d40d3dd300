"""What a sandbox can't do, said in a sentence where a user meets it."""

from __future__ import annotations

import errno
import multiprocessing
import os
import socket
import subprocess
import threading
import urllib.request
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn
from urllib.error import URLError

from IPython.core.error import UsageError

NO_PROCESSES = (
    "the sandbox has no processes: {what} can't run. Use Python in the notebook itself instead."
)
NO_THREADS = (
    "can't start new thread: the sandbox has no threads. "
    "Call the function directly, use asyncio for things that wait, or "
    "concurrent.futures.ThreadPoolExecutor, which makes its calls one after another here."
)
NO_NETWORK = (
    "the sandbox has no network, so {what} can't work. "
    "Put the data into the workspace folder and read it from there."
)
_SCRIPTS = ("bash", "sh", "script", "perl", "ruby", "pypy", "python2", "system", "sx", "!")
_INTERPRETERS = ("python", "python3")
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
    "subshell": "this kernel has no subshells: one cell runs at a time",
    "connect_info": "the connection is made outside the sandbox and is not visible inside",
}


def no_window(gui: Any) -> UsageError:
    """The error for a matplotlib backend that needs a window."""
    return UsageError(f"the sandbox has no windows, so no {gui!r} figures; use %matplotlib inline")


def _refusing(sentence: str) -> Any:
    def magic(*_: str) -> NoReturn:
        raise UsageError(sentence)

    magic.__doc__ = f"Not available: {sentence}"
    return magic


def replace_magics(shell: Any) -> None:
    """Let the magics that need processes, a network or an editor answer with a sentence."""
    for name in _SCRIPTS + _INTERPRETERS:
        refusal = _refusing(NO_PROCESSES.format(what=f"%%{name}"))
        shell.register_magic_function(refusal, "cell", name)
    for name in ("system", "sx"):
        shell.register_magic_function(_system(shell), "line", name)
    for name in _INSTALLERS:
        sentence = _NO_INSTALL.format(name=name, packages=_BUILT_IN)
        shell.register_magic_function(_refusing(sentence), "line", name)
    for name, sentence in _ONLY_HERE.items():
        shell.register_magic_function(_refusing(sentence), "line", name)


def _system(shell: Any) -> Any:
    def system(line: str = "") -> Any:
        """The output of one of the few shell commands that work here, as a list of lines."""
        return shell.getoutput(line)

    return system


def install() -> None:
    """Word what Python itself says about processes and threads for people who meet it."""
    if hasattr(os, "fork"):
        raise RuntimeError("this is no guest: refusals would break a whole interpreter")
    places: tuple[tuple[Any, str, Any], ...] = (
        (os, "system", _no_process("os.system")),
        (os, "popen", _no_process("os.popen")),
        (subprocess.Popen, "__init__", _no_process("a command")),
        (threading.Thread, "start", _no_thread(threading.Thread.start)),
        (BaseContext, "Pool", _no_process("multiprocessing.Pool")),
        (BaseContext, "Manager", _no_process("multiprocessing.Manager")),
        (multiprocessing, "Pool", _no_process("multiprocessing.Pool")),
        (multiprocessing, "Manager", _no_process("multiprocessing.Manager")),
        (BaseProcess, "start", _no_process("multiprocessing.Process")),
        (socket, "getaddrinfo", _no_network("socket.getaddrinfo")),
        (socket, "gethostbyname", _no_network("socket.gethostbyname")),
        (socket.socket, "connect", _no_network("socket.connect")),
        (urllib.request.UnknownHandler, "unknown_open", _no_url),
    )
    for owner, name, refusal in places:
        setattr(owner, name, refusal)


def _no_process(what: str) -> Any:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        __tracebackhide__ = True
        raise OSError(errno.ENOTSUP, NO_PROCESSES.format(what=what))

    return refuse


def _no_network(what: str) -> Any:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        __tracebackhide__ = True
        raise OSError(errno.ENETUNREACH, NO_NETWORK.format(what=what))

    return refuse


def _no_url(_: Any, request: Any) -> NoReturn:
    """What answers `https:`, for which the guest has no handler."""
    __tracebackhide__ = True
    if request.type in ("http", "https", "ftp"):
        raise URLError(NO_NETWORK.format(what=f"{request.type}:"))
    raise URLError(f"unknown url type: {request.type}")


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
