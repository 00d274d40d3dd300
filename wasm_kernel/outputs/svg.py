"""SVG images: shapes, text and pictures that lie in them; no script, no animation, no HTML.

JupyterLab shows them as images, which is XML and runs nothing; other front ends put the text into
their page, which is HTML and would. What comes out is fit for both.
"""

from __future__ import annotations

import re

import nh3

from wasm_kernel.outputs import elements
from wasm_kernel.outputs.attributes import Attributes
from wasm_kernel.outputs.document import SCHEMES, checked, clean_styles, scope_of
from wasm_kernel.outputs.hints import tell
from wasm_kernel.outputs.patience import look, patiently
from wasm_kernel.outputs.removals import Removals
from wasm_kernel.outputs.repetition import check_repetition

_NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
_BOUNDARY = re.compile(r"<(/?)svg(?=[\s>])")
_NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
NESTED = 1_000_000  # characters of an image inside an image


def clean_svg(svg: str, removals: Removals) -> str:
    """The SVG image in `svg`, as XML; empty where there is none.

    Raises:
        Refused: it is too large, or so built that parsing it would take long.
    """
    svg = checked(svg)
    tell(svg, removals)
    cleaner = nh3.Cleaner(
        tags=set(elements.SVG),
        clean_content_tags=set(elements.WHOLE),
        attributes={name: set(allowed) for name, allowed in elements.ATTRIBUTES.items()},
        attribute_filter=Attributes(removals),
        url_schemes=SCHEMES,
    )
    scope = scope_of(svg)
    # style sheets first: their text may look like an image, and has no `<` left afterwards
    text = cleaner.clean(svg)
    look()
    root = _first_image(clean_styles(text, scope, removals, escaped=True))
    if not root:
        return ""
    check_repetition(root)
    text = _NOT_XML.sub("", root).replace("&nbsp;", "&#160;")
    opened = text.index(">") + 1
    head = text[: len("<svg")] + f" {_NAMESPACES}" + text[len("<svg") : opened]
    body = text[opened : -len("</svg>")]
    if "<style" in body:
        body = f'<g class="{scope}">{body}</g>'
    return f"{head}{body}</svg>"


def _first_image(text: str) -> str:
    """The first `<svg>` element of well-formed text, to its own end."""
    depth, start = 0, -1
    for found in patiently(_BOUNDARY.finditer(text)):
        if found[1]:
            depth -= 1
            if depth == 0:
                return text[start : text.index(">", found.start()) + 1]
        else:
            start = found.start() if depth == 0 else start
            depth += 1
    return ""
