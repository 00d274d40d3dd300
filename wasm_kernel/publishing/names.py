"""The names that a published file may have beside a notebook.

A cell chooses the names, and programs act on files by name: by a file's suffix, by its whole name
(`lefthook.json`, `requirements.txt`), or by its first letter if a shell puts the name into a
command (`-rf.csv`). So a name must have a suffix of data, and no sign that a shell or a page reads.

The whole names that some tool acts on can't be listed. But they all end in `.json` or `.txt`, and a
tool looks for them in the folder that it is started in, or in one of its own. So files with these
two suffixes lie in folders for results alone, where no tool is started. The few names that tools
look for in all folders below are refused there, too. Folders with a suffix (`x.egg-info`, `x.app`)
are refused as a kind, since systems and tools take them for programs or parts of programs.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from wasm_kernel.errors import PolicyError, WasmKernelError

_SETTING = "WasmKernel.publish_suffixes"
_BYTECODE = "__pycache__"
_NAME_BYTES, _PATH_BYTES, _FOLDERS_MOST = 200, 1000, 20
_SIGNS = frozenset(" ._-+(),@")
# Marks that are invisible (Unicode's Default_Ignorable_Code_Point among Mn and letters).
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_SUFFIX = re.compile(r"(?:\.[a-z0-9_]{1,12}){1,2}")
_KNOWN_BY_NAME = (".json", ".txt")
_FOLDER_FOR_RESULTS = re.compile(r"results?|outputs?|.*\.files")
_FOLDER_WITH_SUFFIX = re.compile(r".*\.(?!files$)[^\W\d][^.]*")
_SOUGHT_BELOW = re.compile(r"test.*\.txt|(?:package|project|function)\.json|[jt]sconfig.*\.json")
"""Names that pytest, Node's package managers and build tools, and Azure's tools look for."""
_PROGRAMS = """
py pyw pyc pyo pyi pyx pyz pth so dll dylib exe com bat cmd ps1 vbs scr lnk msi sh bash zsh fish csh
ksh js mjs cjs ts jsx tsx html htm xhtml xht svg ipynb cfg toml ini conf env yaml yml mk mak cmake
gradle xml jar class rb pl php lua r rmd qmd jl tcl awk sed sql desktop service xlsm xlsb xls docm
tex sty pkl pickle joblib rds rdata whl egg zip tar
"""
_RUN = frozenset(_PROGRAMS.split())


class PublishError(WasmKernelError):
    """A file can't be published; the text says why, to the cell's author."""


class PublishableNames:
    """Decides on names by a list of suffixes, such as `.csv` or `.csv.gz`. Immutable.

    Raises `PolicyError` if one is not a suffix, or belongs to files that are run.
    """

    def __init__(self, suffixes: Sequence[str]) -> None:
        for suffix in suffixes:
            if not _SUFFIX.fullmatch(suffix):
                raise PolicyError(_SETTING, f"holds {suffix!r}, which is not a suffix such as .csv")
            if not _RUN.isdisjoint(suffix[1:].split(".")):
                rule = f"can't hold {suffix}: programs run such files, or obey them"
                raise PolicyError(_SETTING, rule)
        self.suffixes = tuple(suffixes)

    def refusal_beside(self, path: str) -> str:
        """Returns why a guest's path is refused in the notebook's folder; empty if it isn't."""
        *above, name = path.casefold().split("/")
        is_anywhere = not name.endswith(_KNOWN_BY_NAME)
        if why := self.refusal(path):
            return why
        if is_anywhere or any(map(_FOLDER_FOR_RESULTS.fullmatch, above)):
            return ""
        return (
            "some tools obey files with names that end in .json and .txt, so such files land in "
            f"a folder for results alone, as results/{name}."
        )

    def refusal(self, path: str) -> str:
        """Returns why a guest's path is refused in a folder for results; empty if it isn't."""
        if is_too_long(path):
            return "its path is too long."
        *above, name = path.split("/")
        if not all(map(is_folder_name, (*above, name))):
            return (
                "in its path are signs that a shell or a page could read. Name it with letters, "
                "digits, blanks and . _ - + ( ) , @, a letter, digit or _ first."
            )
        plain = name.casefold()
        if not plain.endswith(self.suffixes) or not self.suffixes:
            return (
                "only files of data are copied there, such as .csv, .parquet, .txt or .png "
                "(WasmKernel.publish_suffixes lists them)."
            )
        if any(_FOLDER_WITH_SUFFIX.fullmatch(each.casefold()) for each in above):
            return "programs act on folders with a suffix. Give the folder a name without one."
        if _SOUGHT_BELOW.fullmatch(plain):
            return "tools act on files of this name. Give it another one."
        return ""


def is_too_long(path: str) -> bool:
    """Returns whether a path is too long, or leads through too many folders, to be looked for."""
    return len(path.encode(errors="replace")) > _PATH_BYTES or path.count("/") > _FOLDERS_MOST


def is_public(path: str) -> bool:
    """Returns whether people would look for a file; False for hidden files and bytecode."""
    if any(part.startswith(".") or part == _BYTECODE for part in path.split("/")):
        return False
    return path == path.encode(errors="ignore").decode()  # other names can't be sent in a request


def is_folder_name(name: str) -> bool:
    """Returns whether a folder that files are put into may have a name."""
    if not name or len(name.encode(errors="replace")) > _NAME_BYTES:
        return False
    if not (name[0].isalnum() or name[0] == "_") or name[-1] in " .":
        return False
    return not _UNSEEN.search(name) and all(
        sign.isalnum() or sign in _SIGNS or unicodedata.category(sign) in ("Mn", "Mc")
        for sign in name
    )
