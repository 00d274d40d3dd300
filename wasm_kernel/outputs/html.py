"""HTML and SVG that show something and do nothing else.

`nh3` parses a document as a browser does and writes anew the parts that the lists below allow. A
second pass over that text, which is well-formed by then, cleans the style sheets and puts the whole
into a box. Nothing in the box is drawn outside of it, whatever the styles say.
"""

from __future__ import annotations

import re
from hashlib import blake2s
from html import unescape
from typing import Any

import nh3

from wasm_kernel.outputs import documents, terminal
from wasm_kernel.outputs import removals as phrases
from wasm_kernel.outputs.attributes import Attributes
from wasm_kernel.outputs.css import SHEETS_MOST, clean_stylesheet
from wasm_kernel.outputs.limits import check_stopped, stoppable
from wasm_kernel.outputs.removals import LARGE_STYLES, NotShowable, Removals, words
from wasm_kernel.outputs.tex import clean_math_in, has_formulas

# -- the elements and attributes that an output may hold; all others are removed
#
# Missing on purpose: everything that runs, loads, navigates, asks for input or animates; MathML and
# the parts of SVG that hold HTML, which one parser reads as text and another as an element;
# `template` and its like, whose content is parsed later.

_TEXT = """
a abbr acronym address article aside b bdi bdo big blockquote br center cite code data dd del
details dfn dir div dl dt em figcaption figure font footer h1 h2 h3 h4 h5 h6 header hgroup hr i ins
kbd label li main mark meter nav ol output p pre progress q rp rt ruby s samp section small span
strike strong sub summary sup time tt u ul var
"""
_TABLES = "caption col colgroup table tbody td tfoot th thead tr"
# An input is kept if it is a checkbox, which opens and folds parts of some outputs.
_MEDIA = "audio img input source style video"
HTML_ELEMENTS = words(f"{_TEXT} {_TABLES} {_MEDIA}")

_DRAWING = """
a circle clipPath defs ellipse g image line linearGradient marker mask path pattern polygon
polyline radialGradient rect stop style svg switch symbol text textPath tspan use
"""
SVG_ELEMENTS = words(_DRAWING)

# Removed with everything inside. `title`, `desc` and `metadata` are SVG's and are never drawn.
REMOVED_WHOLE = words("""
    script iframe frame frameset object embed applet noscript noembed noframes template title desc
    metadata math xmp plaintext textarea select datalist foreignObject foreignobject animate
    animateMotion animateTransform animateColor set handler listener portal fencedframe head-script
    """)

_ANYWHERE = """
class id style title lang dir role hidden tabindex align valign width height aria-label
aria-hidden aria-labelledby aria-describedby aria-controls aria-expanded aria-level
"""
_CELLS = "colspan rowspan headers scope abbr nowrap bgcolor char charoff axis"
_PAINT = """
clip-path clip-rule color cursor dominant-baseline fill fill-opacity fill-rule font-family
font-size font-style font-weight letter-spacing marker-end marker-mid marker-start mask opacity
overflow paint-order pointer-events shape-rendering stop-color stop-opacity stroke
stroke-dasharray stroke-dashoffset stroke-linecap stroke-linejoin stroke-miterlimit stroke-opacity
stroke-width text-anchor text-decoration text-rendering transform transform-origin vector-effect
visibility word-spacing alignment-baseline baseline-shift display image-rendering
"""
_GEOMETRY = """
x y x1 y1 x2 y2 cx cy r rx ry fx fy fr d points dx dy rotate viewBox preserveAspectRatio offset
gradientTransform gradientUnits spreadMethod patternUnits patternContentUnits patternTransform
clipPathUnits maskUnits maskContentUnits markerWidth markerHeight markerUnits refX refY orient
textLength lengthAdjust startOffset method spacing version pathLength
"""
_OF_ELEMENTS = {
    "*": f"{_ANYWHERE} {_PAINT} {_GEOMETRY}",
    "a": "href hreflang",
    "audio video": "src controls loop muted preload",
    "col colgroup": "span",
    "data": "value",
    "del ins time": "datetime",
    "details": "open",
    "font": "color face size",
    "hr": "noshade size",
    "image linearGradient pattern radialGradient textPath use": "href",
    "img": "src alt border hspace vspace",
    "input": "checked disabled",
    "label": "for",
    "li": "value type",
    "meter": "value min max low high optimum",
    "ol": "start reversed type",
    "progress": "value max",
    "source": "src type",
    "table": "border cellpadding cellspacing frame rules summary bgcolor bordercolor",
    "tbody td tfoot th thead tr": _CELLS,
    "ul": "type",
}
ATTRIBUTES = {name: words(own) for names, own in _OF_ELEMENTS.items() for name in names.split()}


# -- HTML

BOX = "contain: layout paint; position: relative; min-width: min-content; margin: 0"
"""The box's style: it clips and holds its content, positioned or not, and is as wide as a table."""

# JupyterLab's own rule for the last element of an output, which now stands one level deeper.
_LAST = "<style>.{scope} > :last-child {{margin-bottom: 0.5em}}</style>"

