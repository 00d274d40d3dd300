"""`%pip`: packages of the session. Listed from here; the host installs and removes them."""

from __future__ import annotations

import importlib
import inspect
import platform
import re
import shlex
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class, no_var_expand

from wasm_kernel_agent.host import run_host_command
from wasm_kernel_agent.unavailable import advice_on_packages

_USAGE = "%pip knows install, uninstall, list, freeze and show, such as: %pip install 'rich>=13'"
_SHELL = {"|", ">", ">>", "&&", ";"}
_NO_SHELL = "%pip has no pipes: write !pip list | head, or rows = !pip list, which keeps the lines"
_QUIET = {"-q", "-qq", "--quiet"}
_SITE = "site-packages"
_FILE = re.compile(r"^[ \t]*(?:-r|--requirement(?=[ \t=]))[ \t=]*(\S+)", re.MULTILINE)
_FILES_MOST = 20
_FIELDS = ("Summary", "Home-page", "Author", "License")


@magics_class
class PipMagics(Magics):
    """The magics about packages."""

    shell: Any

    @no_var_expand
    @line_magic
    def pip(self, line: str) -> None:
        """Install, remove and list packages: `%pip install humanize 'rich>=13'`.

        Pure-Python packages are found by the pip of the kernel's machine, with its configuration,
        and can be imported at once. They belong to this session: they are there after a restart,
        and in its forks. %undo and %restore leave them in place.

            %pip install NAME ...       also with -U, and versions such as 'rich>=13'
            %pip install -r FILE        what a requirements file names, and those that it names
            %pip uninstall NAME ...
            %pip list                   all packages, also built-in ones
            %pip freeze                 the packages that were installed here
            %pip show NAME ...

        The host installs and uninstalls only if the magic stands in the cell itself: on a line of
        its own at top level, without variables in it.
        """
        verb, _, rest = line.strip().partition(" ")
        names = [word for word in rest.split() if not word.startswith("-")]
        if _SHELL & set(names) and verb not in ("install", "uninstall"):
            raise UsageError(_NO_SHELL)
        if verb in ("install", "uninstall"):
            self._send(verb, line)
        elif verb == "list":
            print(_table(_distributions()))
        elif verb == "freeze":
            print("\n".join(f"{_name(each)}=={each.version}" for each in _installed()))
        elif verb in ("--version", "-V"):
            print(f"pip of the kernel's machine, for python {platform.python_version()}")
        elif verb in ("help", "--help", "-h", ""):
            print(inspect.getdoc(type(self).pip))
        elif verb == "show" and names:
            print("\n---\n".join(_details(name) for name in names))
        else:
            raise UsageError(_USAGE)

    def _send(self, verb: str, line: str) -> None:
        __tracebackhide__ = True
        try:
            files = _requirements_files(line)
            answer = run_host_command(self.shell, "pip", line, files=files)
        except UsageError as problem:
            known = "compiled" in str(problem) or "pure-Python wheel" in str(problem)
            advice = advice_on_packages(f"{line} {problem}") if known else ""
            raise UsageError(f"{problem}{advice}") from None
        importlib.invalidate_caches()
        if not _QUIET & set(line.split()):
            for package in answer["kept"]:
                print(f"Requirement already satisfied: {package}")
            changed = answer["went" if verb == "uninstall" else "came"]
            if changed:
                print(f"Successfully {verb}ed {' '.join(changed)}")
        loaded = sorted(_imported(answer["went"]))
        if loaded:
            print(
                f"Note: {', '.join(loaded)} was imported before, and stays as it was until the "
                "kernel is restarted."
            )


def _requirements_files(line: str) -> dict[str, str]:
    """Returns the texts of the requirements files that a line names, and of those that they name.

    The host reads the texts: it must not read files that a cell names.

    Raises:
        UsageError: A file can't be read, or there are too many.
    """
    try:
        words = " ".join(f"\n{word}" if word[:1] == "-" else word for word in shlex.split(line))
    except ValueError:
        return {}  # the host says what is wrong
    found: dict[str, str] = {}
    waiting = _FILE.findall(words)
    while waiting:
        name = waiting.pop(0)
        if name in found:
            continue
        if len(found) == _FILES_MOST:
            raise UsageError(f"these are more than {_FILES_MOST} requirements files")
        try:
            found[name] = Path(name).read_text(encoding="utf-8")
        except (OSError, ValueError) as problem:
            why = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8"
            raise UsageError(f"{name} can't be read: {why}") from None
        folder = Path(name).parent
        waiting += [str(folder / named) for named in _FILE.findall(found[name])]
    return found


def _name(found: metadata.Distribution) -> str:
    return str(found.metadata["Name"])


def _distributions() -> list[metadata.Distribution]:
    """All packages, each once: the first on the path counts."""
    seen: dict[str, metadata.Distribution] = {}
    for each in metadata.distributions():
        seen.setdefault(_name(each).lower().replace("_", "-"), each)
    return [seen[name] for name in sorted(seen)]


def _is_own(found: metadata.Distribution) -> bool:
    return _SITE in str(found.locate_file(""))


def _installed() -> list[metadata.Distribution]:
    return [each for each in _distributions() if _is_own(each)]


def _table(found: Iterable[metadata.Distribution]) -> str:
    rows = [("Package", "Version", "")]
    rows += [(_name(e), e.version, "" if _is_own(e) else "built in") for e in found]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    rows.insert(1, ("-" * widths[0], "-" * widths[1], ""))
    lines = (f"{a:<{widths[0]}} {b:<{widths[1]}} {c}".rstrip() for a, b, c in rows)
    return "\n".join(lines)


def _details(name: str) -> str:
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise UsageError(f"the package {name} is not there") from None
    always = [need for need in found.requires or () if "extra ==" not in need]
    needs = sorted({need.partition(";")[0].strip() for need in always})
    known = {field: found.metadata[field] or "" for field in _FIELDS if field in found.metadata}
    where = str(found.locate_file("")) if _is_own(found) else "built in"
    lines = [f"Name: {_name(found)}", f"Version: {found.version}"]
    lines += [f"{field}: {text}" for field, text in known.items()]
    return "\n".join([*lines, f"Location: {where}", f"Requires: {', '.join(needs)}"])


def _imported(went: Iterable[str]) -> set[str]:
    """Those of the removed packages, such as `rich-13.0`, whose modules were imported."""
    names = {each.rpartition("-")[0] for each in went}
    return {name for name in names if name.replace("-", "_") in sys.modules}
