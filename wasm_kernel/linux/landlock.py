"""Landlock: a process gives up the files and the network that it will not need, for good.

It needs Linux 5.13 or later and no privilege. The system calls and their structures are those of
<https://docs.kernel.org/userspace-api/landlock.html>. The one Python package for it (`landlock`)
supports neither network nor signals.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Mapping
from enum import IntFlag
from pathlib import Path

from wasm_kernel.linux import libc
from wasm_kernel.linux.folders import DescriptorOwner, closing_fd
from wasm_kernel.linux.libc import INT, LONG, checked, system_call

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on every architecture
_ASK_VERSION = 1
_BENEATH = 1  # the kind of rule that is about files
_NO_NEW_PRIVILEGES = 38
_CONNECT_TCP = 2
_ABSTRACT_SOCKETS, _SIGNALS = 1, 2
LEAST = 2  # version 1 refuses every rename from folder to folder, which cells do


_prctl = libc.function("prctl", INT, LONG, LONG, LONG, LONG)


Access = IntFlag(
    "Access",
    "EXECUTE WRITE_FILE READ_FILE READ_DIR REMOVE_DIR REMOVE_FILE MAKE_CHAR MAKE_DIR MAKE_REG "
    "MAKE_SOCK MAKE_FIFO MAKE_BLOCK MAKE_SYM REFER TRUNCATE IOCTL_DEV",
)
"""The rights below a folder, or to a file, in the order of their bits."""

_TO_FILES = Access.EXECUTE | Access.WRITE_FILE | Access.READ_FILE
_TO_FILES |= Access.TRUNCATE | Access.IOCTL_DEV
_NEWEST: Mapping[int, Access] = {3: Access.TRUNCATE, 5: Access.IOCTL_DEV}

READ = Access.READ_FILE | Access.READ_DIR | Access.EXECUTE  # shared libraries are mapped to run
WRITE = READ | Access.WRITE_FILE | Access.TRUNCATE | Access.REMOVE_DIR | Access.REMOVE_FILE
WRITE |= Access.MAKE_DIR | Access.MAKE_REG | Access.MAKE_SYM | Access.REFER
SOCKETS = Access.MAKE_SOCK | Access.REMOVE_FILE


def version() -> int:
    """Returns the kernel's Landlock version; 0 if it has no Landlock."""
    return max(0, system_call(_CREATE, None, 0, _ASK_VERSION))


class Ruleset(DescriptorOwner):
    """The files that a process may go on using. Close it: the restrictions stay.

    Raises `OSError` if the kernel has no Landlock, or one too old.
    """

    def __init__(self) -> None:
        self._known = version()
        if self._known < LEAST:
            raise OSError("this kernel has no Landlock, or one too old")
        self._handled = Access((1 << 14) - 1)
        for since, access in _NEWEST.items():
            if self._known >= since:
                self._handled |= access
        network = _CONNECT_TCP if self._known >= 4 else 0
        scoped = _ABSTRACT_SOCKETS | _SIGNALS if self._known >= 6 else 0
        words = [int(self._handled), network, scoped]
        words = words[: 3 if self._known >= 6 else 2 if self._known >= 4 else 1]
        described = struct.pack(f"={len(words)}Q", *words)
        self.fd = checked(system_call(_CREATE, described, len(described), 0))

    def allow(self, path: Path, access: Access) -> None:
        """Allows access to a file, or to a folder and all below it. Skips a missing path."""
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return  # a path that can't be opened needs no permission
        with closing_fd(descriptor):
            is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            allowed = access & self._handled & (Access(~0) if is_folder else _TO_FILES)
            rule = struct.pack("=Qi", int(allowed), descriptor)
            checked(system_call(_ADD, self.fd, _BENEATH, rule, 0))

    def restrict(self) -> int:
        """Gives up, in this thread and those it starts from now on, all that is not allowed.

        Returns the Landlock version: from 4 on TCP connections, from 6 on also signals to other
        processes are given up. After an `OSError`, nothing was given up.
        """
        no_new_privileges()
        checked(system_call(_RESTRICT, self.fd, 0))
        return self._known


def no_new_privileges() -> None:
    """Keeps all programs that are started from now on from gaining rights by being setuid."""
    checked(_prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
