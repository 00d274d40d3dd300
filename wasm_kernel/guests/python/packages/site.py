"""The folder of a session that its guest imports packages from.

It is changed as a whole: a new folder is filled beside it, unchanged files linked, and takes its
place at the end. So a kernel that is killed at any moment leaves the old state or the new one.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

from installer.records import Hash, RecordEntry
from installer.utils import copyfileobj_with_hashing
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from wasm_kernel.errors import PackageError
from wasm_kernel.guests.python.packages.requirements import KnownPackage
from wasm_kernel.guests.python.packages.wheel import Wheel

BYTES_MOST = 1024 * 1024 * 1024
FILES_MOST = 50_000
"""The most that all packages of a session may come to."""

_SITE, _NEW, _OLD = "site-packages", "new", "old"


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
        return {known.name: known for known in map(_known, self._distributions()) if known}

    def change(
        self,
        wheels: Iterable[Wheel] = (),
        *,
        without: Iterable[str] = (),
        asked: Iterable[str] = (),
    ) -> None:
        """Puts `wheels` in place, older versions of them and what `without` names out of it.

        `without` and `asked` are canonical names; `asked` is what the user asked for, and others do
        not merely need. After `PackageError` nothing was changed.
        """
        self._recover()
        coming = list(wheels)
        leaving = {*without, *(wheel.name for wheel in coming)}
        new = _Filling(self._folder / _NEW)
        try:
            for place in self._kept(leaving):
                new.link(self._site / place, place)
            for wheel in coming:
                _unpack(wheel, new, asked=wheel.name in set(asked))
            self._swap()
        finally:
            shutil.rmtree(self._folder / _NEW, ignore_errors=True)

    def _distributions(self) -> Iterable[Distribution]:
        # not `distributions()`, which remembers a folder by its time, in steps of milliseconds
        return map(PathDistribution, sorted(self._site.glob("*.dist-info")))

    def _kept(self, leaving: set[str]) -> list[str]:
        gone: set[str] = set()
        for each in self._distributions():
            if canonicalize_name(each.metadata["Name"] or "") in leaving:
                gone.update(str(path) for path in each.files or ())
        found = (
            Path(here, name).relative_to(self._site).as_posix()
            for here, _, names in os.walk(self._site)
            for name in names
        )
        return [place for place in found if place not in gone]

    def _swap(self) -> None:
        self._site.rename(self._folder / _OLD)
        (self._folder / _NEW).rename(self._site)
        shutil.rmtree(self._folder / _OLD, ignore_errors=True)

    def _recover(self) -> None:
        """Finish what a killed kernel began, or take it back."""
        if not self._site.exists() and (self._folder / _OLD).exists():
            (self._folder / _OLD).rename(self._site)
        self._site.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in (_NEW, _OLD):
            shutil.rmtree(self._folder / name, ignore_errors=True)


@dataclass
class _Filling:
    """A new folder that is being filled, and how much is in it."""

    folder: Path
    size: int = 0
    files: int = 0
    written: dict[str, RecordEntry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(mode=0o700)

    def link(self, source: Path, place: str) -> None:
        target = self._room(place, source.stat().st_size)
        try:
            os.link(source, target)
        except OSError:  # a file system without links
            shutil.copyfile(source, target)

    def write(self, place: str, data: bytes) -> None:
        """A new file; of two with one name, the later one stays, as with pip."""
        target = self._room(place, len(data))
        target.unlink(missing_ok=True)  # it may be a link to a file of the old folder
        with target.open("wb") as file:
            digest, size = copyfileobj_with_hashing(io.BytesIO(data), file, "sha256")
        self.written[place] = RecordEntry(place, Hash("sha256", digest), size)

    def _room(self, place: str, size: int) -> Path:
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


def _unpack(wheel: Wheel, new: _Filling, *, asked: bool) -> None:
    new.written = {}
    for place, data in wheel.files():
        if not place.startswith(f"{wheel.dist_info}/RECORD"):
            new.write(place, data)
    new.write(f"{wheel.dist_info}/INSTALLER", b"wasm-kernel\n")
    if asked:
        new.write(f"{wheel.dist_info}/REQUESTED", b"")
    record = f"{wheel.dist_info}/RECORD"
    new.write(record, _record(new.written, record))


def _record(written: Mapping[str, RecordEntry], own: str) -> bytes:
    """The list of what was installed, as `importlib.metadata` reads it."""
    rows = [written[place].to_row() for place in sorted(written)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*rows, RecordEntry(own, None, None).to_row()])
    return text.getvalue().encode()


def _known(found: Distribution) -> KnownPackage | None:
    try:
        name = canonicalize_name(found.metadata["Name"] or "")
        return KnownPackage(name, Version(found.version), tuple(found.requires or ()))
    except (InvalidVersion, TypeError, KeyError):
        return None
