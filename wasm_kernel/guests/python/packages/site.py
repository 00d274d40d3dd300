"""The folder of a session that its guest imports packages from.

The folder is changed as a whole: a new folder is filled beside it, with links to unchanged files,
and replaces it at the end. So a kernel that is killed at any moment leaves the old state or the new
one.

The host's facts about the packages stand in a record of its own, which is written with them. The
host never reads another file in the folder again: those came with the packages, or with an archive,
and may be of any size. The record may have come with an archive, too, so it is checked.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import shutil
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
from installer.records import Hash, RecordEntry
from installer.utils import copyfileobj_with_hashing
from msgspec import Meta, Struct
from packaging.utils import canonicalize_name
from packaging.version import Version

from wasm_kernel.errors import PackageError
from wasm_kernel.guests.python.packages.requirements import (
    NEED_CHARACTERS,
    NEEDS_MOST,
    KnownPackage,
)
from wasm_kernel.guests.python.packages.wheel import Wheel
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.task import QUIET, Cancelled, Task

BYTES_MOST = 1024 * 1024 * 1024
FILES_MOST = 50_000
"""The most files, and `BYTES_MOST` the most bytes, of all packages of a session."""

RECORD, RECORD_BYTES = "wasm-kernel.json", 16 * 1024 * 1024
"""The name of the host's own record of the packages, and its most bytes."""

_SITE, _NEW, _OLD = "site-packages", "new", "old"
_Need = Annotated[str, Meta(max_length=NEED_CHARACTERS)]


class InstalledPackage(Struct, frozen=True):
    """A package in the folder: its canonical name, and the paths of its files below the folder."""

    name: Annotated[str, Meta(max_length=200)]
    version: Annotated[str, Meta(max_length=200)]
    requires: Annotated[tuple[_Need, ...], Meta(max_length=NEEDS_MOST)]
    files: Annotated[tuple[str, ...], Meta(max_length=FILES_MOST)]

    @property
    def known(self) -> KnownPackage:
        """The package as `requirements` has it; raises `ValueError` if it can't be one."""
        if canonicalize_name(self.name, validate=True) != self.name:
            raise ValueError(self.name)
        return KnownPackage(self.name, Version(self.version), self.requires)


class _Record(Struct, frozen=True):
    packages: tuple[InstalledPackage, ...]


class SitePackages:
    """The packages of one session, in a folder. Used by its sandbox's own thread alone.

    The guest sees `site-packages` in it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._site = folder / _SITE

    def installed(self) -> dict[str, KnownPackage]:
        """Returns the packages that are there, by canonical name."""
        self._recover()
        return {each.name: each.known for each in self._record()}

    def change(
        self,
        wheels: Iterable[Wheel] = (),
        *,
        without: Iterable[str] = (),
        asked: Collection[str] = (),
        task: Task = QUIET,
    ) -> None:
        """Puts `wheels` in place; removes older versions of them and the packages `without`.

        `without` and `asked` are canonical names; `asked` are the packages that the user asked for,
        and that others do not merely need. `task` can be cancelled between two files. Raises
        `PackageError` or `Cancelled`, and then changes nothing.
        """
        self._recover()
        coming = list(wheels)
        leaving = {*without, *(wheel.name for wheel in coming)}
        there = self._record()
        gone = {file for each in there if each.name in leaving for file in each.files}
        try:
            new = _Filling(self._folder / _NEW, task)
            for place in self._places():
                if place not in gone and place != RECORD:
                    new.link(self._site / place, place)
            stay = [each for each in there if each.name not in leaving]
            come = [_unpack(wheel, new, asked=wheel.name in asked) for wheel in coming]
            record = msgspec.json.encode(_Record((*stay, *come)))
            if len(record) > RECORD_BYTES:
                raise PackageError("the packages of this session would be too many to be listed.")
            new.write(RECORD, record)
            self._swap()
        finally:
            shutil.rmtree(self._folder / _NEW, ignore_errors=True)

    def _record(self) -> tuple[InstalledPackage, ...]:
        """Returns the host's record; it is empty if there is none, or it is damaged."""
        try:
            with Folder.open(self._site) as site:
                packages = site.read_record(RECORD, _Record, RECORD_BYTES).packages
            return packages if all(each.known for each in packages) else ()
        except (OSError, ValueError):
            return ()

    def _places(self) -> Iterable[str]:
        """Yields the paths of everything below the folder but folders."""
        for here, _, names in os.walk(self._site):
            for name in names:
                yield Path(here, name).relative_to(self._site).as_posix()

    def _swap(self) -> None:
        self._site.rename(self._folder / _OLD)
        (self._folder / _NEW).rename(self._site)
        shutil.rmtree(self._folder / _OLD, ignore_errors=True)

    def _recover(self) -> None:
        """Finishes a change that a killed kernel began, or undoes it."""
        if not self._site.exists() and (self._folder / _OLD).exists():
            (self._folder / _OLD).rename(self._site)
        self._site.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in (_NEW, _OLD):
            shutil.rmtree(self._folder / name, ignore_errors=True)
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()  # a file or a link, from an archive


@dataclass
class _Filling:
    """A new folder that is being filled, and the size of its content."""

    folder: Path
    task: Task
    size: int = 0
    files: int = 0
    written: dict[str, RecordEntry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(mode=0o700)

    def link(self, source: Path, place: str) -> None:
        """Takes over a file; a link or a pipe, which an archive may have brought, is left out."""
        status = source.lstat()
        if not stat.S_ISREG(status.st_mode):
            return
        target = self._room(place, status.st_size)
        try:
            os.link(source, target)
        except OSError:  # a file system without links
            shutil.copyfile(source, target)

    def write(self, place: str, data: bytes) -> None:
        """Writes a new file; of two with one name, the later one stays, as with pip."""
        target = self._room(place, len(data))
        target.unlink(missing_ok=True)  # it may be a link to a file of the old folder
        with target.open("wb") as file:
            digest, size = copyfileobj_with_hashing(io.BytesIO(data), file, "sha256")
        self.written[place] = RecordEntry(place, Hash("sha256", digest), size)

    def _room(self, place: str, size: int) -> Path:
        if self.task.cancelled:
            raise Cancelled
        self.size += size
        self.files += 1
        if self.size > BYTES_MOST or self.files > FILES_MOST:
            raise PackageError(
                f"the packages of this session would come to more than {BYTES_MOST >> 20:,} MiB "
                f"or {FILES_MOST:,} files."
            )
        target = self.folder / place
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise PackageError(f"{place} would have to be a file and a folder.") from None
        if target.is_dir():
            raise PackageError(f"{place} would have to be a file and a folder.")
        return target


def _unpack(wheel: Wheel, new: _Filling, *, asked: bool) -> InstalledPackage:
    """Writes a wheel's files; returns the host's record of the package."""
    new.written = {}
    for place, data in wheel.files():
        if not place.startswith(f"{wheel.dist_info}/RECORD"):
            new.write(place, data)
    new.write(f"{wheel.dist_info}/INSTALLER", b"wasm-kernel\n")
    if asked:
        new.write(f"{wheel.dist_info}/REQUESTED", b"")
    record = f"{wheel.dist_info}/RECORD"
    new.write(record, _record(new.written, record))
    known = wheel.known
    return InstalledPackage(known.name, str(known.version), known.requires, tuple(new.written))


def _record(written: Mapping[str, RecordEntry], own: str) -> bytes:
    """The list of installed files, as `importlib.metadata` reads it."""
    rows = [written[place].to_row() for place in sorted(written)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*rows, RecordEntry(own, None, None).to_row()])
    return text.getvalue().encode()
