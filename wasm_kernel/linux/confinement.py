"""The second wall, which a process closes around itself, and what it keeps within it.

A worker closes it before its guest begins: if wasmtime has a flaw and a cell's code gets out of its
instance, the code finds a process that reaches Python's own files, its session's folders and what
else a cell may see. A kernel's front end closes it as well, and keeps no folder of its session.
Files are closed before the process has a second thread, as Landlock holds for the thread that asks
and for its children; system calls are closed last, in all threads.

Most folders on `sys.path` hold Python's packages and nothing else: they stay readable as a whole.
The folder that the process was started in, the user's home, and every folder that contains one of
the two hold the user's own files as well. There, and outside of `sys.path`, only the packages that
the process needs stay readable, each by its own folder.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from msgspec import Struct

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.linux import landlock, seccomp
from wasm_kernel.linux.folders import undoing
from wasm_kernel.linux.landlock import Access, Ruleset

_SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/timezone"),
    *("/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf"),
    *("/proc/self", "/proc/stat", "/proc/meminfo", "/proc/cpuinfo", "/proc/loadavg"),
    *("/proc/uptime", "/proc/version", "/proc/vmstat", "/proc/filesystems"),
    *("/proc/sys/vm/overcommit_memory", "/proc/sys/vm/max_map_count"),
    *("/sys/devices/system/cpu", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage"),
    *("/dev/urandom", "/dev/random", "/dev/zero"),
)
_DEVICES = ("/dev/null", "/dev/full", "/dev/userfaultfd")


class KeptPaths(Struct, frozen=True):
    """The files and packages that a process goes on using.

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


class ConfinementState(Struct, frozen=True):
    """The state of the second wall's two parts, each a phrase: what closes it, or why it is open.

    `files` is about files and outgoing connections, `calls` about sockets, programs and other
    processes. The wall `is_complete` if both parts are closed.
    """

    files: str
    calls: str
    is_complete: bool


OFF, AUTO, REQUIRED = "off", "auto", "required"
_CANT_CONFINE = (
    "The kernel's own process can't be confined on this machine ({why}), and "
    "WasmKernel.confinement=required asks for it. No kernel was started. Use auto to start it "
    "without."
)


class Confinement:
    """The second wall of this process, which is never opened again. The main thread's own.

    `wanted` is `off`, `required` (which raises `WasmKernelError` if this machine can't confine),
    or `auto` (which confines if this machine can). If the wall `is_closing`, a broker must stay
    outside.
    """

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self.state = ConfinementState("off", "off", is_complete=False)
        what = possible()
        self.is_closing = wanted != OFF and what.is_complete
        if wanted != OFF and not what.is_complete:
            self._fail(f"{what.files}; {what.calls}")

    def close_files(self, kept: KeptPaths) -> None:
        """Gives up all files but those in `kept`, and all outgoing TCP connections.

        Call it while the process has one thread: others would stay unconfined. Raises
        `WasmKernelError` if the system refuses and confinement is required.
        """
        if not self.is_closing:
            return
        try:
            places = import_places(kept.packages)
            with _ready.pop() if _ready else _ruleset(places) as ruleset:
                for path, access in _of(kept):
                    ruleset.allow(path, access)
                known = ruleset.restrict()
            seccomp.give_up_rights()
        except OSError as problem:
            self.is_closing = False
            self._fail(f"Landlock: {problem}")
            return
        # An unreadable entry would still be searched, and the import would fail, although another
        # folder may have a version of the package.
        sys.path[:] = [entry for entry in sys.path if entry not in places.left_out]
        self.state = ConfinementState(f"Landlock version {known}", "not yet", is_complete=False)

    def close_calls(self) -> None:
        """Gives up new sockets, programs and processes, in all threads.

        Call it when the kernel's sockets listen.
        """
        if not self.is_closing:
            return
        import resource

        files = self.state.files
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            landlock.no_new_privileges()
            seccomp.refuse()
        except OSError as problem:
            self._fail(f"seccomp: {problem}")
            self.state = ConfinementState(files, f"not closed: {problem}", is_complete=False)
        else:
            self.state = ConfinementState(files, "seccomp", is_complete=True)

    def _fail(self, why: str) -> None:
        if self._wanted == REQUIRED:
            raise WasmKernelError(_CANT_CONFINE.format(why=why))
        self.state = ConfinementState(f"not closed: {why}", "not closed", is_complete=False)


