"""`awk` for the shell's scripts: a program becomes Python's own code, which runs on each record."""

from __future__ import annotations

import functools
import re

from wasm_kernel_agent.shell_awk_functions import Runtime
from wasm_kernel_agent.shell_awk_parser import Program
from wasm_kernel_agent.shell_awk_values import Failure
from wasm_kernel_agent.shell_options import Usage, content_of

_program_of = functools.lru_cache(maxsize=50)(Program)
_LONG = {"field-separator": "F", "assign": "v", "file": "f", "source": "e"}
_IGNORED = re.compile(r"-[rOStcP]|--(re-interval|posix|traditional|sandbox|characters-as-bytes)")


def awk(words: list[str]) -> int:
    """Runs a program on the lines of files."""
    sources, settings, words = _options_of([*words])
    if not sources:
        if not words:
            raise Usage("a program is needed")
        sources = [words.pop(0)]
    try:
        return Runtime(_program_of("\n".join(sources)), settings, words).run()
    except Failure as problem:
        raise Usage(str(problem)) from None
    except RecursionError:
        raise Usage("functions call each other too deeply") from None


def _options_of(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Returns programs, the values of variables, and the other words."""
    sources, settings = list[str](), list[str]()
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        if _IGNORED.fullmatch(word):
            continue
        name, equals, given = word[2:].partition("=")
        is_long = word.startswith("--") and name in _LONG
        letter = _LONG[name] if is_long else word[1:2]
        if letter not in ("F", "v", "f", "e") or (word.startswith("--") and not is_long):
            raise Usage(f"the option {word} is not known here")
        value = given if is_long and equals else "" if is_long else word[2:]
        if not value and not equals:
            if not words:
                raise Usage(f"the option {word} needs a value")
            value = words.pop(0)
        if letter == "f":
            sources.append(content_of(value).decode("utf-8", "surrogateescape"))
        elif letter == "e":
            sources.append(value)
        else:
            settings.append(f"FS={value}" if letter == "F" else value)
    return sources, settings, words


PROGRAMS = {"awk": awk, "gawk": awk, "mawk": awk}
"""All programs, by name."""
