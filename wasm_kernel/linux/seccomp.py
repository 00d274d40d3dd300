"""Seccomp: a process gives up the system calls that it will not make again, in all its threads.

The filter is a classic BPF program (<https://docs.kernel.org/userspace-api/seccomp_filter.html>).
It lists the refused calls and lets the rest pass: the calls that all versions of wasmtime, ZeroMQ
and Python make can't be listed. Landlock refuses new files (`landlock.py`); this filter refuses
what Landlock does not guard.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator

from msgspec import Struct

from wasm_kernel.linux.libc import checked, system_call

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_SET_FILTER, _ALL_THREADS = 1, 1
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF instructions
_AND = 0x54
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # in struct seccomp_data
_SECOND_ARGUMENT_AT, _ITS_OTHER_HALF_AT = 24, 28
_X32 = 0x40000000  # calls of x86-64's second ABI, under other numbers
_THREAD = 0x00010000  # CLONE_THREAD
_KIND, _STREAM = 0xF, 1  # a socket's type: SOCK_TYPE_MASK, SOCK_STREAM


class SystemCall(Struct, frozen=True):
    """A system call's name and its numbers; None if an architecture does not have it."""

    name: str
    x86_64: int | None
    aarch64: int | None


def _calls(*groups: str) -> tuple[SystemCall, ...]:
    """Reads groups of calls, each with its numbers; `-` if an architecture does not have it."""
    words = (call.split() for group in groups for call in group.split(", "))
    return tuple(
        SystemCall(name, *(None if number == "-" else int(number) for number in numbers))
        for name, *numbers in words
    )


REFUSED = _calls(
    # the network, and the sockets of services on this machine
    "socket 41 198, connect 42 203, bind 49 200, listen 50 201",
    # other programs
    "execve 59 221, execveat 322 281, fork 57 -, vfork 58 -",
    # other processes; Landlock keeps their memory closed to process_vm_readv, which commits use
    "ptrace 101 117, pidfd_getfd 438 438, pidfd_send_signal 424 424, tkill 200 130",
    "setpriority 141 140, ioprio_set 251 30",
    # the modes, owners, times and attributes of other files, which Landlock does not guard
    "chmod 90 -, fchmodat 268 53, fchmodat2 452 452, chown 92 -, fchown 93 55, lchown 94 -",
    "fchownat 260 54, utime 132 -, utimes 235 -, futimesat 261 -, setxattr 188 5, lsetxattr 189 6",
    "fsetxattr 190 7, setxattrat 463 463, removexattr 197 14, lremovexattr 198 15",
    "fremovexattr 199 16, removexattrat 466 466, file_setattr 469 469",
    # memory, queues and semaphores that this user's programs share; Landlock does not guard them
    "shmget 29 194, shmat 30 196, shmctl 31 195, semget 64 190, semop 65 193, semtimedop 220 192",
    "semctl 66 191, msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180",
    "mq_unlink 241 181",
    # memory in files without a name, which counts to no process
    "memfd_create 319 279, memfd_secret 447 447",
    # a second way to everything above
    "io_uring_setup 425 425",
    # calls that escapes from containers use
    "unshare 272 97, setns 308 268, mount 165 40, move_mount 429 429, fsopen 430 430",
    "open_tree 428 428, pivot_root 155 41, chroot 161 51, bpf 321 280, perf_event_open 298 241",
    "add_key 248 217, request_key 249 218, keyctl 250 219, init_module 175 105",
    "finit_module 313 273, kexec_load 246 104",
)
OWN_ONLY = _calls(
    # signals; Landlock keeps them from other processes only since version 6
    "kill 62 129, tgkill 234 131, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240"
)
"""The calls whose first argument may only be the process itself."""

OWN_OR_NONE = _calls(
    # limits of other processes of this user: too low ones would end them
    "prlimit64 302 261"
)
"""The calls whose first argument may only be the process itself, by its number or 0.

The calls that set a thread's scheduling can't be among them: libraries pass them the numbers of
their threads, and ZeroMQ aborts the process when such a call is refused.
"""
_GET_RIGHTS, _SET_RIGHTS = SystemCall("capget", 125, 90), SystemCall("capset", 126, 91)
_RIGHTS_VERSION = 0x20080522
_KEPT_RIGHTS = 0b11011  # CAP_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID: files, which Landlock guards
_CLONE = SystemCall("clone", 56, 220)
_PAIR = SystemCall("socketpair", 53, 199)
_TIMES = SystemCall("utimensat", 280, 88)
_CLONE3 = SystemCall("clone3", 435, 435)


