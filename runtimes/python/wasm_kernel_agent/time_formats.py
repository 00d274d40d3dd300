"""Formats of times, which Linux's C library knows better than WASI's.

WASI's makes the empty text of a format with a directive that it does not know, such as `%k`.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

_PLAIN = re.compile(r"(?:[^%]|%[-_0]?[EO]?[aAbBcCdDeFgGhHIjmMnprRsStTuUVwWxXyYzZ%])*")
_DIRECTIVE = re.compile(r"%([-_0^#]*)(\d*)[EO]?(.?)", re.DOTALL)
_LINUX_LETTERS = {"k": ("_", "H"), "l": ("_", "I"), "P": ("", "p")}
_OF_PERIODS = tuple("flq")
_KNOWN_TO_PERIODS = re.compile(_PLAIN.pattern.replace("s", "").replace("zZ", ""))  # no zones
_NUMBERS = "CdgGHIjmMsSuUVwWyY"


def install() -> None:
    """Lets `strftime`, also of dates, know Linux's directives: `%k`, `%l`, `%P`, `%^a`, `%9b`."""
    write = time.strftime

    def strftime(format: str, /, *moment: Any) -> str:  # noqa: A002
        """Returns a time, by default the local one, as text in a format."""
        __tracebackhide__ = True
        if not isinstance(format, str) or _PLAIN.fullmatch(format):
            return write(format, *moment)
        moment = moment or (time.localtime(),)

        def one(found: re.Match[str]) -> str:
            flags, width, letter = found.groups()
            pads, plain = _LINUX_LETTERS.get(letter, ("", letter))
            pad = re.sub(r"[#^]", "", pads + flags)[-1:]
            if not _PLAIN.fullmatch(f"%{plain}"):
                return found[0]
            text = write(f"%{pad}{plain}", *moment)
            if "^" in flags or ("#" in flags and letter in "aAbBh"):
                text = text.upper()
            if letter == "P" or ("#" in flags and letter == "p"):
                text = text.lower()
            zeros = pad == "0" or (not pad and letter in _NUMBERS)
            return text.rjust(int(width or 0), "0" if zeros else " ")

        return _DIRECTIVE.sub(one, format)

    time.strftime = strftime


def refuse_for_periods(module: ModuleType) -> None:
    """Lets pandas' periods, whose compiled code calls the C library, refuse such formats."""
    periods: Any = module
    periods.Period.strftime = _refusing(periods.Period.strftime, 1)
    periods.period_array_strftime = _refusing(periods.period_array_strftime, 3)


def _refusing(write: Callable[..., Any], place: int) -> Callable[..., Any]:
    @functools.wraps(write)
    def strftime(*given: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        form = [*given, *named.values(), None][place]
        for found in _DIRECTIVE.finditer(form or ""):
            if found[3] not in _OF_PERIODS and not _KNOWN_TO_PERIODS.fullmatch(found[0]):
                raise ValueError(
                    f"periods have no {found[0]!r} here: format their to_timestamp() instead"
                )
        return write(*given, **named)

    return strftime
