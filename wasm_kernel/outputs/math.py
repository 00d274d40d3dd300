"""TeX that only typesets.

Front ends hand what stands between `$` signs, in HTML as well as in LaTeX, to MathJax or KaTeX.
Those have commands that make links, set classes, styles and ids, load extensions, or change what
later formulas on the same page mean. Such a command loses its force: a zero-width space behind its
backslash leaves the text as it looks, and the command unknown.
"""

from __future__ import annotations

import re

from wasm_kernel.outputs.patience import patiently
from wasm_kernel.outputs.removals import COMMANDS, Refused, Removals
from wasm_kernel.outputs.words import words

_ACTING = "href url style class cssId data require includegraphics mmlToken htmlId htmlClass"
_ACTING += " htmlStyle htmlData csname catcode begingroupSandbox"
_DEFINING = "def gdef edef xdef let global newcommand renewcommand providecommand newenvironment"
_DEFINING += " renewenvironment DeclareMathOperator Newextarrow newtagform renewtagform usetagform"
_DEFINING += " mathtoolsset definecolor newcolumntype setOptions " + " ".join(
    f"DeclarePairedDelimiter{rest}" for rest in ("", "X", "XPP", "s", "sX", "sXPP")
)
# What stands in their brackets becomes CSS, of any kind: they may have plain ones, or none.
_STYLING = frozenset({"bbox", "unicode"})
_PLAIN = re.compile(r"\s*+(?:\[[\w\s.,#-]*+\]\s*+)?+\{")
_COMMANDS = words(f"{_ACTING} {_DEFINING}")
_COMMAND = re.compile(r"\\([A-Za-z]++)")
_DELIMITERS = ("$", "\\(", "\\[", "\\begin")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
BREAK = "\u200b"
CHARACTERS_MOST = 1_000_000


def clean_latex(text: str, removals: Removals) -> str:
    """A LaTeX output whose commands typeset and do nothing else; no `<` in it can begin a tag.

    Raises:
        Refused: it is too long for any page to typeset.
    """
    if len(text) > CHARACTERS_MOST:
        raise Refused(f"LaTeX of more than {CHARACTERS_MOST:,} characters")
    return _TAG.sub("< ", tamed(text, removals))


def clean_math_in(html: str, removals: Removals) -> str:
    """HTML whose formulas typeset and do nothing else; other text stays as it is."""
    return tamed(html, removals) if has_formulas(html) else html


def has_formulas(html: str) -> bool:
    """Whether something in a text may begin a formula."""
    return any(delimiter in html for delimiter in _DELIMITERS)


def tamed(text: str, removals: Removals) -> str:
    """Text of which every formula typesets and does nothing else."""
    parts, at = [], 0
    for command in patiently(_COMMAND.finditer(text)):
        name = command[1]
        if name in _COMMANDS or (name in _STYLING and not _PLAIN.match(text, command.end())):
            parts.append(text[at : command.start() + 1])
            at = command.start() + 1
    if not parts:
        return text
    removals.add(COMMANDS)
    return BREAK.join([*parts, text[at:]])