_INPUT = re.compile(r"<input(?:\s[^>]*)?>")
# Marks of content that may draw outside of its place, such as an overflowing image; formulas may,
# too.
_STYLED = ("<style", "<svg", " style=", " class=")

# Outputs with a known loss that a style sheet makes up for: a mark in the text of the output, the
# phrases for the loss, and the style sheet.
_MADE_UP_FOR = (
    # scikit-learn's diagrams get the colours of their lines from a script that looks at the page.
    # Here they get them from JupyterLab's own variables, so that they follow its theme.
    (
        "sk-top-container",
        frozenset({phrases.SCRIPTS, phrases.HANDLERS, phrases.CONTROLS, phrases.FETCHED_STYLE}),
        (
            "<style>.sk-global {--sklearn-color-text-on-default-background: "
            "var(--jp-content-font-color0, black); --sklearn-color-background: "
            "var(--jp-layout-color0, white); --sklearn-color-border-box: "
            "var(--jp-content-font-color0, black); --sklearn-color-icon: gray}</style>"
        ),
    ),
    # matplotlib's animations: the guest puts a moving picture beside the script, and the controls,
    # which would do nothing, are hidden.
    (
        "_anim_img",
        frozenset({phrases.SCRIPTS, phrases.HANDLERS, phrases.CONTROLS, "<frames>"})
        | {phrases.STYLESHEETS, phrases.SOURCES},
        "<style>.anim-controls {display: none}</style>",
    ),
)


def clean_html(html: str, removals: Removals) -> str:
    """Returns the parts of `html` that only show something, in a box; may raise `NotShowable`."""
    html = parseable(html)
    scope = scope_of(html)
    known = [(losses, style) for mark, losses, style in _MADE_UP_FOR if mark in html]
    for losses, _ in known:
        removals.expect(losses)
    note_removals(html, removals)
    written = _cleaned(
        html,
        HTML_ELEMENTS | SVG_ELEMENTS,
        Attributes(removals, clean_svg),
        tag_attribute_values={"input": {"type": {"checkbox"}}},
        set_tag_attribute_values={"a": {"target": "_blank"}},
    )
    # style sheets first: their text may look like elements until it is cleaned
    clean = clean_styles("".join(style for _, style in known) + written, scope, removals)
    clean = _INPUT.sub(lambda found: _checkbox(found[0], removals), clean)
    clean = clean_math_in(clean, removals)
    documents.check_repetition(clean)
    if not (has_formulas(clean) or any(mark in clean for mark in _STYLED)):
        return clean
    return f'{_LAST.format(scope=scope)}<div class="{scope}" style="{BOX}">{clean}</div>'


def _checkbox(element: str, removals: Removals) -> str:
    if ' type="checkbox"' in element:
        return element
    removals.add(phrases.CONTROLS)
    return ""


# -- SVG

_NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
_BOUNDARY = re.compile(r"<(/?)svg(?=[\s>])")
_NOT_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def clean_svg(svg: str, removals: Removals) -> str:
    """Returns the SVG image in `svg`, as XML; empty if there is no image; may raise `NotShowable`.

    JupyterLab shows SVG as an image, which runs nothing; other front ends put the text into their
    page, as HTML, which would run scripts. The result is safe for both.
    """
    svg = parseable(svg)
    note_removals(svg, removals)
    scope = scope_of(svg)
    # style sheets first: their text may look like an image until it is cleaned of `<`
    text = _cleaned(svg, SVG_ELEMENTS, Attributes(removals))
    root = _first_image(clean_styles(text, scope, removals, escaped=True))
    if not root:
        return ""
    documents.check_repetition(root)
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
    for found in stoppable(_BOUNDARY.finditer(text)):
        if found[1]:
            depth -= 1
            if depth == 0:
                return text[start : text.index(">", found.start()) + 1]
        else:
            start = found.start() if depth == 0 else start
            depth += 1
    return ""


# -- a document of either

SCHEMES = {"http", "https", "mailto", "data"}
# In SVG one style sheet can hold another; then only the end tag of the outer one is left.
_STYLE_ELEMENT = re.compile(r"<style(?:\s[^>]*)?>(?P<css>.*?)</style>|</style>", re.DOTALL)


def parseable(document: str) -> str:
    """The document without control characters; `NotShowable` if parsing it could take long."""
    if len(document) > documents.DOCUMENT_MOST:
        raise NotShowable(f"a document of more than {documents.DOCUMENT_MOST // 2**20} MiB")
    # A lone surrogate can't be sent; control characters act on a terminal that HTML is printed to.
    # Both are removed first, since a control sequence may hold a quote or a bracket.
    document = terminal.clean(document.encode("utf-8", "replace").decode("utf-8"))
    if len(document) <= documents.SMALL_DOCUMENT:
        return document
    if not documents.is_regular(document):
        small = documents.SMALL_DOCUMENT // 2**10
        raise NotShowable(f"a document of more than {small} KiB with unclosed elements")
    return documents.in_short_runs(document)


