"""What of a document will be missed, named for the sentence that says so.

This decides nothing: what may stand is decided by the lists of `elements` and by nh3. It looks at
the text alone, so that it may name something that was never more than text.
"""

from __future__ import annotations

import re

from wasm_kernel.outputs import elements
from wasm_kernel.outputs import removals as told
from wasm_kernel.outputs.patience import patiently
from wasm_kernel.outputs.removals import Removals
from wasm_kernel.outputs.words import words

_OPENED = re.compile(r"<([a-z][a-z0-9:_-]{0,40})")
_COMMENT_END = re.compile(r"--!?>")
_SCRIPT_LINK = re.compile(r"=\s*+[\"']?+\s*+(?:javascript|vbscript)\s*+:")
_FETCHING = re.compile(
    r"[\s/\"'](?:srcset|poster|background|ping|lowsrc|dynsrc)\s*+=\s*+[\"']?+\s*+[^\s\"'>]"
)
_EVENTS = words(
    """
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
    """
)
_HANDLER = re.compile(r"[ \t\n\r\f/\"']on([a-z]{3,24}+)\s*+=")

_QUIET = frozenset({"html", "head", "body", "meta", "title", "wbr", "desc", "metadata"})
_NAMED = {
    "script": told.SCRIPTS,
    "link": told.STYLESHEETS,
    "math": told.MATHML,
    **dict.fromkeys(words("iframe frame frameset object embed applet portal"), told.EMBEDDED),
    **dict.fromkeys(
        words("form button select textarea option optgroup datalist fieldset legend keygen"),
        told.CONTROLS,
    ),
    **dict.fromkeys(
        words("animate animatemotion animatetransform animatecolor set marquee blink"),
        told.ANIMATIONS,
    ),
}
_ALLOWED = frozenset(name.lower() for name in elements.HTML | elements.SVG)


def tell(document: str, removals: Removals) -> None:
    """Name what nh3 will take out of a document and somebody could miss."""
    text = _without_comments(document.lower())
    # an element with a namespace of its own (Inkscape's, RDF's) is nothing to a browser
    opened = {found[1] for found in patiently(_OPENED.finditer(text))}
    names = {name for name in opened if ":" not in name}
    for name in sorted(names - _ALLOWED - _QUIET):
        removals.add(_NAMED.get(name, f"<{name[:20]}>"))
    if any(found[1] in _EVENTS for found in patiently(_HANDLER.finditer(text))):
        removals.add(told.HANDLERS)
    if _SCRIPT_LINK.search(text):
        removals.add(told.SCRIPT_LINKS)
    if _FETCHING.search(text):
        removals.add(told.SOURCES)


def _without_comments(document: str) -> str:
    parts, at = [], 0
    while (start := document.find("<!--", at)) >= 0:
        parts.append(document[at:start])
        end = _COMMENT_END.search(document, start + 2)  # `<!-->` is a whole one
        if end is None:
            return "".join(parts)
        at = end.end()
    return "".join(parts) + document[at:]
