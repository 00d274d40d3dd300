"""TeX in LaTeX outputs, in HTML, in charts and in widgets."""

from __future__ import annotations

import re

from wasm_kernel.outputs import terminal
from wasm_kernel.outputs.limits import stoppable
from wasm_kernel.outputs.removals import COMMANDS, NotShowable, Removals, words

_ACTING = "href url style class cssId data require includegraphics mmlToken htmlId htmlClass"
_ACTING += " htmlStyle htmlData csname catcode begingroupSandbox"
_DEFINING = "def gdef edef xdef let global newcommand renewcommand providecommand newenvironment"
_DEFINING += " renewenvironment DeclareMathOperator Newextarrow newtagform renewtagform usetagform"
_DEFINING += " mathtoolsset definecolor newcolumntype setOptions " + " ".join(
    f"DeclarePairedDelimiter{rest}" for rest in ("", "X", "XPP", "s", "sX", "sXPP")
)
# The text in their brackets becomes CSS of any kind: only plain text may stand there.
_STYLING = frozenset({"bbox", "unicode"})
_PLAIN_OPTION = re.compile(r"\s*+(?:\[[\w\s.,#-]*+\]\s*+)?+\{")
_TEX_COMMANDS = words(f"{_ACTING} {_DEFINING}")
_TEX_COMMAND = re.compile(r"\\([A-Za-z]++)")
_DELIMITERS = ("$", "\\(", "\\[", "\\begin")
_TAG_START = re.compile(r"<(?=[A-Za-z/!?])")
BREAK = "\u200b"
TEX_MOST = 1_000_000


def clean_latex(text: str, removals: Removals) -> str:
    """Returns LaTeX without terminal control, and without commands that do more than typeset.

    No `<` in it begins a tag.
    """
    if len(text) > TEX_MOST:
        raise NotShowable(f"LaTeX of more than {TEX_MOST:,} characters")
    return _TAG_START.sub("< ", safe_tex(terminal.clean(text), removals))


def clean_math_in(html: str, removals: Removals) -> str:
    """Returns HTML without commands in formulas that do more than typeset."""
    return safe_tex(html, removals) if has_formulas(html) else html


def has_formulas(html: str) -> bool:
    """Returns whether anything in a text may begin a formula."""
    return any(delimiter in html for delimiter in _DELIMITERS)


def safe_tex(text: str, removals: Removals) -> str:
    """Text whose formulas only typeset.

    Front ends hand the text between `$` signs, in HTML as well as in LaTeX, to MathJax or KaTeX.
    Those have commands that make links, set classes, styles and ids, load extensions, or change
    the meaning of later formulas on the same page. A zero-width space behind the backslash of such
    a command makes the command unknown without changing the look of the text.
    """
    parts, at = [], 0
    for command in stoppable(_TEX_COMMAND.finditer(text)):
        name = command[1]
        is_styling = name in _STYLING and not _PLAIN_OPTION.match(text, command.end())
        if is_styling or name in _TEX_COMMANDS:
            parts.append(text[at : command.start() + 1])
            at = command.start() + 1
    if not parts:
        return text
    removals.add(COMMANDS)
    return BREAK.join([*parts, text[at:]])