def _cleaned(document: str, elements: frozenset[str], check: Attributes, **more: Any) -> str:
    """Returns a document written anew by nh3, with the allowed elements and attributes alone."""
    cleaner = nh3.Cleaner(
        tags=set(elements),
        clean_content_tags=set(REMOVED_WHOLE),
        attributes={name: set(allowed) for name, allowed in ATTRIBUTES.items()},
        attribute_filter=check,
        url_schemes=SCHEMES,
        **more,
    )
    clean = cleaner.clean(document)
    check_stopped()
    return clean


def scope_of(document: str) -> str:
    """The class of the box around a document's content."""
    return f"wk-{blake2s(document.encode(), digest_size=6).hexdigest()}"


def clean_styles(html: str, scope: str, removals: Removals, *, escaped: bool = False) -> str:
    """HTML or SVG whose style sheets apply below the class `scope` alone.

    `html` must be nh3's, without `<` in an attribute. `escaped` says that the text of the style
    sheets is escaped, as it is in XML.
    """
    left = SHEETS_MOST

    def cleaned(found: re.Match[str]) -> str:
        nonlocal left
        css = found["css"]
        if css is None:
            return ""
        left -= len(css)
        if left < 0:
            removals.add(LARGE_STYLES)
            return ""
        if escaped and "<" in css:  # only the ends of these elements would be left
            raise NotShowable("an image with elements in its style sheet")
        clean = clean_stylesheet(unescape(css) if escaped else css, scope, removals)
        return f"<style>{clean}</style>"

    return _STYLE_ELEMENT.sub(cleaned, html)


# -- the phrases for the parts that nh3 removes

_OPENED = re.compile(r"<([a-z][a-z0-9:_-]{0,40})")
_COMMENT_END = re.compile(r"--!?>")
_SCRIPT_LINK = re.compile(r"=\s*+[\"']?+\s*+(?:javascript|vbscript)\s*+:")
_FETCHING = re.compile(
    r"[\s/\"'](?:srcset|poster|background|ping|lowsrc|dynsrc)\s*+=\s*+[\"']?+\s*+[^\s\"'>]"
)
_EVENTS = words("""
    abort afterprint animationcancel animationend animationiteration animationstart auxclick
    beforecopy beforecut beforeinput beforematch beforepaste beforeprint beforetoggle beforeunload
    begin blur bounce cancel canplay canplaythrough change click close contextmenu copy cuechange
    cut dblclick drag dragend dragenter dragleave dragover dragstart drop durationchange emptied end
    ended error finish focus focusin focusout hashchange input invalid keydown keypress keyup load
    loadeddata loadedmetadata loadstart message mousedown mouseenter mouseleave mousemove mouseout
    mouseover mouseup mousewheel paste pause play playing pointercancel pointerdown pointerenter
    pointerleave pointermove pointerout pointerover pointerup popstate progress ratechange repeat
    reset resize scroll scrollend search seeked seeking select selectionchange selectstart show
    start stalled storage submit suspend timeupdate toggle touchcancel touchend touchmove touchstart
    transitioncancel transitionend transitionrun transitionstart unload volumechange waiting wheel
    """)
_HANDLER = re.compile(r"[ \t\n\r\f/\"']on([a-z]{3,24}+)\s*+=")

_NOT_MISSED = frozenset({"html", "head", "body", "meta", "title", "wbr", "desc", "metadata"})
_OF_PHRASES = {
    phrases.SCRIPTS: "script",
    phrases.STYLESHEETS: "link",
    phrases.MATHML: "math",
    phrases.EMBEDDED: "iframe frame frameset object embed applet portal",
    phrases.CONTROLS: "form button select textarea option optgroup datalist fieldset legend keygen",
    phrases.ANIMATIONS: "animate animatemotion animatetransform animatecolor set marquee blink",
}
_NAMED = {name: phrase for phrase, names in _OF_PHRASES.items() for name in words(names)}
_ALLOWED = frozenset(name.lower() for name in HTML_ELEMENTS | SVG_ELEMENTS)


def note_removals(document: str, removals: Removals) -> None:
    """Adds a phrase for everything that nh3 will remove and that the user may miss.

    The phrases decide nothing; the lists above and nh3 do. They come from the text alone, so one
    may name an element that was only text.
    """
    text = _without_comments(document.lower())
    # browsers ignore an element with a namespace of its own (Inkscape's, RDF's)
    opened = {found[1] for found in stoppable(_OPENED.finditer(text))}
    names = {name for name in opened if ":" not in name}
    for name in sorted(names - _ALLOWED - _NOT_MISSED):
        removals.add(_NAMED.get(name, f"<{name[:20]}>"))
    if any(found[1] in _EVENTS for found in stoppable(_HANDLER.finditer(text))):
        removals.add(phrases.HANDLERS)
    if _SCRIPT_LINK.search(text):
        removals.add(phrases.SCRIPT_LINKS)
    if _FETCHING.search(text):
        removals.add(phrases.SOURCES)


def _without_comments(document: str) -> str:
    parts, at = [], 0
    while (start := document.find("<!--", at)) >= 0:
        parts.append(document[at:start])
        end = _COMMENT_END.search(document, start + 2)  # `<!-->` is a whole comment
        if end is None:
            return "".join(parts)
        at = end.end()
    return "".join(parts) + document[at:]
