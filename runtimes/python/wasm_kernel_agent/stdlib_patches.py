"""The standard library in a sandbox: missing parts are refused in words, or work in another way."""

from __future__ import annotations

import copy
import errno
import functools
import getpass
import hashlib
import hmac
import locale
import multiprocessing
import os
import platform
import socket
import sys
import time
import types
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import PurePath
from typing import Any, NoReturn

from IPython.core.error import UsageError

from wasm_kernel_agent import (
    awaited_processes,
    locks,
    pools,
    processes,
    threads,
    time_formats,
)
from wasm_kernel_agent.host import note

_NO_PROCESSES = "the sandbox has no processes: {what} can't run. Use {instead} instead."
NO_NETWORK = (
    "the sandbox has no network, so {what} can't be reached. Download the data with another "
    "program, bring the file into the session, and read it from there."
)
_OF_PROCESSES = {
    "Process": "threading.Thread",
    **dict.fromkeys(("Queue", "JoinableQueue", "SimpleQueue", "Pipe"), "queue.Queue"),
    **{
        name: f"threading.{name}"
        for name in (
            *("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Barrier"),
        )
    },
    **dict.fromkeys(
        ("Manager", "Value", "Array", "RawValue", "RawArray"),
        "a plain variable, which threads share,",
    ),
}
"""What processes have in `multiprocessing`, with the part of the library that threads have."""
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
_NAMING_FILES = (
    *(
        "access",
        "chdir",
        "chmod",
        "link",
        "listdir",
        "lstat",
        "mkdir",
        "open",
        "readlink",
        "remove",
    ),
    *("rename", "replace", "rmdir", "scandir", "stat", "truncate", "unlink", "utime"),
)
_NO_LOCALES = (
    "the sandbox has no locale but C: numbers and dates are written, and texts sorted, as before. "
    "babel (%pip install babel) writes them as in other countries. (This is said once.)"
)


def _refusing(sentence: str) -> Any:
    def magic(*_: str) -> NoReturn:
        raise UsageError(sentence)

    magic.__doc__ = f"Not available: {sentence}"
    return magic


def replace_magics(shell: Any) -> None:
    """Lets the magics that need processes, a network or an editor answer with a sentence."""
    for name in _SCRIPTS:
        refusal = _refusing(_NO_PROCESSES.format(what=f"%%{name}", instead="a cell of Python"))
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
    _have_types_of_locks()
    pools.install()
    threads.install()
    locks.install()
    _keep_working_folder_plain()
    _refuse_empty_paths()
    _keep_a_umask()
    _have_a_user()
    _have_a_processor_and_no_terminal()
    _derive_keys()
    _tell_of_missing_locales()
    time_formats.install()
    _hide_the_missing_installation()


def _refuse_what_is_missing() -> None:
    """Says in plain words why processes and the network can't be used."""
    refusals: list[tuple[Any, str, Any]] = [
        (BaseProcess, "start", _no_process("Process")),
        (socket, "getaddrinfo", _no_network),
        (socket, "gethostbyname", _no_network),
        (socket.socket, "__init__", _no_socket),
    ]
    for name in _OF_PROCESSES.keys() - {"Process"}:
        refusal = _no_process(name)
        refusals += [(BaseContext, name, refusal), (multiprocessing, name, refusal)]
    for owner, name, refusal in refusals:
        setattr(owner, name, refusal)


def _have_types_of_locks() -> None:
    """Lets packages import `multiprocessing.synchronize`, as gymnasium does for annotations."""
    module: Any = types.ModuleType("multiprocessing.synchronize")
    for name, instead in _OF_PROCESSES.items():
        if instead == f"threading.{name}":
            members = {"__init__": _no_process(name), "__module__": module.__name__}
            setattr(module, name, type(name, (), members))
    owner: Any = multiprocessing
    owner.synchronize = sys.modules[module.__name__] = module


def _no_process(name: str) -> Any:
    sentence = _NO_PROCESSES.format(what=f"multiprocessing.{name}", instead=_OF_PROCESSES[name])

    def refuse(*_: Any, **__: Any) -> NoReturn:
        __tracebackhide__ = True
        raise OSError(errno.ENOTSUP, sentence)

    return refuse


