"""The config files that a kernel reads, for people who look for a setting in them.

They are the user's own programs, or JSON: a setting may stand in any of several, and an error may
be raised in one. traitlets tells of neither place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

from wasm_kernel.errors import describe

_ANY = "a config file, such as jupyter_wasm_kernel_config.py"


def shown(path: str | Path) -> str:
    """Returns a path as its user knows it: below `~`, if it is in the home folder."""
    try:
        return f"~/{Path(path).relative_to(Path.home())}"
    except (ValueError, RuntimeError):  # it lies elsewhere, or there is no home folder
        return str(path)


def place_of(names: Iterable[str], files: Sequence[str]) -> str:
    """Returns the file and the line where one of some settings is set last.

    Of `files`, a later one goes before. A setting that none of them names was made by a program.
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
    """Returns the sentence for an error that was raised while a config file was read."""
    file, line = _raised_in(problem.__traceback__), 0
    if isinstance(problem, SyntaxError) and problem.filename == file:
        line = problem.lineno or 0
    elif file is not None:
        line = _line_in(problem.__traceback__, file) or getattr(problem, "lineno", 0)
    where = f"{shown(file)}, line {line}," if file else f"{_ANY},"
    words = problem.msg if isinstance(problem, SyntaxError) else describe_any(problem)
    return f"{where} can't be read: {type(problem).__name__}: {words}"


def describe_any(problem: BaseException) -> str:
    """Returns an error in words, also one that ends a program."""
    return describe(problem) if isinstance(problem, Exception) else str(problem)


def _raised_in(trace: TracebackType | None) -> str | None:
    """Returns the path of the file that traitlets was reading; None if it was reading none."""
    while trace is not None:
        name = getattr(trace.tb_frame.f_locals.get("self"), "full_filename", None)
        if isinstance(name, str) and name:
            return name
        trace = trace.tb_next
    return None


def _line_in(trace: TracebackType | None, file: str) -> int:
    """Returns the line of a file that an error passed through last; 0 if it passed through none."""
    line = 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
