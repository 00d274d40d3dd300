"""Parsing a `%pip` line: the words of the line, and the requirements files that it names.

The guest reads the files, as the host must not read files that a cell names; their texts come with
the line. So a file may only ask for packages that the line itself could ask for. The syntax of the
files is that of <https://pip.pypa.io/en/stable/reference/requirements-file-format/>.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from wasm_kernel.errors import PackageError, describe
from wasm_kernel.guests.python.packages.requirements import PACKAGES_MOST, requirement

FileTexts = Sequence[tuple[str, str]]
"""The texts of requirements files, by name."""

_LINE_CHARACTERS = 20_000
_FILE_CHARACTERS = 200_000
_FILES_MOST = 20
_FLAGS = {"-U": "upgrade", "--upgrade": "upgrade", "--pre": "pre"}
_FLAGS |= dict.fromkeys(("-q", "-qq", "--quiet"), "quiet")
_WITHOUT_EFFECT = {"-y", "--yes", "--no-input", "--no-cache-dir", "--user"}
_WITHOUT_EFFECT |= {"--prefer-binary", "--only-binary=:all:"}
_FILE = re.compile(r"(?:-r|--requirement(?=[\s=]|$))[\s=]*(.*)")
_COMMENT = re.compile(r"(?:^|\s)#.*")
_OPTIONS = (
    (("-c", "--constraint"), "constraints are not taken here: pin versions in the line itself"),
    (("-e", "--editable"), "source code is never built here"),
    (("--hash", "--require-hashes"), "hashes are not checked here: leave them out"),
    (
        ("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--no-index"),
        "the pip configuration of the kernel's machine says where packages come from",
    ),
)
_ONLY_NAMES = "only names of packages are taken, with versions and markers, and never source code"


@dataclass(frozen=True)
class PipLine:
    """A parsed `%pip` line: the verb `install` or `uninstall`, and its requirements.

    `requirements` may have markers; `upgrade`, `pre` and `quiet` are pip's options.
    """

    verb: str
    requirements: tuple[Requirement, ...]
    upgrade: bool = False
    pre: bool = False
    quiet: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The canonical names of the packages, each once."""
        return tuple(dict.fromkeys(canonicalize_name(each.name) for each in self.requirements))


def parse(line: str, files: FileTexts = ()) -> PipLine:
    """Parses `line`, the words behind `%pip`; `PackageError` says why it is refused.

    `files` are the requirements files that it names, and the files that those name.
    """
    if len(line) > _LINE_CHARACTERS:
        raise PackageError("this %pip line is too long.")
    try:
        verb, *words = shlex.split(line, comments=True)
    except ValueError:
        raise PackageError("this %pip line has a quotation mark that is not closed.") from None
    if verb not in ("install", "uninstall"):
        raise PackageError(f"the host does %pip install and %pip uninstall, not {verb[:40]!r}.")
    words = [word for word in _without_files(words, files) if word not in _WITHOUT_EFFECT]
    flags = {_FLAGS[word] for word in words if word in _FLAGS}
    wanted = [requirement(word, markers=True) for word in words if word not in _FLAGS]
    for name, text in files[:_FILES_MOST]:
        wanted += islice(_of_file(name, text, flags), PACKAGES_MOST + 1)
    if not (wanted or files):
        raise PackageError(f"%pip {verb} takes names of packages, or -r and a requirements file.")
    if len(wanted) > PACKAGES_MOST:
        raise PackageError(f"these are more than {PACKAGES_MOST} packages.")
    return PipLine(verb, tuple(wanted), **dict.fromkeys(flags, True))


def _without_files(words: Sequence[str], files: FileTexts) -> Iterator[str]:
    """Yields the words that name no requirements file; `files` must hold each named file."""
    names, rest = {name for name, _ in files}, iter(words)
    for word in rest:
        named = _FILE.fullmatch(word)
        if named is None:
            yield word
        elif (named[1] or next(rest, "")) not in names:
            raise PackageError("behind -r stands the name of a requirements file.")


def _of_file(name: str, text: str, flags: set[str]) -> Iterator[Requirement]:
    """Yields the requirements of a file, and adds its flags; `PackageError` names the line."""
    if len(text) > _FILE_CHARACTERS:
        raise PackageError(f"{name} has more than {_FILE_CHARACTERS:,} characters.")
    for number, line in _lines(text):
        if line in _FLAGS:
            flags.add(_FLAGS[line])
        elif line not in _WITHOUT_EFFECT and not _FILE.fullmatch(line):  # read apart
            try:
                yield _required(line)
            except PackageError as problem:
                raise PackageError(f"{name}, line {number}: {problem}") from None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields the lines that are not empty, without comments, each with the number of its start."""
    joined, began = "", 0
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        began = began if joined else number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            joined += f"{line[:-1]} "
            continue
        said = _COMMENT.sub("", joined + line).strip()
        joined = ""
        if said:
            yield began, said
    if joined.strip():
        yield began, joined.strip()


def _required(line: str) -> Requirement:
    for option in (word.partition("=")[0] for word in line.split() if word.startswith("-")):
        known = (why for options, why in _OPTIONS if option in options)
        raise PackageError(f"{next(known, f'{option[:40]} is not taken here')}.")
    try:
        return requirement(line, markers=True)
    except PackageError:
        raise PackageError(f"{_ONLY_NAMES}, not {line[:80]!r}.") from None


def words_of(path: Path) -> tuple[str, ...]:
    """Returns the requirements of a file on this machine, as words of a `%pip install` line.

    Front ends that install before a notebook runs call it. Files that it names are read as well.
    Raises `PackageError`, which names the file and the line.
    """
    files: dict[str, str] = {}
    waiting = [path]
    while waiting:
        file = waiting.pop(0)
        shown = os.path.relpath(file, path.parent)
        if shown in files:
            continue
        try:
            files[shown] = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise PackageError(f"{shown} can't be read: {describe(problem)}.") from None
        named = (_FILE.fullmatch(line) for _, line in _lines(files[shown]))
        waiting += [file.parent / each[1] for each in named if each]
    asked = parse(f"install -r {shlex.quote(path.name)}", list(files.items()))
    return (*(["--pre"] if asked.pre else []), *map(str, asked.requirements))
