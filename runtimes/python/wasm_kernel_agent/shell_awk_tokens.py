"""Words and expressions of `awk`: the tokens of a program, and Python's code for a value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from wasm_kernel_agent.shell_awk_values import Failure

KEYWORDS = {
    *("BEGIN", "END", "function", "func", "if", "else", "while", "for", "do", "break", "continue"),
    *("next", "nextfile", "exit", "return", "delete", "in", "getline", "print", "printf"),
}
_TAKEN = (
    ("n", 0, 0, "rand systime"),
    ("n", 0, 1, "length srand fflush"),
    ("n", 1, 1, "int sqrt sin cos log exp strtonum system close mktime"),
    ("n", 1, 2, "asort asorti"),
    ("n", 2, 2, "atan2 index"),
    ("n", 2, 3, "match split sub gsub"),
    ("s", 0, 3, "strftime"),
    ("s", 1, 1, "tolower toupper"),
    ("s", 1, 1000, "sprintf"),
    ("s", 2, 3, "substr"),
    ("s", 3, 4, "gensub"),
)
BUILT_IN: dict[str, tuple[str, int, int]] = {
    name: (kind, least, most) for kind, least, most, names in _TAKEN for name in names.split()
}
"""The functions that each program knows: the kinds of their results, the numbers of values."""

_OF_GAWK = {"IGNORECASE", "FPAT", "FIELDWIDTHS", "PROCINFO", "RT", "BEGINFILE", "ENDFILE"}
_TOKENS = re.compile(
    r"""(?P<space>(?:[ \t\r]|\\\r?\n|\#[^\n]*)+)|(?P<newline>\n)
    |(?P<number>0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
    |(?P<text>"(?:[^"\\\n]|\\[\s\S])*")|(?P<name>[A-Za-z_]\w*)
    |(?P<sign>\*\*=|\*\*|\+\+|--|&&|\|\||>>|[-+*/%^<>=!]=|!~|[-+*/%^<>=!~?:;,(){}\[\]$|])""",
    re.VERBOSE,
)
_PATTERN = re.compile(r"/((?:[^/\\\[\n]|\\.|\[\^?\]?(?:\[:\w+:\]|[^\]\n])*\])*)/")
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|([\s\S]))")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "/": "/", "a": "\a", "b": "\b"}
_ESCAPES |= {"f": "\f", "v": "\v", "\n": ""}
Token = tuple[str, str]


def unescaped(text: str) -> str:
    r"""Returns a text in which escapes such as `\t` are the characters that they name."""

    def one(found: re.Match[str]) -> str:
        octal, hexadecimal, letter = found.groups()
        if octal or hexadecimal:
            return chr(int(octal, 8) if octal else int(hexadecimal, 16))
        return _ESCAPES.get(letter, f"\\{letter}")

    return _ESCAPE.sub(one, text)


def check_name(name: str) -> str:
    """Returns the name of a variable; raises `Failure` if it means something in `gawk` alone."""
    if name in _OF_GAWK:
        raise Failure(f"{name} of gawk is not known here")
    return name


def tokens_of(source: str) -> Iterator[Token]:
    """Yields the words of a program, each with its kind."""
    at, before = 0, ("newline", "\n")
    while at < len(source):
        ends_value = before[0] in ("number", "text", "pattern") or before[1] in (
            ")",
            "]",
            "$",
            "++",
            "--",
        )
        if before[0] == "name" and before[1] not in KEYWORDS:
            ends_value = True
        if source[at] == "/" and not ends_value and (found := _PATTERN.match(source, at)):
            before = ("pattern", found[1])
        elif (found := _TOKENS.match(source, at)) is None:
            raise Failure(f"syntax error near {source[at : at + 20]!r}")
        elif found.lastgroup == "space":
            at = found.end()
            continue
        else:
            before = (found.lastgroup or "", found[0])
            if found.lastgroup == "name" and found[0] not in KEYWORDS:
                gap = r"[ \t]*" if found[0] in BUILT_IN else ""
                is_call = re.compile(rf"{gap}\(").match(source, found.end())
                before = ("call" if is_call else "name", check_name(found[0]))
        yield before
        at = found.end()
    yield "newline", "\n"
    yield "end", ""


_PLACE = re.compile(r"(.*?)\((k\d+) := (.*)\), ", re.DOTALL)


class Made(NamedTuple):
    """The code of an expression, and its kind."""

    code: str
    kind: str = ""  # n: a number, s: a text, b: true or false, else any value
    target: str = ""  # the code up to the value that it gets, if it can get one
    name: str = ""  # the variable's name, if it is one
    pattern: str | None = None
    again: str = ""  # the code of the value behind `target`; it finds its place only once

    @property
    def number(self) -> str:
        """The code of the value as a number."""
        return self.code if self.kind == "n" else f"num({self.value})"

    @property
    def old(self) -> Made:
        """The value before it changes, behind `target`."""
        return Made(self.again or self.code, self.kind)

    @property
    def once(self) -> tuple[Made, str]:
        """The value, and a target that reuses the key which the value's code has computed."""
        found = _PLACE.fullmatch(self.target)
        if found is None:
            return self, self.target
        begin, kept, key = found.groups()
        first = f"{self.again.removesuffix(f'{kept})')}({kept} := {key}))"
        return Made(first, self.kind), f"{begin}{kept}, "

    @property
    def text(self) -> str:
        """The code of the value as text."""
        return self.code if self.kind == "s" else f"r.text({self.value})"

    @property
    def condition(self) -> str:
        """The code of whether the value is true."""
        return self.code if self.kind == "b" else f"is_true({self.value})"

    @property
    def value(self) -> str:
        """The code of the value."""
        return f"(1.0 if {self.code} else 0.0)" if self.kind == "b" else self.code


def joined(found: list[Made]) -> str:
    """Returns the code of the key of several values."""
    texts = [each.text for each in found]
    return texts[0] if len(texts) == 1 else f"r.text(v_SUBSEP).join(({', '.join(texts)}))"


def source_of(made: Made) -> str:
    """Returns the code of a pattern as text."""
    return repr(made.pattern) if made.pattern is not None else made.text


def pattern_of(made: Made) -> str:
    """Returns the code of a compiled pattern."""
    return f"pattern({source_of(made)})"


def computed(sign: str, one: Made, other: Made) -> Made:
    """Returns an operator between two values."""
    if sign in ("/", "%", "^"):
        name = {"/": "quotient", "%": "remainder", "^": "power"}[sign]
        return Made(f"{name}({one.number}, {other.number})", "n")
    return Made(f"({one.number} {sign} {other.number})", "n")


def stepped(made: Made, sign: str, *, is_after: bool) -> Made:
    """Returns `++` or `--` before or after a variable."""
    if not made.target:
        raise Failure("syntax error: ++ and -- need a variable")
    step = f"{made.target}{made.old.number} {sign} 1.0)"
    back = "-" if sign == "+" else "+"
    return Made(f"({step} {back} 1.0)" if is_after else step, "n")
