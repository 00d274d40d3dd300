"""The cache: a private folder for compiled code and images, which are expensive to make.

A compiled module is native code: a user who can write to it owns the host. So the folder and every
file in it must belong to this user, be writable by no other user, and not be a link; a file must
still have the digest that was noted when it was written. A file that is not trusted is never read:
it is made anew, with a warning. Files appear whole (written aside, then renamed). If two processes
need the same file, one of them makes it.

The same files may be installed beside this package, by distributions of their own
(`compiled_wheels.py` makes them). Those are used in place: a user who can change them can change
the code beside them, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from wasm_kernel.errors import CacheWarning, WasmKernelError, describe
from wasm_kernel.linux.folders import READ, closing_fd, stamp_of
from wasm_kernel.linux.locks import FileLock

ENVIRONMENT = "WASM_KERNEL_CACHE"
INSTALLED = Path(__file__).parents[2] / "wasm_kernel_compiled"
"""The folder that distributions with compiled code install their files into."""
REINSTALL = "Reinstall wasm-kernel."
"""The advice if a file of the package is missing."""

_LOCK_POLL = 0.1
_DAY = 24 * 3600.0
_KEEP_SECONDS = 30 * _DAY  # for unused files
_KEEP_ASIDE_SECONDS = _DAY  # for unfinished files
_OURS = re.compile(  # also with the suffixes of notes, locks and unfinished files
    r"(\.?[0-9a-f]{32}(-[a-z-]+\.cwasm|\.image)|\.?guest-files-[0-9a-f]{16}\.json"
    r"|bundle-[0-9a-f]{32}|\.bundle-\w+)(\..*)?"
)


class CacheError(WasmKernelError, PermissionError):
    """The cache's folder can't be used: others could change it, or nothing can be written there."""


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Raises `CacheError`, which says what to do, for an error of the system in a block."""
    try:
        yield
    except CacheError:
        raise
    except OSError as problem:
        raise CacheError(
            f"wasm-kernel's cache folder can't be written to ({describe(problem)}). Free some "
            f"500 MB there, or name another with {ENVIRONMENT}."
        ) from problem


@cache
def built_folder(name: str) -> Path:
    """Returns a folder of files that were built for this package.

    It lies in the package, or where an editable install has it.
    """
    packaged = Path(__file__).parents[1] / name
    if packaged.is_dir():
        return packaged
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        return Path(str(distribution("wasm-kernel").locate_file(f"wasm_kernel/{name}")))
    except PackageNotFoundError:
        return packaged


def default_folder() -> Path:
    """Returns the place of the cache: `$WASM_KERNEL_CACHE`, or this user's cache folder.

    Raises `CacheError` for a relative path: a notebook's author could have put such a folder beside
    the notebook, with code in it.
    """
    if named := os.environ.get(ENVIRONMENT):
        if not Path(named).is_absolute():
            raise CacheError(
                f"{ENVIRONMENT} must be an absolute path: a folder beside a notebook could hold "
                "compiled code of the notebook's author. Nothing was read there."
            )
        return Path(named)
    users = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return Path(users if users.is_absolute() else Path.home() / ".cache", "wasm-kernel")


def distrust(status: os.stat_result, *, folder: bool) -> str:
    """Returns why a file or folder is not trusted, in words; empty if it is trusted."""
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if not (stat.S_ISDIR(status.st_mode) if folder else stat.S_ISREG(status.st_mode)):
        return "is of another kind than it should be"
    if status.st_uid != os.getuid():
        return "belongs to another user"
    if status.st_mode & 0o022:
        return "can be written by other users"
    if not folder and status.st_nlink != 1:
        return "has a second name"
    return ""


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        import shutil

        shutil.rmtree(path)
    else:
        path.unlink()