def _no_network(address: Any = None, *_: Any, **named: Any) -> NoReturn:
    __tracebackhide__ = True
    host = named.get("host", address[0] if isinstance(address, tuple) else address)
    raise OSError(errno.ENETUNREACH, NO_NETWORK.format(what=host or "another machine"))


def _no_socket(*_: Any, **__: Any) -> NoReturn:
    __tracebackhide__ = True
    raise OSError(errno.ENOTSUP, "the sandbox has no network: no socket can listen or connect")


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


def _keep_a_umask() -> None:
    """Gives `os` the mask of new files' modes, which WASI does not have; the modes are fixed."""
    masks = [0o22]

    def umask(mask: int, /) -> int:
        """Sets the mask, and returns the one before; it has no effect."""
        masks.append(mask & 0o777)
        return masks.pop(0)

    os.umask = umask


def _have_a_user() -> None:
    """Gives `os` the user and group 0, the owner of all files by `os.stat`."""
    module: Any = os
    module.getppid, module.getlogin = lambda: 1, getpass.getuser
    for name in ("getuid", "geteuid", "getgid", "getegid"):
        setattr(os, name, lambda: 0)
    for name in ("chown", "lchown"):
        setattr(os, name, lambda path, uid, gid, **_: None)


def _have_a_processor_and_no_terminal() -> None:
    """Gives `os` and `time` what code for Linux asks first, and elsewhere catches an `OSError`."""

    def get_terminal_size(_: int = 1, /) -> NoReturn:
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))

    module: Any = os
    module.get_terminal_size = get_terminal_size
    module.sched_getaffinity = lambda _, /: {0}
    clocks: Any = time
    clocks.thread_time, clocks.thread_time_ns = time.process_time, time.process_time_ns


def _tell_of_missing_locales() -> None:
    """Makes `setlocale` say that it has no effect: WASI's C library accepts any name."""
    choose, told = locale.setlocale, set[str]()

    def setlocale(category: int, locale: Any = None) -> str:
        """Returns the name of the chosen locale, which has no effect."""
        chosen = choose(category, locale)
        names = {chosen.partition(".")[0]} - {"C", "POSIX"} if locale else ()
        if names and not told:
            told.update(names)
            note(_NO_LOCALES)
        return chosen

    locale.setlocale = setlocale


def _derive_keys() -> None:
    """Gives `hashlib` the function `pbkdf2_hmac`, which is part of OpenSSL elsewhere."""

    def pbkdf2_hmac(
        hash_name: str, password: Any, salt: Any, iterations: int, dklen: int | None = None
    ) -> bytes:
        """Derives a key from a password."""
        keyed = hmac.new(memoryview(password).tobytes(), digestmod=hash_name)
        size = keyed.digest_size if dklen is None else dklen
        if iterations < 1:
            raise ValueError("iteration value must be greater than 0.")
        if size < 1:
            raise ValueError("key length must be greater than 0.")
        key = b""
        while len(key) < size:
            block = len(key) // keyed.digest_size + 1
            last = memoryview(salt).tobytes() + block.to_bytes(4, "big")
            mixed = 0
            for _ in range(iterations):
                turn = keyed.copy()
                turn.update(last)
                last = turn.digest()
                mixed ^= int.from_bytes(last, "big")
            key += mixed.to_bytes(keyed.digest_size, "big")
        return key[:size]

    pbkdf2_hmac.__module__ = "hashlib"
    hashlib.pbkdf2_hmac = pbkdf2_hmac


def _hide_the_missing_installation() -> None:
    """Keeps Python from looking for, or giving advice on, its files on a disk: a guest has none."""
    sys.executable = "/usr/bin/python3"  # the shell's name of it
    replace: Any = vars(copy)["replace"]  # Python has it since 3.13
    sys.flags = replace(sys.flags, no_site=0)  # else printed ImportErrors blame it
    platform.libc_ver = lambda executable=None, lib="", version="", chunksize=0: (lib, version)
