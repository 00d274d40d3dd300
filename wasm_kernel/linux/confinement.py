"""The walls that a kernel's process closes around itself, and what it keeps within them.

They are for the day on which wasmtime has a flaw and a cell's code gets out of its instance: it
then finds a process that can read Python's own files and the session's folder, and reach nothing
and nobody else. Files are closed before the process has a second thread, as Landlock holds for the
thread that asks and for its children; system calls are closed last, in all threads.
"""

from __future__ import annotations

from pathlib import Path

from wasm_kernel.linux import landlock, seccomp
from wasm_kernel.linux.importing import ImportPlaces, import_places, leave_out
from wasm_kernel.linux.landlock import Access
from wasm_kernel.record import record

_SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/timezone"),
    *("/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf"),
    *("/proc/self", "/proc/stat", "/proc/meminfo", "/proc/cpuinfo", "/proc/loadavg"),
    *("/proc/uptime", "/proc/version", "/proc/filesystems"),
    *("/proc/sys/vm/overcommit_memory", "/proc/sys/vm/max_map_count"),
    *("/sys/devices/system/cpu", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage"),
    *("/dev/urandom", "/dev/random", "/dev/zero"),
)
_DEVICES = ("/dev/null", "/dev/full", "/dev/userfaultfd")


@record
class Kept:
    """What a process goes on using.

    Attributes:
        writable: Folders whose files it reads, writes, makes and removes.
        readable: Files and folders that it reads.
        files: Single files that it writes.
        sockets: Folders in which it makes and removes sockets.
        packages: The packages that it may still import, by name.
    """

    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()
    sockets: tuple[Path, ...] = ()
    packages: tuple[str, ...] = ()


@record
class Walls:
    """Which walls stand, each as a phrase for people, or why it does not.

    Attributes:
        files: About files and outgoing connections.
        calls: About sockets, programs and other processes.
        standing: Whether both stand.
    """

    files: str
    calls: str
    standing: bool


def close_files(kept: Kept) -> str:
    """Give up all files but what is kept, and all outgoing TCP connections.

    Call it while the process has one thread: others would go on as before.

    Returns:
        What it was done with, for people.

    Raises:
        OSError: it can't be done here; nothing was given up.
    """
    places = import_places(kept.packages)
    known = landlock.restrict(_allowed(kept, places))
    leave_out(places)
    return f"Landlock version {known}"


def close_calls() -> str:
    """Give up new sockets, programs and processes; in all threads, once no more of them is needed.

    Returns:
        What it was done with, for people.

    Raises:
        OSError: it can't be done here; nothing was given up.
    """
    _no_core_dumps()
    landlock.no_new_privileges()
    seccomp.refuse()
    return "seccomp"


def possible() -> Walls:
    """What this machine can do; nothing is given up."""
    known, calls = landlock.version(), seccomp.available()
    files = f"Landlock version {known}" if known >= landlock.LEAST else "no Landlock in this kernel"
    told = "seccomp" if calls else "system calls of this machine are not known"
    return Walls(files, told, known >= landlock.LEAST and calls)


def _no_core_dumps() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _allowed(kept: Kept, places: ImportPlaces) -> dict[Path, Access]:
    allowed: dict[Path, Access] = {}
    groups = (
        (map(Path, _SYSTEM), landlock.READ),
        (places.folders, landlock.READ),
        (places.packages, landlock.READ),
        (kept.readable, landlock.READ),
        (map(Path, _DEVICES), landlock.READ | Access.WRITE_FILE | Access.IOCTL_DEV),
        (kept.writable, landlock.WRITE),
        (kept.files, landlock.READ | Access.WRITE_FILE | Access.TRUNCATE),
        (kept.sockets, landlock.SOCKETS),
    )
    for paths, access in groups:
        for path in paths:
            allowed[path] = allowed.get(path, Access(0)) | access
    return allowed
