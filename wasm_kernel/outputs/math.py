"""TeX that only typesets.

Front ends hand what stands between `$` signs, in HTML as well as in LaTeX, to MathJax or KaTeX.
Those have commands that make links, set classes, styles and ids, load extensions, or change what
later formulas on the same page mean. Such a command loses its force: a zero-width space behind its
backslash leaves the text as it looks, and the command unknown.
"""

from __future__ import annotations

import re

from wasm_kernel.outputs.removals import COMMANDS, Removals

_ACTING = "href url style class cssId data require includegraphics mmlToken htmlId htmlClass"
_ACTING += " htmlStyle htmlData csname catcode begingroupSandbox"
_DEFINING = "def gdef edef xdef let global newcommand renewcommand providecommand newenvironment"
_DEFINING += " renewenvironment DeclareMathOperator Newextarrow newtagform renewtagform usetagform"
_DEFINING += " mathtoolsset definecolor newcolumntype setOptions " + " ".join(
    f"DeclarePairedDelimiter{rest}" for rest in ("", "X", "XPP", "s", "sX", "sXPP")
)
# What stands in their brackets becomes CSS, of any kind: they may have plain ones, or none.
_STYLING = r"(?:bbox|unicode)(?![A-Za-z])(?!\s*(?:\[[\w\s.,#-]*\]\s*)?\{)"
_COMMAND = re.compile(
    rf"\\(?=(?:{'|'.join((_ACTING + ' ' + _DEFINING).split())})(?![A-Za-z])|{_STYLING})"
)
_DELIMITER = re.compile(r"\$|\\[(\[]|\\begin\b")
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
BREAK = "\u200b"


def clean_latex(text: str, removals: Removals) -> str:
    """A LaTeX output whose commands typeset and do nothing else; no `<` in it can begin a tag."""
    return _TAG.sub("< ", tamed(text, removals))


def clean_math_in(html: str, removals: Removals) -> str:
    """HTML whose formulas typeset and do nothing else; other text stays as it is."""
    return tamed(html, removals) if _DELIMITER.search(html) else html


def tamed(text: str, removals: Removals) -> str:
    """Text of which every formula typesets and does nothing else."""
    tamed, count = _COMMAND.subn("\\\\" + BREAK, text)
    if count:
        removals.add(COMMANDS)
    return tamed
