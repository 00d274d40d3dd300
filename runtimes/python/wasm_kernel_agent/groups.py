"""Tracebacks of exception groups, which IPython leaves to Python's own printer.

Python's layout of a group is kept; the frames of the shell are left out, and cells have their
names.
"""

from __future__ import annotations

import re
import sys
import traceback
from types import TracebackType
from typing import Any

_COLOUR = r"(?:\x1b\[[\d;]*m)*"
_FILE = re.compile(rf'File {_COLOUR}"(<ipython-input-[^"]+)"({_COLOUR})')
_CAUSES = 50


def holds_group(error: BaseException | None) -> bool:
    """Whether an exception group is `error`, or led to it."""
    for _ in range(_CAUSES):
        if error is None or isinstance(error, BaseExceptionGroup):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, BaseExceptionGroup)


def lines(error: BaseException, trace: TracebackType | None, compiler: Any) -> list[str]:
    """The traceback of a group as lines; `compiler` knows the names of cells."""
    whole = traceback.TracebackException(type(error), error, _from_cell(trace), compact=True)
    colours: dict[str, Any] = {"colorize": True} if sys.version_info >= (3, 13) else {}

    def named(found: re.Match[str]) -> str:
        label = compiler.format_code_name(found[1])
        return f"{label[0]} {label[1]}" + found[2] if label else found[0]

    return [_FILE.sub(named, line.rstrip("\n")) for line in whole.format(**colours)]


def _from_cell(trace: TracebackType | None) -> TracebackType | None:
    """`trace` from the first frame on that is not the shell's; None where there is no other."""
    while trace is not None and _is_shell(trace):
        trace = trace.tb_next
    return trace


def _is_shell(step: TracebackType) -> bool:
    name = step.tb_frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] == "IPython"
