"""Attributes of HTML and SVG: the values that each may have."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable

from wasm_kernel.outputs import media
from wasm_kernel.outputs import removals as phrases
from wasm_kernel.outputs.css import ID_PREFIX, style_attribute
from wasm_kernel.outputs.limits import check_stopped
from wasm_kernel.outputs.removals import NotShowable, Removals, words
from wasm_kernel.result import DATA_SUFFIXES

_ID = re.compile(r"[A-Za-z0-9_.:-]{1,200}\Z")
# attributes that name elements by id
_IDS = words("id headers for aria-labelledby aria-describedby aria-controls")
# text that is never read as code, an address or a name
_FREE = words("title alt aria-label summary abbr lang hreflang datetime value")
_FRAGMENT = re.compile(r"\s*#(?P<id>[A-Za-z0-9_.:-]{1,200})\s*\Z")
_WEB = re.compile(
    r"https?://[^\s\x00-\x20<>\"'\\^`{|}]{1,8000}\Z|mailto:[\w.+@%?=&-]{1,500}\Z", re.IGNORECASE
)
# A data file in the notebook's folder or below it. No name begins with a dot or holds a slash or a
# percent sign, encoded or not, so the path can only lead down.
_SIGN = r"(?:[\w.,()+@~-]|%(?!2[5Ff]|5[Cc]|[01][0-9A-Fa-f]|7[Ff])[0-9A-Fa-f]{2})"
_NAME = re.compile(rf"(?!\.|%2[Ee]){_SIGN}{{1,600}}\Z", re.ASCII)
_BESIDE_MOST = 3000
_DATA = re.compile(r"\s*data:(?P<type>[a-z]++/[a-z0-9.+-]++)(?P<more>[^,]{0,200}+),", re.IGNORECASE)

# The other attributes hold numbers, words, colours, paths and transforms. The characters that could
# begin a comment, an escape or another declaration are missing.
_PLAIN = re.compile(r"[\w\s.,:;#%()+\-/*'\"&=]*\Z", re.ASCII)
_CALL = re.compile(r"(?<![\w-])([\w-]++)\s*+\(")
_CALLS = words("rgb rgba hsl hsla var translate rotate scale matrix skewx skewy calc inset circle")
_LOCAL = re.compile(
    r"\s*url\(\s*['\"]?#(?P<id>[A-Za-z0-9_.:-]{1,200})['\"]?\s*\)\s*\Z", re.IGNORECASE
)

# Classes that JupyterLab and similar front ends style, find or act on. An output with such a class
# could look like a dialog, or be taken for a part of the page.
FOREIGN_CLASS = re.compile(
    r"(?:jp|lm|p|cm|jupyter|widget|mjx|bp\d|wk)-|CodeMirror|MathJax|mermaid", re.IGNORECASE
)
CLASS_CHARACTERS = 2000
STYLES_MOST = 4 * 1024 * 1024  # characters of style attributes in one document
LONG = 4096  # characters of a value
CALLS_LONG = 20_000  # characters of a transform
_SPECIAL = re.compile(r"[&\xa0]")

Nested = Callable[[str, Removals], str]


class Attributes:
    """Decides on the attributes of one document; `nested_svg` cleans an SVG in an address."""

    def __init__(self, removals: Removals, nested_svg: Nested | None = None) -> None:
        self._removals = removals
        self._nested_svg = nested_svg
        self._styles = 0  # characters of style attributes so far

    def __call__(self, element: str, name: str, value: str) -> str | None:
        """The value that an allowed attribute may have; None to remove it."""
        try:  # an exception can't pass nh3, which would write the whole value to the log
            check_stopped()
            return self._clean(element, name, value)
        except NotShowable as refused:
            self._removals.add(str(refused))
        except BaseException:
            self._removals.add("an attribute that could not be checked")
        return None

    def _clean(self, element: str, name: str, value: str) -> str | None:
        if name in ("href", "src"):
            return self._link(element, value) if name == "href" else self._source(element, value)
        if name == "style":
            return self._style(value)
        if name == "class":
            return _classes(value)
        if name in _IDS:
            return _ids(value)
        return _free(value) if name in _FREE else _plain(name, value)

    def _style(self, value: str) -> str | None:
        self._styles += len(value)
        if self._styles > STYLES_MOST:
            self._removals.add(phrases.LARGE_STYLES)
            return None
        return style_attribute(value, self._removals) or None

    def _link(self, element: str, value: str) -> str | None:
        if fragment := _FRAGMENT.match(value):
            return f"#{ID_PREFIX}{fragment['id']}"
        if element == "a":
            if _WEB.match(value.strip()):
                return value.strip()
            if _is_data_beside(value):
                return value
            self._removals.add(phrases.LINKS)
            return None
        return self._source(element, value)

    def _source(self, element: str, value: str) -> str | None:
        """The address of a picture or a sound; it must hold the content itself (`data:`)."""
        found = _DATA.match(value)
        if not found:
            self._removals.add(_source_phrase(value))
            return None
        kind, content = found["type"].lower(), value[found.end() :]
        encoded = "base64" in found["more"].lower()
        if element in ("img", "image"):
            return self._picture(kind, content, encoded)
        is_medium = element in ("audio", "video", "source") and encoded
        if is_medium and media.is_recording(kind, content):
            return f"data:{kind};base64,{''.join(content.split())}"
        self._removals.add(phrases.RECORDINGS if is_medium else phrases.SOURCES)
        return None

    def _picture(self, kind: str, content: str, encoded: bool) -> str | None:
        if encoded and media.is_image(kind, content):
            return f"data:{kind};base64,{''.join(content.split())}"
        if kind == "image/svg+xml" and self._nested_svg is not None:
            svg = _decoded(content, encoded)
            clean = self._nested_svg(svg, self._removals) if svg else ""
            if clean:
                return f"data:{kind};base64,{base64.b64encode(clean.encode()).decode()}"
        self._removals.add(phrases.PICTURES)
        return None


def _is_data_beside(address: str) -> bool:
    """Returns whether a link leads to a file of data in the notebook's folder, or below it."""
    if len(address) > _BESIDE_MOST or not address.lower().endswith(DATA_SUFFIXES):
        return False
    return all(map(_NAME.match, address.split("/")))