class Cache:
    """The cache folder, and files that were installed. Any thread may use it."""

    def __init__(self, folder: Path | None = None, installed_in: Path = INSTALLED) -> None:
        self._named = folder
        self.installed_in = installed_in

    @cached_property
    def folder(self) -> Path:
        """The folder's path. Raises `CacheError` if the environment names a relative one."""
        return self._named or default_folder()

    def path(self, name: str) -> Path:
        """Returns the path of a file of the cache."""
        return self.folder / name

    def installed(self, name: str) -> Path | None:
        """Returns the path of an installed file or folder; None if it is not there."""
        path = self.installed_in / name
        return path if path.exists() else None

    def prepare(self) -> None:
        """Makes the folder. Raises `CacheError` if that fails or other users could change it."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as problem:
            raise CacheError(
                f"wasm-kernel's cache folder can't be made ({describe(problem)}). Name another "
                f"with {ENVIRONMENT}."
            ) from problem
        if why := distrust(os.lstat(self.folder), folder=True):
            raise CacheError(
                f"wasm-kernel's cache folder {why}. Compiled code there would run with your "
                f"rights, so it is not used. Remove it, or name another with {ENVIRONMENT}."
            )

    def trusted(self, name: str) -> Path | None:
        """Returns the path of a file that may be read, or None if there is none.

        An untrusted file is removed, with a `CacheWarning`. The content is checked against the
        digest noted when the file was written, unless identity, size and times are still the noted
        ones.
        """
        path = self.path(name)
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError as problem:  # such as a home folder of another user in $HOME
            raise CacheError(
                f"wasm-kernel's cache folder can't be read ({describe(problem)}). Name another "
                f"with {ENVIRONMENT}."
            ) from problem
        why = distrust(status, folder=False) or self._changed(name, status)
        if not why:
            self._used(self._note_path(name))
            return path
        self.discard(name, why)
        return None

    def _changed(self, name: str, status: os.stat_result) -> str:
        noted = self._note(name)
        if noted is None:
            return "has no record of its making"
        if noted.get("stamp") == [*stamp_of(status)]:
            return ""
        if noted.get("sha256") != _digest(self.path(name)):
            return "is damaged or was replaced"
        with contextlib.suppress(PermissionError):  # a confined worker may only read the cache
            self._write_note(name, str(noted["sha256"]))
        return ""

    def discard(self, name: str, why: str) -> None:
        """Removes a file that must not be used, with a `CacheWarning`."""
        warnings.warn(
            f"wasm-kernel: a cached file {why}; it was not used and is made anew ({name})",
            CacheWarning,
            stacklevel=3,
        )
        self.remove(name)

    def remove(self, name: str) -> None:
        """Removes a file. Processes that have it open can go on using it."""
        for path in (self.path(name), self._note_path(name)):
            with contextlib.suppress(FileNotFoundError):
                _remove(path)

    def _used(self, mark: Path) -> None:
        """Notes, once a day, that a file or folder was used, so that `remove_unused` keeps it."""
        with contextlib.suppress(OSError), closing_fd(os.open(mark, READ)) as opened:
            if time.time() - os.fstat(opened).st_ctime > _DAY:
                os.utime(opened)  # a confined worker may not set times by a path

    def folder_of(self, name: str) -> Path | None:
        """Returns a folder in the cache, or None if it is not there."""
        path = self.path(name)
        if not path.is_dir():
            return None
        self._used(path)
        return path

    def remove_unused(self) -> None:
        """Removes files that were not used for a month, and unfinished ones after a day.

        Other files stay: the folder that the environment names may hold some.
        """
        now = time.time()
        for path in self.folder.iterdir():
            if not _OURS.fullmatch(path.name):
                continue
            with contextlib.suppress(OSError):
                keep = _KEEP_ASIDE_SECONDS if path.name.startswith(".") else _KEEP_SECONDS
                if now - self._last_used(path) > keep:
                    _remove(path)

    def _last_used(self, path: Path) -> float:
        """Returns the time of the last status change, which no program can choose."""
        note = self._note_path(path.name)
        return (note if note.exists() else path).lstat().st_ctime

    def write(self, name: str, fill: Callable[[Path], object]) -> Path:
        """Puts a whole file into the cache: `fill` writes it to the path that it gets.

        Raises `CacheError` if it can't be written.
        """
        with writing():
            return self._write(name, fill)

    def _write(self, name: str, fill: Callable[[Path], object]) -> Path:
        aside = self._new_file(name)
        try:
            fill(aside)
            aside.chmod(0o600)
            with aside.open("rb+") as file:
                os.fsync(file.fileno())
            digest = _digest(aside)
            self._write_note(name, digest, aside)  # first: a file without a note is not trusted
            aside.replace(self.path(name))
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        self._write_note(name, digest)
        return self.path(name)

    def _note_path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _note(self, name: str) -> dict[str, Any] | None:
        path = self._note_path(name)
        try:
            if distrust(os.lstat(path), folder=False):
                return None
            noted = json.loads(path.read_text())
        except (OSError, ValueError):
            return None
        return noted if isinstance(noted, dict) else None

    def _write_note(self, name: str, digest: str, path: Path | None = None) -> None:
        noted = {"sha256": digest, "stamp": stamp_of(os.lstat(path or self.path(name)))}
        aside = self._new_file(name)
        aside.write_text(json.dumps(noted))
        aside.replace(self._note_path(name))

    def _new_file(self, name: str) -> Path:
        from tempfile import mkstemp

        handle, path = mkstemp(prefix=f".{name}.", dir=self.folder)
        os.close(handle)
        return Path(path)

    @contextlib.contextmanager
    def lock(self, name: str, waiting: Callable[[float], None]) -> Iterator[None]:
        """Holds a lock between processes; while it waits, it tells `waiting` the seconds so far.

        Raises `CacheError` if its file can't be made.
        """
        lock, begun = FileLock(self.folder / f"{name}.lock"), time.monotonic()
        with writing():
            while not lock.acquire():
                waiting(time.monotonic() - begun)
                time.sleep(_LOCK_POLL)
        try:
            yield
        finally:
            lock.release()