def possible() -> ConfinementState:
    """Returns the state that this machine can reach; gives nothing up."""
    known, calls = landlock.version(), seccomp.available()
    files = f"Landlock version {known}" if known >= landlock.LEAST else "no Landlock in this kernel"
    about_calls = "seccomp" if calls else "system calls of this machine are not known"
    return ConfinementState(files, about_calls, known >= landlock.LEAST and calls)


_ready: list[Ruleset] = []


def get_ready(packages: tuple[str, ...]) -> None:
    """Prepares `close_files` for these packages, before the other kept paths are known."""
    with contextlib.suppress(OSError):  # `close_files` will report it
        _ready.append(_ruleset(import_places(packages)))


def _ruleset(places: ImportPlaces) -> Ruleset:
    """Returns a ruleset with the files that every process keeps."""
    ruleset = Ruleset()
    with undoing(ruleset.close):
        for path in (*map(Path, _SYSTEM), *places.folders, *places.packages):
            ruleset.allow(path, landlock.READ)
        for path in map(Path, _DEVICES):
            ruleset.allow(path, landlock.READ | Access.WRITE_FILE | Access.IOCTL_DEV)
    return ruleset


def _of(kept: KeptPaths) -> Iterator[tuple[Path, Access]]:
    for path in kept.readable:
        yield path, landlock.READ
    for path in kept.writable:
        yield path, landlock.WRITE
    for path in kept.files:
        yield path, landlock.READ | Access.WRITE_FILE | Access.TRUNCATE
    for path in kept.sockets:
        yield path, landlock.SOCKETS


_FINDERS = {BuiltinImporter, FrozenImporter, PathFinder}  # editable installs may add others


class ImportPlaces(Struct, frozen=True):
    """The places that stay readable: whole `folders`, single `packages` and modules elsewhere.

    `left_out` are the entries of `sys.path` that become unreadable.
    """

    folders: tuple[Path, ...]
    packages: tuple[Path, ...]
    left_out: tuple[str, ...]


@cache
def import_places(later: tuple[str, ...]) -> ImportPlaces:
    """Returns the places that modules are imported from; a forked process inherits the answer.

    Of the packages that the process may import `later`, those that lie outside of the readable
    folders are imported here: other modules that they need may lie beside them.
    """
    home = _home()
    readable = [Path(__file__).resolve().parent.parent]  # an editable install may lie elsewhere
    prefixes = {Path(name).resolve() for name in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    readable += [path for path in prefixes if _holds_only_packages(path, home)]
    left_out = []
    for entry in sys.path:
        path = Path(entry).resolve()
        if _holds_only_packages(path, home):
            readable.append(path)
        else:
            left_out.append(entry)
    if not left_out and _FINDERS.issuperset(sys.meta_path):
        return ImportPlaces(tuple(readable), (), ())  # everything comes from `sys.path`
    known = tuple(f"{path}{os.sep}" for path in {*map(str, readable), *sys.path} - {*left_out})
    for name in later:
        if not _place_of(name).startswith(known):
            with contextlib.suppress(ImportError):  # its later import will report it
                import_module(name)
    elsewhere = {Path(place).resolve() for place in _loaded() if not place.startswith(known)}
    packages = (place for place in elsewhere if not home.is_relative_to(place))
    return ImportPlaces(tuple(readable), tuple(packages), tuple(left_out))


def _home() -> Path:
    try:
        return Path.home().resolve()
    except RuntimeError:
        return Path("/")  # this user has no home


def _holds_only_packages(path: Path, home: Path) -> bool:
    """Returns whether a folder neither holds the user's own files nor contains such a folder."""
    if home.is_relative_to(path):
        return False
    prefixes = (Path(prefix) for prefix in (sys.prefix, sys.base_prefix))
    installed = (prefix / lib for prefix in prefixes for lib in ("lib", sys.platlibdir))
    if any(path.is_relative_to(folder.resolve()) for folder in installed):
        return True
    try:
        return not Path.cwd().resolve().is_relative_to(path)
    except FileNotFoundError:  # the current folder was deleted, so nothing contains it
        return True


def _place_of(name: str) -> str:
    """Returns the file or folder of a package, loaded or not; empty if it is not found."""
    with contextlib.suppress(ImportError, ValueError):
        if (spec := find_spec(name)) is not None:
            return next(iter(spec.submodule_search_locations or ()), spec.origin or "")
    return ""


def _loaded() -> Iterator[str]:
    """Yields the files and folders of the loaded packages."""
    for name, module in [*sys.modules.items()]:
        if "." not in name and isinstance(module, ModuleType):
            yield from map(str, vars(module).get("__path__") or ())
            if "__path__" not in vars(module) and isinstance(vars(module).get("__file__"), str):
                yield vars(module)["__file__"]
