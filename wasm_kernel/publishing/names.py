"""The names that a published file may have beside a notebook, and the limits on all of them.

A cell chooses them, and tools act on what they find in a folder: by a file's suffix, but also by
its whole name (`package.json`, `CMakeLists.txt`, `test_x.txt`, whose examples a test runner runs)
or by its first letter, where a shell puts it into a command (`-rf.csv`). So a name is one of data
by its suffix, holds no sign that a shell or a page reads, and is not known to be read by tools.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from msgspec import Struct

from wasm_kernel.errors import WasmKernelError

_BYTECODE = "__pycache__"
_NAME_BYTES, _PATH_BYTES, _FOLDERS_MOST = 200, 1000, 20
_SIGNS = frozenset(" ._-+(),@")
# Marks that nobody sees (Unicode's Default_Ignorable_Code_Point among Mn and letters).
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_SUFFIX = re.compile(r"(?:\.[a-z0-9_]{1,12}){1,2}")
_READ_BY_TOOLS = (
    r"test.*\.txt|.*(?:requirements|constraints).*\.txt|cmakelists\.txt"
    r"|(?:entry_points|top_level|sources|runtime|apt|packages)\.txt"
    r"|meson.*\.txt|.*(?:config|package|settings|manifest|workspace|kernel|compile_commands).*\.json"
    r"|(?:jupyter|tasks|launch|composer|bower|deno|turbo|nx|lerna|angular|project|now).*\.json"
    r"|(?:app|cdk|devcontainer|docker|ecosystem|firebase|nodemon|rush|serverless|vercel|wrangler)"
    r"[\w.-]*\.json"
    r"|conf\.json|cmake\w*presets\.json|(?:dub|global|mcp|tslint|vcpkg)\.json|conanfile\.txt"
    r"|(?:.*[-_.])?reqs?(?:[-_.].*)?\.txt"
)
_FOLDERS_OF_TOOLS = (
    r".*\.(?:dist-info|egg-info|egg)|node_modules|__pycache__|site-packages"
    r"|(?:.*[-_.])?(?:requirements|constraints|reqs)|.*\.d|conda-meta"
)
_PROGRAMS = """
py pyw pyc pyo pyi pyx pyz pth so dll dylib exe com bat cmd ps1 vbs scr lnk msi sh bash zsh fish csh
ksh js mjs cjs ts jsx tsx html htm xhtml xht svg ipynb cfg toml ini conf env yaml yml mk mak cmake
gradle xml jar class rb pl php lua r rmd qmd jl tcl awk sed sql desktop service xlsm xlsb xls docm
tex sty pkl pickle joblib rds rdata whl egg zip tar
"""
_RUN = frozenset(_PROGRAMS.split())


class PublishError(WasmKernelError):
    """A file can't be published; the text says why, to the cell's author."""


class PublishLimits(Struct, frozen=True):
    """The most bytes and files that the published files in one folder may be."""

    bytes: int
    files: int


class SuffixError(WasmKernelError):
    """A suffix can't be one of data; the text says why, as the end of a sentence."""


class PublishableNames:
    """Decides on names by a list of suffixes, such as `.csv` or `.csv.gz`. Immutable.

    Raises `SuffixError` if one is no suffix, or that of files which are run.
    """

    def __init__(self, suffixes: Sequence[str]) -> None:
        for suffix in suffixes:
            if not _SUFFIX.fullmatch(suffix):
                raise SuffixError(f"holds {suffix!r}, which is not a suffix such as .csv")
            if not _RUN.isdisjoint(suffix[1:].split(".")):
                raise SuffixError(f"can't hold {suffix}: programs run such files, or obey them")
        self._suffixes = tuple(suffixes)

    @property
    def none(self) -> bool:
        """True if there is no suffix, so that no name can be one."""
        return not self._suffixes

    def refusal(self, path: str) -> str:
        """Returns why a stranger's path can't be one beside the notebook; empty if it can."""
        if is_too_long(path):
            return "its path is too long."
        *above, name = path.split("/")
        if not all(map(_is_plain, (*above, name))):
            return (
                "in its path are signs that a shell or a page could read. Name it with letters, "
                "digits, blanks and . _ - + ( ) , @, a letter, digit or _ first."
            )
        plain = name.casefold()
        if not plain.endswith(self._suffixes) or not self._suffixes:
            return (
                "only files of data are copied there, such as .csv, .parquet, .txt or .png "
                "(WasmKernel.publish_suffixes lists them)."
            )
        tools = any(re.fullmatch(_FOLDERS_OF_TOOLS, each.casefold()) for each in above)
        if tools or re.fullmatch(_READ_BY_TOOLS, plain):
            return "tools act on files of this name. Give it another one."
        return ""


def is_too_long(path: str) -> bool:
    """Returns whether a path is too long, or leads through too many folders, to be looked for."""
    return len(path.encode(errors="replace")) > _PATH_BYTES or path.count("/") > _FOLDERS_MOST


def is_public(path: str) -> bool:
    """Returns whether people would look for a file: no hidden one, and no bytecode."""
    if any(part.startswith(".") or part == _BYTECODE for part in path.split("/")):
        return False
    return path == path.encode(errors="ignore").decode()  # others can't be asked for


def is_folder_name(name: str) -> bool:
    """Returns whether a name may be that of a folder that files are put into."""
    return _is_plain(name) and not re.fullmatch(_FOLDERS_OF_TOOLS, name.casefold())


def _is_plain(name: str) -> bool:
    if not name or len(name.encode(errors="replace")) > _NAME_BYTES:
        return False
    if not (name[0].isalnum() or name[0] == "_") or name[-1] in " .":
        return False
    return not _UNSEEN.search(name) and all(
        sign.isalnum() or sign in _SIGNS or unicodedata.category(sign) in ("Mn", "Mc")
        for sign in name
    )
