"""HTML that shows and does nothing else.

`nh3` parses it as a browser does and writes anew what is allowed. A second pass over that text,
which is well-formed by then, cleans the style sheets and puts the whole into a box: what is in it
is drawn inside it and nowhere else, whatever its styles say.
"""

from __future__ import annotations

import re

import nh3

from wasm_kernel.outputs import elements
from wasm_kernel.outputs import removals as told
from wasm_kernel.outputs.attributes import Attributes
from wasm_kernel.outputs.document import SCHEMES, checked, clean_styles, scope_of
from wasm_kernel.outputs.hints import tell
from wasm_kernel.outputs.math import clean_math_in, has_formulas
from wasm_kernel.outputs.patience import look
from wasm_kernel.outputs.removals import Removals
from wasm_kernel.outputs.repetition import check_repetition
from wasm_kernel.outputs.svg import clean_svg

BOX = "contain: layout paint; position: relative; min-width: min-content; margin: 0"
"""Clips what is painted in it, holds what is positioned in it, and is as wide as its table."""

# What JupyterLab says of the last element of an output, which now stands one level deeper.
_LAST = "<style>.{scope} > :last-child {{margin-bottom: 0.5em}}</style>"

_INPUT = re.compile(r"<input(?:\s[^>]*)?>")
# What may draw elsewhere than where it stands: an image that overflows and a formula, too.
_STYLED = ("<style", "<svg", " style=", " class=")

# scikit-learn's diagrams get the colours of their lines from a script that looks at the page. The
# same from JupyterLab's own variables, so that they follow its theme.
_SKLEARN_MARK = "sk-top-container"
_SKLEARN_LOSES = frozenset({told.SCRIPTS, told.HANDLERS, told.CONTROLS, told.FETCHED_STYLE})
_SKLEARN = (
    "<style>.sk-global {--sklearn-color-text-on-default-background: var(--jp-content-font-color0, "
    "black); --sklearn-color-background: var(--jp-layout-color0, white); "
    "--sklearn-color-border-box: var(--jp-content-font-color0, black); "
    "--sklearn-color-icon: gray}</style>"
)


def clean_html(html: str, removals: Removals) -> str:
    """`html` with what shows, in a box of its own, and without what acts, loads or reaches out.

    Args:
        html: A document or a piece of one, of any shape.
        removals: Hears of what was taken out.

    Raises:
        Refused: it is too large, or so built that parsing it would take long.
    """
    html = checked(html)
    scope = scope_of(html)
    if _SKLEARN_MARK in html:
        removals.expect(_SKLEARN_LOSES)
    clean = _written_anew(html, removals)
    if _SKLEARN_MARK in clean:
        clean = _SKLEARN + clean
    # style sheets first: their text may look like elements, and has none left afterwards
    clean = clean_styles(clean, scope, removals)
    clean = _INPUT.sub(lambda found: _checkbox(found[0], removals), clean)
    clean = clean_math_in(clean, removals)
    check_repetition(clean)
    if not (has_formulas(clean) or any(mark in clean for mark in _STYLED)):
        return clean
    return f'{_LAST.format(scope=scope)}<div class="{scope}" style="{BOX}">{clean}</div>'


def _written_anew(html: str, removals: Removals) -> str:
    tell(html, removals)
    cleaner = nh3.Cleaner(
        tags=set(elements.HTML | elements.SVG),
        clean_content_tags=set(elements.WHOLE),
        attributes={name: set(allowed) for name, allowed in elements.ATTRIBUTES.items()},
        attribute_filter=Attributes(removals, clean_svg),
        tag_attribute_values={"input": {"type": {"checkbox"}}},
        set_tag_attribute_values={"a": {"target": "_blank"}},
        url_schemes=SCHEMES,
    )
    clean = cleaner.clean(html)
    look()
    return clean


def _checkbox(element: str, removals: Removals) -> str:
    if ' type="checkbox"' in element:
        return element
    removals.add(told.CONTROLS)
    return ""
