"""What a `%pip` line asks for. Pure, and strict: the words come from a cell.

Only names with versions are taken. A path, a URL, a requirements file or an option could have the
host's pip read files or reach machines that the cell must not, so none of them is.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from wasm_kernel.errors import PackageError

_LINE_CHARACTERS = 2_000
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
class Command:
    """A `%pip` line that was understood: `install` or `uninstall`, and of what.

    `names` are canonical, for `uninstall`; `upgrade` and `pre` are as pip has them.
    """

    verb: str
    requirements: tuple[Requirement, ...] = ()
    names: tuple[str, ...] = ()
    upgrade: bool = False
    pre: bool = False


def parse(line: str) -> Command:
    """What `line`, the words behind `%pip`, asks for.

    Raises:
        PackageError: it can't be done; the text says why.
    """
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
        return Command(verb, names=tuple(canonicalize_name(each.name) for each in wanted))
    return Command(verb, wanted, upgrade="upgrade" in flags, pre="pre" in flags)


def requirement(word: str) -> Requirement:
    """The requirement that `word` is: a name, extras, versions, and nothing else.

    Raises:
        PackageError: it is none, or could be read as a file's name.
    """
    try:
        found = Requirement(word)
    except InvalidRequirement:
        raise PackageError(_REFUSED.format(word=word[:80])) from None
    plain = found.url is None and found.marker is None and is_name(found.name)
    if not plain or not all(is_name(extra) for extra in found.extras):
        raise PackageError(_REFUSED.format(word=word[:80]))
    return found


def is_name(text: str) -> bool:
    """Whether pip would take `text` as a package's name, and as nothing else."""
    return bool(_NAME.fullmatch(text)) and not text.lower().endswith(_ARCHIVES)
