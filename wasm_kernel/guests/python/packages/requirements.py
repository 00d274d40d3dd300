"""The requirements of a `%pip` line, and the packages that they come to. Pure: no file, no network.

The words come from a cell, so only names with versions are taken. A path, a URL, a requirements
file or an option could have the host's pip read files or reach machines that the cell must not, so
they are refused.

Requirements are read for the guest's Python and platform, not the host's, which pip's own resolver
would do. Of each package the newest version that all who want it accept is taken; there is no going
back to an older version of one package for the sake of another.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from wasm_kernel.errors import PackageError

PACKAGES_MOST = 100
_LINE_CHARACTERS = 2_000
_WORD_CHARACTERS = 2_000
_VERSION = re.compile(r"[A-Za-z0-9.!+*_-]+")
_MOST = 50
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_ARCHIVES = (".whl", ".zip", ".tar", ".gz", ".bz2", ".xz", ".tgz", ".txz", ".tbz", ".lzma", ".egg")
_FLAGS = {"-U": "upgrade", "--upgrade": "upgrade", "--pre": "pre"}
_WITHOUT_EFFECT = {"-q", "--quiet", "-qq", "-y", "--yes", "--no-input", "--no-cache-dir", "--user"}
_REFUSED = (
    "%pip takes names of packages, with versions where needed, such as: %pip install "
    "humanize 'rich>=13'. {word!r} was not used: a cell can't have the host read files, reach "
    "addresses or take other options. The host's own pip configuration says where packages "
    "come from."
)


@dataclass(frozen=True)
class PipLine:
    """A `%pip` line that was understood: `install` or `uninstall`, and of what.

    `names` are canonical, for `uninstall`; `upgrade` and `pre` are as pip has them.
    """

    verb: str
    requirements: tuple[Requirement, ...] = ()
    names: tuple[str, ...] = ()
    upgrade: bool = False
    pre: bool = False


def parse(line: str) -> PipLine:
    """Reads what `line`, the words behind `%pip`, asks for; `PackageError` says why not."""
    if len(line) > _LINE_CHARACTERS:
        raise PackageError("this %pip line is too long.")
    try:
        verb, *words = shlex.split(line, comments=True)
    except ValueError:
        raise PackageError(_REFUSED.format(word=line[:80])) from None
    if verb not in ("install", "uninstall"):
        raise PackageError(f"the host does %pip install and %pip uninstall, not {verb[:40]!r}.")
    flags = {_FLAGS[word] for word in words if word in _FLAGS}
    words = [word for word in words if word not in _FLAGS and word not in _WITHOUT_EFFECT]
    if not 0 < len(words) <= _MOST:
        raise PackageError(f"%pip {verb} takes from 1 to {_MOST} names of packages.")
    wanted = tuple(requirement(word) for word in words)
    if verb == "uninstall":
        return PipLine(verb, names=tuple(canonicalize_name(each.name) for each in wanted))
    return PipLine(verb, wanted, upgrade="upgrade" in flags, pre="pre" in flags)


def requirement(word: str) -> Requirement:
    """Returns the requirement that `word` is: a name, extras, versions, and nothing else.

    Raises `PackageError` if it is not one, or could be read as a file's name.
    """
    try:
        found = Requirement(word[: _WORD_CHARACTERS + 1])
    except (InvalidRequirement, RecursionError):
        raise PackageError(_REFUSED.format(word=word[:80])) from None
    plain = found.url is None and found.marker is None and is_name(found.name)
    plain = plain and has_plain_versions(found) and len(word) <= _WORD_CHARACTERS
    if not plain or not all(is_name(extra) for extra in found.extras):
        raise PackageError(_REFUSED.format(word=word[:80]))
    return found


def has_plain_versions(need: Requirement) -> bool:
    """Returns whether its versions can't be read as a path.

    `===` takes any text, and pip takes a word with slashes for a folder that it builds: code of
    the folder's author would run on the host.
    """
    versions = need.specifier
    return all(each.operator != "===" and _VERSION.fullmatch(each.version) for each in versions)


def is_name(text: str) -> bool:
    """Returns whether pip would take `text` as a package's name, and as nothing else."""
    return bool(_NAME.fullmatch(text)) and not text.lower().endswith(_ARCHIVES)


@dataclass(frozen=True)
class KnownPackage:
    """A package whose version is settled, and what it needs; `builtin` if the guest has it."""

    name: str
    version: Version
    requires: tuple[str, ...] = ()
    builtin: bool = False


@dataclass
class NeededPackage:
    """The demands on one package, by its canonical name, and those who make them."""

    name: str
    versions: SpecifierSet = field(default_factory=SpecifierSet)
    extras: set[str] = field(default_factory=set)
    by: list[str] = field(default_factory=list)

    def accepts(self, version: Version) -> bool:
        """Returns whether all who want it take this version, which may be a pre-release."""
        return self.versions.contains(version, prereleases=True)

    def __str__(self) -> str:
        return f"{self.name}{self.versions}"


def guest_environment(python_version: str) -> dict[str, str]:
    """Returns what markers are evaluated with: the guest, whatever machine this is."""
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
    roots: Iterable[Requirement], known: Mapping[str, KnownPackage], environment: Mapping[str, str]
) -> dict[str, NeededPackage]:
    """Returns everything that `roots` come to, as far as `known` packages tell what they need.

    Raises `PackageError` if a built-in package of another version is needed, a requirement can't be
    read or points to an address, or there are too many.
    """
    found: dict[str, NeededPackage] = {}
    waiting = [(root, "you") for root in roots]
    seen: set[tuple[str, str]] = set()
    while waiting:
        need, by = waiting.pop()
        name = canonicalize_name(need.name)
        want = found.setdefault(name, NeededPackage(name))
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
    have: KnownPackage, extras: set[str], environment: Mapping[str, str], seen: set[tuple[str, str]]
) -> list[tuple[Requirement, str]]:
    """Returns what a package needs in the guest, for each extra that was not looked at yet."""
    fresh = [extra for extra in sorted(extras) if (have.name, extra) not in seen]
    seen.update((have.name, extra) for extra in fresh)
    needs: list[tuple[Requirement, str]] = []
    for text in have.requires if fresh else ():
        try:
            need = Requirement(text)
        except (InvalidRequirement, RecursionError):
            raise PackageError(f"{have.name} has a requirement that can't be read.") from None
        marker = need.marker
        if marker and not any(marker.evaluate({**environment, "extra": e}) for e in fresh):
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
    """Returns what is to be fetched next; nothing if everything is met.

    Raises `PackageError` if what was fetched does not meet what others want of it.
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


def _clash(want: NeededPackage, have: KnownPackage) -> str:
    return (
        f"{have.name} {have.version} is built in and can't be replaced, and another version is "
        f"needed: {'; '.join(sorted(set(want.by)))}."
    )
