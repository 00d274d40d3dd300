"""The config files of kernels, as traitlets reads them, and the places of settings in them.

They are the user's own programs, or JSON. Any of several files may hold a setting, or raise an
error, and traitlets does not say which.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from traceback import walk_tb
from types import TracebackType

from jupyter_core.application import JupyterApp
from traitlets import TraitError

from wasm_kernel.errors import describe

_SUFFIXES = (".py", ".json")  # traitlets looks for both, whatever the named file's is
_ANY = "a config file, such as jupyter_wasm_kernel_config.py"


class ConfiguredApp(JupyterApp):
    """An application that the config files of kernels configure."""

    name = "jupyter-wasm-kernel"  # so that jupyter_wasm_kernel_config.py configures it
    raise_config_file_errors = True  # an unreadable file must not lose a limit

    def load_files(self) -> None:
        """Reads the config files; `TraitError` if one can't be read, or `--config` names none."""
        named = Path(self.config_file)
        if self.config_file and not any(named.with_suffix(end).exists() for end in _SUFFIXES):
            raise TraitError(f"{shown(named)} can't be read: there is no such file")
        try:
            self.load_config_file(suppress_errors=False)
        except TraitError:
            raise
        except (Exception, SystemExit) as problem:  # the files are programs
            raise TraitError(unreadable(problem)) from problem


def shown(path: str | Path) -> str:
    """Returns a path for its user to read: below `~`, if it is in the home folder."""
    try:
        return f"~/{Path(path).relative_to(Path.home())}"
    except (ValueError, RuntimeError):  # it lies outside, or there is no home folder
        return str(path)


def place_of(names: Iterable[str], files: Sequence[str]) -> str:
    """Returns the last file and line that set one of the settings `names`.

    Later ones of `files` win. If none of them names the setting, a program made it.
    """
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
    for file in reversed(files):
        try:
            lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        numbered = [*enumerate(lines, start=1)]
        for number, line in reversed(numbered):
            if pattern.search(line.partition("#")[0]):
                return f"{shown(file)}, line {number}"
    return _ANY


def unreadable(problem: BaseException) -> str:
    """Returns the sentence for an error in reading a config file."""
    file, line = _raised_in(problem.__traceback__), 0
    if isinstance(problem, SyntaxError) and problem.filename == file:
        line = problem.lineno or 0
    elif file is not None:
        line = _line_in(problem.__traceback__, file) or getattr(problem, "lineno", 0)
    where = f"{shown(file)}, line {line}," if file else f"{_ANY},"
    words = describe(problem) if isinstance(problem, Exception) else str(problem)
    words = problem.msg if isinstance(problem, SyntaxError) else words
    return f"{where} can't be read: {type(problem).__name__}: {words}"


def _raised_in(trace: TracebackType | None) -> str | None:
    """Returns the path of the file that traitlets was reading; None if there is none."""
    for frame, _ in walk_tb(trace):
        name = getattr(frame.f_locals.get("self"), "full_filename", None)
        if isinstance(name, str) and name:
            return name
    return None


def _line_in(trace: TracebackType | None, file: str) -> int:
    """Returns the last line of a file in an error's traceback; 0 if there is none."""
    lines = [line for frame, line in walk_tb(trace) if frame.f_code.co_filename == file]
    return lines[-1] if lines else 0