def _decoded(content: str, encoded: bool) -> str:
    from urllib.parse import unquote

    if not encoded:
        return unquote(content)
    try:
        return base64.b64decode(content).decode("utf-8")
    except ValueError:
        return ""


def _source_phrase(address: str) -> str:
    """The phrase for content from elsewhere, with the host or the file that it names."""
    named = re.match(
        r"\s*(?:https?:)?//([A-Za-z0-9.-]{1,80})|([\w./ -]{1,80})\Z", address, re.IGNORECASE
    )
    return f"{phrases.SOURCES} ({named[1] or named[2]})" if named else phrases.SOURCES


def _classes(value: str) -> str | None:
    names = filter(_ID.match, value[:CLASS_CHARACTERS].split())
    return " ".join(name for name in names if not FOREIGN_CLASS.match(name)) or None


def _ids(value: str) -> str | None:
    """Names of elements, with a prefix, so that the page's own scripts find none of them."""
    return " ".join(ID_PREFIX + name for name in value.split() if _ID.match(name)) or None


def _free(value: str) -> str | None:
    """The text; None for a long one with `&` and the like: nh3 searches the rest after each."""
    return value if len(value) <= LONG or not _SPECIAL.search(value) else None


def _plain(name: str, value: str) -> str | None:
    if name == "tabindex":
        return value if value in ("0", "-1") else None
    if local := _LOCAL.match(value):
        return f"url(#{ID_PREFIX}{local['id']})"
    if not _PLAIN.match(value) or ("(" in value and len(value) > CALLS_LONG):
        return None
    if "(" in value and any(call.lower() not in _CALLS for call in _CALL.findall(value)):
        return None
    return _free(value)
