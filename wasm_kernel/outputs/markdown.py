"""Markdown, which can hold HTML, links, pictures and formulas.

No two Markdown renderers agree on where HTML begins, and JupyterLab's puts formulas and the names
of code blocks back into the page unescaped. So Markdown passes unchanged only if no renderer
could make more of it than plain formatting; otherwise it is rendered here and cleaned as HTML.

The rules for formulas and for lists of tasks are our own: those of markdown-it's plugins search the
rest of the text at each mark, in a time that grows with the square of the text's length or worse.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import cache
from html import escape
from typing import Any

from wasm_kernel.outputs.limits import check_stopped
from wasm_kernel.outputs.removals import NotShowable, Removals

RENDERED_MOST = 100_000  # characters of a text that is rendered here
PLAIN_MOST = 1_000_000

# Tags, entities, escapes, formulas, JupyterLab's own markers for formulas, links, link targets, and
# the marks of MyST, Pandoc and similar renderers for attributes, roles and directives.
_ACTIVE = re.compile(
    r"<[A-Za-z/!?]|[&\\$]|@@|:::|\]\s*+[(:\[]|\bmermaid\b"
    r"|\{[\w:+.-]++\}`|\{:?\s*+[.#][A-Za-z]|\{[^{}\n=]{0,200}+=[^{}\n]{0,200}+\}",
    re.IGNORECASE,
)
_FENCE = re.compile(r"(?:`{3,}+|~{3,}+)(.*+)")
_LANGUAGE = re.compile(r"\s*+[A-Za-z0-9_+#.-]*+\s*+\Z")

_FORMULA = re.compile(
    r"\$\$(?:[^\\$]++|\\.|\$(?!\$))++\$\$|\$(?!\$)(?:[^\\$]++|\\.)++\$", re.DOTALL
)
_ENVIRONMENT = re.compile(
    r"\\begin\{((?:equation|multline|gather|align|alignat|flalign|matrix|pmatrix|bmatrix|Bmatrix"
    r"|vmatrix|Vmatrix|eqnarray)\*?)\}"
)
_TASK = re.compile(r"\[([ xX])\]\s")
_BOX = '<input class="task-list-item-checkbox" disabled="disabled"{checked} type="checkbox">'


def is_plain(text: str) -> bool:
    """Returns whether every Markdown renderer makes only plain formatting of `text`."""
    if len(text) > PLAIN_MOST:
        raise NotShowable(f"Markdown of more than {PLAIN_MOST:,} characters")
    return not _ACTIVE.search(text) and all(map(_LANGUAGE.match, _FENCE.findall(text)))


def as_html(text: str, removals: Removals) -> str:
    """Returns `text` rendered, and cleaned as HTML; `NotShowable` if either is too long."""
    from wasm_kernel.outputs.html import clean_html

    if len(text) > RENDERED_MOST:
        raise NotShowable(
            f"Markdown with HTML or formulas of more than {RENDERED_MOST:,} characters"
        )
    return clean_html(_renderer().render(text), removals)


@cache
def _renderer() -> Any:
    from markdown_it import MarkdownIt

    renderer = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    interrupts: Any = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    renderer.block.ruler.before("fence", "formula", _formula_block, interrupts)
    renderer.inline.ruler.before("text", "stop", _check_stopped_inline)
    renderer.inline.ruler.before("escape", "formula", _formula_inline)
    renderer.core.ruler.after("inline", "tasks", _mark_tasks)
    renderer.add_render_rule("formula", _render_formula)
    return renderer


def _check_stopped_inline(_: Any, __: bool) -> bool:
    """An inline rule that never applies; the parser asks it at each step through the text."""
    check_stopped()
    return False


def _render_formula(_: Any, tokens: Any, index: int, *__: Any) -> str:
    """The text of a formula, unchanged; the front end typesets it."""
    return escape(tokens[index].content)


def _formula_inline(state: Any, silent: bool) -> bool:
    """Reads a formula between any two dollar signs of a paragraph, as JupyterLab does."""
    if state.src[state.pos] != "$":
        return False
    found = _FORMULA.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    if not silent:
        state.push("formula", "math", 0).content = found[0]
    state.pos = found.end()
    return True


def _formula_block(state: Any, start: int, stop: int, silent: bool) -> bool:
    """Reads a formula of several lines: from `$$` or `begin` to the line that ends it.

    None of these lines is empty. A formula that is only a part of its line is left to the inline
    rule.
    """
    text = state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]].rstrip()
    environment = _ENVIRONMENT.match(text)
    if state.is_code_block(start) or not (environment or text.startswith("$$")):
        return False
    if environment:
        last = _ends_of(state).after(start, f"\\end{{{environment[1]}}}")
    elif "$$" in text[2:]:
        last = start if len(text) > 4 and text.find("$$", 2) == len(text) - 2 else stop
    else:
        last = _ends_of(state).after(start + 1, "$$")
    if last is None or last >= stop:
        return False
    if not silent:
        token = state.push("formula", "math", 0)
        token.block, token.map = True, [start, last + 1]
        token.content = state.getLines(start, last + 1, state.sCount[start], False)
    state.line = last + 1
    return True


class _Ends:
    """The lines of a text on which formulas may end: noted once, then looked up."""

    def __init__(self, text: str) -> None:
        self._lines: dict[str, list[int]] = {}
        for number, line in enumerate(map(str.rstrip, text.split("\n"))):
            if line.endswith("$$"):
                self._note("$$", number)
            elif line.endswith("}") and (at := line.rfind("\\end{")) >= 0:
                self._note(line[at:], number)
            elif not line.strip(" \t>"):
                self._note("", number)

    def _note(self, end: str, number: int) -> None:
        self._lines.setdefault(end, []).append(number)

    def after(self, line: int, end: str) -> int | None:
        """The first line from `line` on that ends with `end`, if no empty line comes before it."""
        found, empty = self._next(line, end), self._next(line, "")
        return found if found is not None and (empty is None or found < empty) else None

    def _next(self, line: int, end: str) -> int | None:
        lines = self._lines.get(end, [])
        at = bisect_left(lines, line)
        return lines[at] if at < len(lines) else None


def _ends_of(state: Any) -> _Ends:
    if "ends" not in state.env:
        state.env["ends"] = _Ends(state.src)
    ends: _Ends = state.env["ends"]
    return ends


def _mark_tasks(state: Any) -> None:
    """Gives items of lists that begin with `[ ]` or `[x]` a checkbox that can't be changed."""
    from markdown_it.token import Token

    lists: list[Any] = []
    tokens = state.tokens
    for index, token in enumerate(tokens):
        if token.type in ("bullet_list_open", "ordered_list_open"):
            lists.append(token)
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            lists.pop()
        elif token.type == "list_item_open" and index + 2 < len(tokens):
            inline = tokens[index + 2]
            task = _TASK.match(inline.content) if inline.type == "inline" else None
            first = inline.children[0] if inline.children else token
            if task is None or first.type != "text" or first.content[:3] != task[0][:3]:
                continue
            token.attrSet("class", "task-list-item")
            lists[-1].attrSet("class", "contains-task-list")
            checked = "" if task[1] == " " else ' checked="checked"'
            box = Token("html_inline", "", 0, content=_BOX.format(checked=checked))
            first.content = first.content[3:]
            inline.children.insert(0, box)
