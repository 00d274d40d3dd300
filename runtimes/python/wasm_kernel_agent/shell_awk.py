"""`awk` for the shell's scripts: a program becomes Python's own code, which runs on each record."""

from __future__ import annotations

import functools
import getopt

from wasm_kernel_agent.shell_awk_functions import Runtime
from wasm_kernel_agent.shell_awk_parser import Program
from wasm_kernel_agent.shell_awk_values import Failure
from wasm_kernel_agent.shell_options import Misuse, text_of

_program_of = functools.lru_cache(maxsize=50)(Program)
_LONG = {"--field-separator": "F", "--assign": "v", "--file": "f", "--source": "e"}
_VALUED = [f"{name[2:]}=" for name in _LONG]
_IGNORED = ["re-interval", "posix", "traditional", "sandbox", "characters-as-bytes"]


def awk(words: list[str]) -> int:
    """Runs a program on the lines of files."""
    sources, settings, words = _options_of(words)
    if not sources:
        if not words:
            raise Misuse("a program is needed")
        sources = [words.pop(0)]
    try:
        return Runtime(_program_of("\n".join(sources)), settings, words).run()
    except Failure as problem:
        raise Misuse(str(problem)) from None
    except RecursionError:
        raise Misuse("functions call each other too deeply") from None


def _options_of(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Returns programs, the values of variables, and the other words."""
    sources, settings = list[str](), list[str]()
    try:
        options, rest = getopt.getopt(words, "F:v:f:e:rOStcP", [*_VALUED, *_IGNORED])
    except getopt.GetoptError as problem:
        raise Misuse(problem.msg) from None
    for option, value in options:
        letter = _LONG.get(option, option[1:])
        if letter in ("f", "e"):
            sources.append(text_of(value) if letter == "f" else value)
        elif letter in ("F", "v"):
            settings.append(f"FS={value}" if letter == "F" else value)
    return sources, settings, rest


PROGRAMS = {"awk": awk, "gawk": awk, "mawk": awk}
"""All programs, by name."""