def available() -> bool:
    """Returns whether this module knows the call numbers of this machine's architecture."""
    return os.uname().machine in _SECCOMP


def refuse() -> None:
    """Gives up new and other processes and the calls in `REFUSED`, in every thread."""
    machine = os.uname().machine
    code = program(machine, os.getpid())
    kept = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("@HP", len(code) // 8, ctypes.addressof(kept))
    answer = checked(system_call(_SECCOMP[machine], _SET_FILTER, _ALL_THREADS, described))
    if answer > 0:
        raise OSError("a thread of this process has a filter of its own")


def give_up_rights() -> None:
    """Gives up the superuser's rights beyond files, such as to set the clock or to restart.

    It holds for the calling thread and for those that it starts.
    """
    machine = os.uname().machine
    head = struct.pack("=Ii", _RIGHTS_VERSION, 0)
    rights = ctypes.create_string_buffer(24)  # effective, permitted and inheritable, in halves
    get, give = getattr(_GET_RIGHTS, machine), getattr(_SET_RIGHTS, machine)
    checked(system_call(get, head, ctypes.addressof(rights)))
    effective, permitted, *_ = struct.unpack("=6I", rights.raw)
    kept = struct.pack("=6I", effective & _KEPT_RIGHTS, permitted & _KEPT_RIGHTS, 0, 0, 0, 0)
    checked(system_call(give, head, kept))


def program(machine: str, process: int) -> bytes:
    """Returns the BPF program for an architecture and a process, eight bytes per instruction."""
    return b"".join(_instructions(machine, process))


def _instructions(machine: str, process: int) -> Iterator[bytes]:
    refused = _error(errno.EPERM)
    yield _step(_LOAD, _ARCHITECTURE_AT)
    yield _step(_EQUAL, _ARCHITECTURE[machine], 1, 0)
    yield refused  # calls of another ABI, such as 32-bit ones, have other numbers
    yield _step(_LOAD, _NUMBER_AT)
    if machine == "x86_64":
        yield _step(_AT_LEAST, _X32, 0, 1)
        yield refused
    for refusable in REFUSED:
        if (number := getattr(refusable, machine)) is not None:
            yield _step(_EQUAL, number, 0, 1)
            yield refused
    for calls, allowed in ((OWN_ONLY, (process,)), (OWN_OR_NONE, (process, 0))):
        for limited in calls:
            yield _step(_EQUAL, getattr(limited, machine), 0, 3 + len(allowed))
            yield _step(_LOAD, _FIRST_ARGUMENT_AT)
            for left, number in zip(range(len(allowed), 0, -1), allowed, strict=True):
                yield _step(_EQUAL, number, left, 0)
            yield refused
            yield _step(_RETURN, _ALLOW)
    # a filter can't read clone3's flags, behind a pointer; after ENOSYS the C library uses clone
    yield _step(_EQUAL, getattr(_CLONE3, machine), 0, 1)
    yield _error(errno.ENOSYS)
    yield from _times_by_descriptor(getattr(_TIMES, machine))
    # a pair of datagram sockets sends to any program's socket that has a path
    yield _step(_EQUAL, getattr(_PAIR, machine), 0, 5)
    yield _step(_LOAD, _SECOND_ARGUMENT_AT)
    yield _step(_AND, _KIND)
    yield _step(_EQUAL, _STREAM, 1, 0)
    yield refused
    yield _step(_RETURN, _ALLOW)
    yield _step(_EQUAL, getattr(_CLONE, machine), 0, 3)
    yield _step(_LOAD, _FIRST_ARGUMENT_AT)
    yield _step(_ANY_BIT, _THREAD, 1, 0)
    yield refused
    yield _step(_RETURN, _ALLOW)


def _times_by_descriptor(number: int) -> Iterator[bytes]:
    """Yields steps that allow setting times by a descriptor alone: Landlock checked its opening."""
    yield _step(_EQUAL, number, 0, 6)
    yield _step(_LOAD, _SECOND_ARGUMENT_AT)
    yield _step(_EQUAL, 0, 0, 2)
    yield _step(_LOAD, _ITS_OTHER_HALF_AT)
    yield _step(_EQUAL, 0, 1, 0)
    yield _error(errno.EPERM)
    yield _step(_RETURN, _ALLOW)


def _error(code: int) -> bytes:
    return _step(_RETURN, _ERROR | code)


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
