"""Markdown, which can hold HTML, links, pictures and formulas.

No two Markdown renderers agree on where HTML begins, and JupyterLab's puts formulas and the names
of code blocks back into the page unescaped. So Markdown passes as it is only where no renderer
could make more of it than plain formatting; otherwise it is rendered here and cleaned as HTML.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape
from typing import Any

from wasm_kernel.outputs.removals import Refused, Removals

CHARACTERS_MOST = 100_000

# Tags, entities, escapes, formulas, JupyterLab's own markers for formulas, links, link targets, and
# what MyST, Pandoc and their kin make attributes, roles and directives of.
_ACTIVE = re.compile(
    r"<[A-Za-z/!?]|[&\\$]|@@|:::|\]\s*[(:\[]|\bmermaid\b"
    r"|\{[\w:+.-]+\}`|\{:?\s*[.#][A-Za-z]|\{[^{}\n=]{0,200}+=[^{}\n]{0,200}+\}",
    re.IGNORECASE,
)
_FENCE = re.compile(r"(?:`{3,}|~{3,})(.*)")
_LANGUAGE = re.compile(r"\s*[A-Za-z0-9_+#.-]*\s*\Z")


def is_plain(text: str) -> bool:
    """Whether every Markdown renderer makes plain formatting of `text`, and nothing else."""
    return not _ACTIVE.search(text) and all(map(_LANGUAGE.match, _FENCE.findall(text)))


def as_html(text: str, removals: Removals) -> str:
    """`text` rendered, and cleaned as HTML.

    Raises:
        Refused: it is too long, or its HTML is.
    """
    from wasm_kernel.outputs.html import clean_html

    if len(text) > CHARACTERS_MOST:
        raise Refused(f"Markdown with HTML or formulas of more than {CHARACTERS_MOST:,} characters")
    return clean_html(_renderer().render(text), removals)


@cache
def _renderer() -> Any:
    from markdown_it import MarkdownIt
    from mdit_py_plugins.amsmath import amsmath_plugin
    from mdit_py_plugins.dollarmath import dollarmath_plugin
    from mdit_py_plugins.tasklists import tasklists_plugin

    renderer = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    # as JupyterLab has it: any two dollar signs in a paragraph hold a formula
    renderer.use(dollarmath_plugin, allow_space=True, allow_digits=True, double_inline=True)
    renderer.use(amsmath_plugin)
    renderer.use(tasklists_plugin)
    for kind, mark in (("math_inline", "$"), ("math_inline_double", "$$"), ("math_block", "$$")):
        renderer.add_render_rule(kind, _formula(mark))
    renderer.add_render_rule("amsmath", _formula(""))
    return renderer


def _formula(mark: str) -> Any:
    """A rule that hands a formula on as it was written, for the front end to typeset."""

    def render(_: Any, tokens: Any, index: int, *__: Any) -> str:
        return f"{mark}{escape(tokens[index].content)}{mark}"

    return render
