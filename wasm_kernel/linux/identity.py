"""Which file this is: the same one as before, or another that took its name.

Numbers of inodes are given again as soon as a file is gone, so the time of birth belongs to it.
Linux tells that through statx(2) alone. Where a file system keeps no time of birth, the generation
of an inode (`FS_IOC_GETVERSION`) tells the same.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from functools import cache

from wasm_kernel.linux.descent import Descent
from wasm_kernel.record import record

_AT_FDCWD, _NO_FOLLOW, _EMPTY_PATH, _WANTED = -100, 0x100, 0x1000, 0x900  # number and birth
_BORN = 0x800
_ANSWER = 256
_NEVER = "0.000000000"  # in file systems that were made as images
_GET_GENERATION = 0x80087601
_BOOT = "/proc/sys/kernel/random/boot_id"


def identity(name: str, folder: int = _AT_FDCWD) -> str:
    """Names the file itself, a link at the end not followed; empty if there is none.

    Args:
        name: The file's name, or a path.
        folder: A descriptor of the folder that it is in.
    """
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except (OSError, ValueError):
        return ""
    return f"{found.st_ino}:{_birth(folder, os.fsencode(name), _NO_FOLLOW)}"


def identity_of(fd: int) -> str:
    """Names an open file; empty if its descriptor is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return ""
    return f"{found.st_ino}:{_birth(fd, b'', _EMPTY_PATH)}"


def identity_below(folder: int, path: str) -> str:
    """Names the file at a path below an open folder; empty if there is none without a link."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return ""
    try:
        with Descent(folder) as way:
            for part in parts[:-1]:
                way.enter(part)
            return identity(f"/proc/self/fd/{way.fd}/{parts[-1]}")
    except (OSError, ValueError):  # a link, say, or no name that this system can have
        return ""


@record
class Mark:
    """What tells a file or folder from all others, also from one that takes its place tomorrow.

    Attributes:
        number: Its inode.
        born: Its time of birth, or its generation; empty if the file system knows neither.
        device: The number of the device that it lies on.
        boot: The boot of the machine in which the device had that number.
    """

    number: int
    born: str
    device: int
    boot: str

    @classmethod
    def of(cls, fd: int) -> Mark:
        """Returns the mark of what is open."""
        found = os.fstat(fd)
        born = _birth(fd, b"", _EMPTY_PATH)
        if born in ("", _NEVER):
            born = _generation(fd)
        return cls(found.st_ino, born, found.st_dev, _boot())

    @property
    def lasting(self) -> bool:
        """Whether it tells a file from a later one with the same inode."""
        return bool(self.born)

    def same(self, other: Mark) -> bool:
        """Returns whether both are of one file, as far as that is known.

        The number of a device counts within one boot, and only if it belongs to a disk: overlays,
        network file systems and the like get another one each time they are mounted.
        """
        if (self.number, self.born) != (other.number, other.born):
            return False
        disks = os.major(self.device) and os.major(other.device)
        comparable = disks and self.boot and self.boot == other.boot
        return not comparable or self.device == other.device


def _birth(fd: int, path: bytes, flags: int) -> str:
    function, answer = _function(), ctypes.create_string_buffer(_ANSWER)
    if function is None or function(fd, path, flags, _WANTED, answer):
        return ""
    seconds, nanoseconds = struct.unpack_from("<qI", answer, 80)
    known = struct.unpack_from("<I", answer)[0] & _BORN
    return f"{seconds}.{nanoseconds:09d}" if known else ""


def _generation(fd: int) -> str:
    import fcntl

    answer = bytearray(8)
    try:
        readable = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.ioctl(readable, _GET_GENERATION, answer)
    except OSError:
        return ""
    finally:
        os.close(readable)
    return f"generation {int.from_bytes(answer[:4], 'little')}"


@cache
def _boot() -> str:
    """Names this boot of the machine; empty if it can't be told."""
    try:
        with open(_BOOT, encoding="ascii") as file:  # noqa: PTH123 - no path is needed
            return file.read().strip()
    except OSError:
        return ""


@cache
def _function() -> Callable[..., int] | None:
    """Returns the C library's statx; None where it is too old to have one."""
    function = getattr(ctypes.CDLL(None), "statx", None)
    if function is None:
        return None
    word = ctypes.c_uint
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, word, ctypes.c_char_p]
    found: Callable[..., int] = function
    return found
