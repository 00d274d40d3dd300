"""Which elements and attributes of HTML and SVG an output may hold.

Whatever is not named here goes. Missing on purpose: everything that runs, loads, navigates, asks
for input or animates; MathML and the parts of SVG that hold HTML, where one parser's text is
another one's element; `template` and its like, whose content is parsed later.
"""

from __future__ import annotations

from wasm_kernel.outputs.words import words

_TEXT = """
a abbr acronym address article aside b bdi bdo big blockquote br center cite code data dd del
details dfn dir div dl dt em figcaption figure font footer h1 h2 h3 h4 h5 h6 header hgroup hr i ins
kbd label li main mark meter nav ol output p pre progress q rp rt ruby s samp section small span
strike strong sub summary sup time tt u ul var
"""
_TABLES = "caption col colgroup table tbody td tfoot th thead tr"
# An input is kept where it is a checkbox, which opens and folds parts of some outputs.
_MEDIA = "audio img input source style video"
HTML = words(f"{_TEXT} {_TABLES} {_MEDIA}")

_SHAPES = """
a circle clipPath defs ellipse g image line linearGradient marker mask path pattern polygon
polyline radialGradient rect stop style svg switch symbol text textPath tspan use
"""
SVG = words(_SHAPES)

# Gone with everything inside. `title`, `desc` and `metadata` are SVG's; nothing of them is seen.
WHOLE = words("""
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
SVG_ATTRIBUTES = words(f"{_PAINT} {_GEOMETRY}")
ATTRIBUTES: dict[str, frozenset[str]] = {
    "*": words(_ANYWHERE) | SVG_ATTRIBUTES,
    "a": frozenset({"href", "hreflang"}),
    "audio": frozenset({"src", "controls", "loop", "muted", "preload"}),
    "col": frozenset({"span"}),
    "colgroup": frozenset({"span"}),
    "data": frozenset({"value"}),
    "del": frozenset({"datetime"}),
    "details": frozenset({"open"}),
    "font": frozenset({"color", "face", "size"}),
    "hr": frozenset({"noshade", "size"}),
    "image": frozenset({"href"}),
    "img": frozenset({"src", "alt", "border", "hspace", "vspace"}),
    "input": frozenset({"checked", "disabled"}),
    "ins": frozenset({"datetime"}),
    "label": frozenset({"for"}),
    "li": frozenset({"value", "type"}),
    "linearGradient": frozenset({"href"}),
    "meter": frozenset({"value", "min", "max", "low", "high", "optimum"}),
    "ol": frozenset({"start", "reversed", "type"}),
    "pattern": frozenset({"href"}),
    "progress": frozenset({"value", "max"}),
    "radialGradient": frozenset({"href"}),
    "source": frozenset({"src", "type"}),
    "table": words("border cellpadding cellspacing frame rules summary bgcolor bordercolor"),
    "tbody": words(_CELLS),
    "td": words(_CELLS),
    "textPath": frozenset({"href"}),
    "tfoot": words(_CELLS),
    "th": words(_CELLS),
    "thead": words(_CELLS),
    "time": frozenset({"datetime"}),
    "tr": words(_CELLS),
    "ul": frozenset({"type"}),
    "use": frozenset({"href"}),
    "video": frozenset({"src", "controls", "loop", "muted", "preload"}),
}
