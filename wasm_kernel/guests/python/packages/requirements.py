"""Requirements, and the packages that they need. Pure: no file, no network.

Requirements come from a cell or from a package, so only names with versions are accepted. A path or
a URL could make the host's pip read files or reach machines that the cell must not, so it is
refused.

Requirements are read for the guest's Python and platform; pip's own resolver would use the host's.
Each package gets the newest version that all requirements on it accept; there is no going back to
an older version of one package for the sake of another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from wasm_kernel.errors import PackageError
from wasm_kernel.linux.task import QUIET, Cancelled, Task

PACKAGES_MOST = 100
NEEDS_MOST, NEED_CHARACTERS = 1_000, 2_000
"""The most requirements of one package, and how long each may be."""
_VERSIONS_MOST = 2_000  # conditions on one package
_VERSION = re.compile(r"[A-Za-z0-9.!+*_-]+")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_ARCHIVES = (".whl", ".zip", ".tar", ".gz", ".bz2", ".xz", ".tgz", ".txz", ".tbz", ".lzma", ".egg")
_REFUSED = (
    "%pip takes names of packages, with versions where needed, such as: %pip install "
    "humanize 'rich>=13'. {word!r} was not used: a cell can't have the host read files, reach "
    "addresses or take other options. The host's own pip configuration says where packages "
    "come from."
)
_LEAVE_OUT = "Leave the package or its version out to use the built-in one."


def requirement(word: str, *, markers: bool = False) -> Requirement:
    """Parses `word` as a requirement: a name, extras, versions, and nothing else.

    With `markers`, it may have a marker as well. Raises `PackageError` if `word` is not a
    requirement, or could be read as a file's name.
    """
    try:
        found = Requirement(word[: NEED_CHARACTERS + 1])
    except (InvalidRequirement, RecursionError):
        raise PackageError(_REFUSED.format(word=word[:80])) from None
    plain = found.url is None and (markers or found.marker is None) and is_name(found.name)
    plain = plain and has_plain_versions(found) and len(word) <= NEED_CHARACTERS
    if not plain or not all(is_name(extra) for extra in found.extras):
        raise PackageError(_REFUSED.format(word=word[:80]))
    return found


def has_plain_versions(need: Requirement) -> bool:
    """Returns whether a requirement's versions can't be read as a path.

    `===` takes any text, and pip would build a folder, by code that runs on the host.
    """
    versions = need.specifier
    return all(each.operator != "===" and _VERSION.fullmatch(each.version) for each in versions)


def is_name(text: str) -> bool:
    """Returns whether pip would take `text` as a package's name, and as nothing else."""
    return bool(_NAME.fullmatch(text)) and not text.lower().endswith(_ARCHIVES)


@dataclass(frozen=True)
class KnownPackage:
    """A package whose version is settled, and its needs; `builtin` if the guest has it."""

    name: str
    version: Version
    requires: tuple[str, ...] = ()
    builtin: bool = False


@dataclass
class NeededPackage:
    """The demands on one package, by its canonical name, and the packages that make them."""

    name: str
    versions: SpecifierSet = field(default_factory=SpecifierSet)
    extras: set[str] = field(default_factory=set)
    by: list[str] = field(default_factory=list)

    def accepts(self, version: Version) -> bool:
        """Returns whether this version, which may be a pre-release, meets all demands."""
        return self.versions.contains(version, prereleases=True)

    def __str__(self) -> str:
        return f"{self.name}{self.versions}"


def guest_environment(python_version: str) -> dict[str, str]:
    """Returns the values for markers: those of the guest, whatever machine this is."""
    return {
        "implementation_name": "cpython",
        "implementation_version": python_version,
        "os_name": "posix",
        "platform_machine": "wasm32",
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "wasi",
        "platform_version": "",
        "python_full_version": python_version,
        "python_version": ".".join(python_version.split(".")[:2]),
        "sys_platform": "wasi",
    }


def wanted(
    roots: Iterable[Requirement],
    known: Mapping[str, KnownPackage],
    environment: Mapping[str, str],
    task: Task = QUIET,
) -> dict[str, NeededPackage]:
    """Returns all packages that `roots` need, as far as the needs of `known` packages tell.

    Raises `PackageError` if built-in packages of another version are needed, a requirement can't be
    read or points to an address, or there are too many. The needs of packages are hostile text and
    may take long to read; `Cancelled` is raised if the task was cancelled.
    """
    found: dict[str, NeededPackage] = {}
    waiting = [(root, "you") for root in roots]
    seen: set[tuple[str, str]] = set()
    while waiting:
        if task.cancelled:
            raise Cancelled
        need, by = waiting.pop()
        name = canonicalize_name(need.name)
        want = found.setdefault(name, NeededPackage(name))
        want.versions &= need.specifier
        want.extras |= need.extras
        want.by.append(f"{by} ({need.specifier or 'any version'})")
        have = known.get(name)
        if len(found) > PACKAGES_MOST or len(want.versions) > _VERSIONS_MOST:
            raise PackageError(f"this needs more than {PACKAGES_MOST} packages.")
        if have is not None and not have.builtin and want.accepts(have.version):
            waiting += _needs(have, {"", *need.extras}, environment, seen)
    clashes = [
        f"{have.name} {have.version} is built in and can't be replaced, and another version is "
        f"needed: {', '.join(sorted(set(want.by)))}"
        for name, want in sorted(found.items())
        if (have := known.get(name)) and have.builtin and not want.accepts(have.version)
    ]
    if clashes:
        raise PackageError(f"{'; '.join(clashes)}. {_LEAVE_OUT}")
    return found


def _needs(
    have: KnownPackage, extras: set[str], environment: Mapping[str, str], seen: set[tuple[str, str]]
) -> list[tuple[Requirement, str]]:
    """Returns the needs of a package in the guest, for each extra that is not in `seen` yet."""
    fresh = [extra for extra in sorted(extras) if (have.name, extra) not in seen]
    seen.update((have.name, extra) for extra in fresh)
    needs: list[tuple[Requirement, str]] = []
    for text in have.requires if fresh else ():
        try:
            need = Requirement(text)
        except (InvalidRequirement, RecursionError):
            raise PackageError(f"{have.name} has a requirement that can't be read.") from None
        if not any(applies(need, {**environment, "extra": extra}) for extra in fresh):
            continue
        if need.url is not None or not is_name(need.name) or not has_plain_versions(need):
            raise PackageError(
                f"{have.name} needs {need.name[:80]} from an address of its own; only packages of "
                "the configured index are fetched."
            )
        needs.append((need, f"{have.name} {have.version}"))
    return needs


def missing(
    wants: Mapping[str, NeededPackage], known: Mapping[str, KnownPackage], tried: set[str]
) -> list[NeededPackage]:
    """Returns the packages to fetch next; empty if all demands are met.

    Raises `PackageError` if a fetched package does not meet the demands of the others.
    """
    open_ = [
        want
        for name, want in sorted(wants.items())
        if name not in known or not want.accepts(known[name].version)
    ]
    for want in open_:
        if str(want) in tried:
            demands = "; ".join(sorted(set(want.by)))
            raise PackageError(f"no version of {want.name} fits all demands: {demands}.")
    return open_


def applies(need: Requirement, environment: Mapping[str, str]) -> bool:
    """Returns whether a requirement applies when its marker is evaluated with these values.

    Raises `PackageError` if the marker compares values that can't be compared.
    """
    try:
        return need.marker is None or need.marker.evaluate(dict(environment))
    except ValueError:
        raise PackageError(f"the marker of {need.name} can't be read.") from None
