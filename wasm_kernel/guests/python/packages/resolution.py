"""Which packages a request comes to. Pure: it is told what is known, and says what is missing.

Requirements are read for the guest's Python and platform, not the host's, which pip's own resolver
would do. Of each package the newest version that all who want it accept is taken; there is no going
back to an older version of one package for the sake of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from wasm_kernel.errors import PackageError
from wasm_kernel.guests.python.packages.command import is_name

PACKAGES_MOST = 100


@dataclass(frozen=True)
class Known:
    """A package whose version is settled, and what it needs; `builtin` where the guest has it."""

    name: str
    version: Version
    requires: tuple[str, ...] = ()
    builtin: bool = False


@dataclass
class Wanted:
    """What is asked of one package, by its canonical name, and by whom."""

    name: str
    versions: SpecifierSet = field(default_factory=SpecifierSet)
    extras: set[str] = field(default_factory=set)
    by: list[str] = field(default_factory=list)

    def accepts(self, version: Version) -> bool:
        """Whether all who want it take this version; a pre-release that was chosen is none less."""
        return self.versions.contains(version, prereleases=True)

    def __str__(self) -> str:
        return f"{self.name}{self.versions}"


def guest_environment(python_version: str) -> dict[str, str]:
    """What markers are evaluated with: the guest, whatever machine this is."""
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
    roots: Iterable[Requirement], known: Mapping[str, Known], environment: Mapping[str, str]
) -> dict[str, Wanted]:
    """Everything that `roots` come to, as far as `known` packages tell what they need.

    Raises:
        PackageError: it can't be met: a built-in package of another version is needed, a
            requirement can't be read or points to an address, or there are too many.
    """
    found: dict[str, Wanted] = {}
    waiting = [(root, "you") for root in roots]
    seen: set[tuple[str, str]] = set()
    while waiting:
        need, by = waiting.pop()
        name = canonicalize_name(need.name)
        want = found.setdefault(name, Wanted(name))
        want.versions &= need.specifier
        want.extras |= need.extras
        want.by.append(f"{by} ({need.specifier or 'any version'})")
        have = known.get(name)
        if len(found) > PACKAGES_MOST:
            raise PackageError(f"this needs more than {PACKAGES_MOST} packages.")
        if have is None:
            continue
        if have.builtin and not want.accepts(have.version):
            raise PackageError(_clash(want, have))
        if want.accepts(have.version) and not have.builtin:
            waiting += _needs(have, {"", *need.extras}, environment, seen)
    return found


def _needs(
    have: Known, extras: set[str], environment: Mapping[str, str], seen: set[tuple[str, str]]
) -> list[tuple[Requirement, str]]:
    """What a package needs in the guest, for each extra that was not looked at yet."""
    fresh = [extra for extra in sorted(extras) if (have.name, extra) not in seen]
    seen.update((have.name, extra) for extra in fresh)
    needs: list[tuple[Requirement, str]] = []
    for text in have.requires if fresh else ():
        try:
            need = Requirement(text)
        except InvalidRequirement:
            raise PackageError(f"{have.name} has a requirement that can't be read.") from None
        marker = need.marker
        if marker and not any(marker.evaluate({**environment, "extra": e}) for e in fresh):
            continue
        if need.url is not None or not is_name(need.name):
            raise PackageError(
                f"{have.name} needs {need.name[:80]} from an address of its own; only packages of "
                "the configured index are fetched."
            )
        needs.append((need, f"{have.name} {have.version}"))
    return needs


def missing(
    wants: Mapping[str, Wanted], known: Mapping[str, Known], tried: set[str]
) -> list[Wanted]:
    """What is to be fetched next; nothing where everything is met.

    Raises:
        PackageError: what was fetched already does not meet what others want of it.
    """
    open_ = [
        want
        for name, want in sorted(wants.items())
        if name not in known or not want.accepts(known[name].version)
    ]
    for want in open_:
        if str(want) in tried:
            raise PackageError(
                f"no version of {want.name} is right for everybody: "
                f"{'; '.join(sorted(set(want.by)))}."
            )
    return open_


def _clash(want: Wanted, have: Known) -> str:
    return (
        f"{have.name} {have.version} is built in and can't be replaced, and another version is "
        f"needed: {'; '.join(sorted(set(want.by)))}."
    )
