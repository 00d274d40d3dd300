"""A widget's traits, each as it may reach the page.

Every function takes what the guest sent, of any type, and gives what may go on, or raises
`Refused`: then the trait stays what it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from wasm_kernel.outputs import removals as told
from wasm_kernel.outputs import terminal, widget_models
from wasm_kernel.outputs.attributes import FOREIGN_CLASS
from wasm_kernel.outputs.math import CHARACTERS_MOST, clean_math_in
from wasm_kernel.outputs.patience import look, patiently
from wasm_kernel.outputs.removals import Refused, Removals
from wasm_kernel.outputs.widget_models import kind_of
from wasm_kernel.outputs.words import words

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
MODEL_PREFIX = "IPY_MODEL_"
LIST_MOST = 100_000
DEPTH = 6

_WORDS = words("inf -inf nan any")  # what JSON has no number for, and a date picker's free step
_STYLES = words("primary success info warning danger")
_KNOWN_WORDS = _STYLES | words("horizontal vertical drag-tap drag-snap tap drag snap standard")
_OWN_CLASSES = frozenset({"widget-interact"})
_CLASS = re.compile(r"[A-Za-z0-9_-]{1,100}\Z")
_ICON = re.compile(r"[a-z0-9-]{1,40}(?: (?:fa-)?(?:spin|pulse|fw|lg|border|[2-5]x|li))*\Z")
# d3-format's own grammar, as its source has it
_D3 = re.compile(
    r"(?:(?:.)?[<>=^])?[+\-( ]?[$#]?0?(?:\d{1,3})?,?(?:\.\d{1,3})?~?[A-Za-z%]?\Z", re.DOTALL
)
_EASY_CSS = re.compile(r"[\w.%# +-]{0,200}\Z", re.ASCII)
_VARIABLE = re.compile(r"var\(--[\w-]+\)")
_BACKWARDS = re.compile(r"(?<![A-Za-z])-|-(?![A-Za-z])")  # a minus that is no part of a word
_MEDIA_TYPE = re.compile(r"[a-z0-9.+-]{1,40}\Z")


def clean_trait(model: str, name: str, value: Any, removals: Removals) -> Any:
    """The value of a trait as it may reach the page.

    Args:
        model: The name of its widget's model.
        name: The trait.
        value: What the guest sent.
        removals: Hears of what was taken out.

    Raises:
        Refused: nothing of it may.
    """
    kind = kind_of(model, name)
    if kind is None:
        raise Refused("settings of a widget that are not known here")
    if value is None:
        return None
    look()
    return _CLEANERS[kind](value, removals)


def _plain(value: Any, _: Removals, depth: int = 0) -> Any:
    if isinstance(value, bool | int | float) or (isinstance(value, str) and value in _WORDS):
        return value
    if depth < DEPTH and isinstance(value, list) and len(value) <= LIST_MOST:
        return [_plain(item, _, depth + 1) if item is not None else None for item in value]
    if depth < DEPTH and isinstance(value, dict) and len(value) <= 20:
        return {_word(k): None if v is None else _plain(v, _, depth + 1) for k, v in value.items()}
    raise Refused("values of a widget that are no numbers")


def _word(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[a-z]{1,20}", value) and value != "constructor":
        return value
    raise Refused("values of a widget that are no numbers")


def _text(value: Any, removals: Removals) -> Any:
    if isinstance(value, list) and len(value) <= LIST_MOST:
        return [_text(item, removals) for item in value]
    if isinstance(value, str) or type(value) in (int, float):
        return value
    raise Refused("texts of a widget that are none")


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise Refused("texts of a widget that are none")
    return value


def _math(value: Any, removals: Removals) -> Any:
    if len(_string(value)) > CHARACTERS_MOST:
        raise Refused(f"a widget's text of more than {CHARACTERS_MOST:,} characters")
    return clean_math_in(value, removals)


def clean_html(value: Any, removals: Removals) -> str:
    """A text that becomes a part of the page."""
    text = _string(value)
    if "<" not in text:
        return str(_math(text, removals))
    from wasm_kernel.outputs import html

    return html.clean_html(text, removals)


def _css(value: Any, removals: Removals) -> Any:
    if isinstance(value, list) and len(value) <= LIST_MOST:
        return [_css(item, removals) for item in value]
    if type(value) in (int, float):
        return value
    text = _string(value)
    if _EASY_CSS.match(text):
        return text
    import tinycss2

    from wasm_kernel.outputs.values import written

    clean = written(tinycss2.parse_component_value_list(text[:2000]), removals)
    if clean is None:
        raise Refused(told.STYLES)
    return clean


def _place(value: Any, removals: Removals) -> Any:
    clean = _css(value, removals)
    if isinstance(clean, list) or _BACKWARDS.search(_VARIABLE.sub("", str(clean))):
        raise Refused(told.STYLES)
    return clean


def _known_word(value: Any, _: Removals) -> Any:
    if value == "" or (isinstance(value, str) and value in _KNOWN_WORDS):
        return value
    raise Refused("settings of a widget that are not known here")


def _number_format(value: Any, _: Removals) -> Any:
    if not _D3.match(_string(value)):
        raise Refused("a number format that is none")
    return value


def _classes(value: Any, _: Removals) -> Any:
    if not isinstance(value, list) or len(value) > 100:
        raise Refused("CSS classes that are none")
    return [name for name in value if isinstance(name, str) and _is_own(name)]


def _is_own(name: str) -> bool:
    return name in _OWN_CLASSES or bool(_CLASS.match(name) and not FOREIGN_CLASS.match(name))


def _icon(value: Any, removals: Removals) -> Any:
    if isinstance(value, list) and len(value) <= LIST_MOST:
        return [_icon(item, removals) for item in value]
    if value == "" or _ICON.match(_string(value)):
        return value
    raise Refused("icons that are none")


def _model(value: Any, removals: Removals) -> Any:
    if isinstance(value, list) and len(value) <= LIST_MOST:
        return [_model(item, removals) for item in value]
    if isinstance(value, str) and value.startswith(MODEL_PREFIX) and ID.match(value[10:]):
        return value
    raise Refused("parts of a widget that are none")


def _media_type(value: Any, _: Removals) -> Any:
    if value == "url":
        raise Refused(told.SOURCES)
    if not _MEDIA_TYPE.match(_string(value)):
        raise Refused(told.PICTURES)
    return value


def _bytes(_: Any, __: Removals) -> Any:
    raise Refused(told.PICTURES)  # they come in a buffer of their own


def _files(value: Any, removals: Removals) -> Any:
    if not isinstance(value, list) or len(value) > LIST_MOST:
        raise Refused("files that are none")
    known = ("name", "type", "size", "last_modified")
    return [
        {name: _text(item[name], removals) for name in known if name in item}
        for item in value
        if isinstance(item, dict)
    ]


def _outputs(value: Any, removals: Removals) -> Any:
    if not isinstance(value, list) or len(value) > LIST_MOST:
        raise Refused("outputs that are none")
    return [clean for item in patiently(value) if (clean := _output(item, removals))]


def _output(value: Any, removals: Removals) -> dict[str, Any]:
    from wasm_kernel.outputs.bundle import Mode, shown

    fields: Mapping[str, Any] = value if isinstance(value, dict) else {}
    kind = fields.get("output_type")
    if kind == "stream":
        text = terminal.clean(_string(fields.get("text")))
        name = "stderr" if fields.get("name") == "stderr" else "stdout"
        return {"output_type": kind, "name": name, "text": text}
    if kind == "error":
        lines = _text(fields.get("traceback", []), removals)
        error = {name: terminal.clean(_string(fields.get(name))) for name in ("ename", "evalue")}
        traceback = [terminal.clean(str(line)) for line in lines] if isinstance(lines, list) else []
        return {"output_type": kind, **error, "traceback": traceback}
    if kind not in ("display_data", "execute_result"):
        return {}
    data, metadata = fields.get("data"), fields.get("metadata")
    if not isinstance(data, dict):
        return {}
    bundle = shown(data, metadata if isinstance(metadata, dict) else {}, Mode.SAFE)
    removals.update(bundle.removed)
    clean = {"output_type": kind, "data": bundle.data, "metadata": bundle.metadata}
    count = fields.get("execution_count")
    return clean | ({"execution_count": count} if isinstance(count, int) else {})


def _autoplay(value: Any, removals: Removals) -> Any:
    if value is not False:
        removals.add("sounds and videos that begin by themselves")
    return False


def _never(_: Any, __: Removals) -> Any:
    raise Refused("links between widgets that are none")  # decided where both ends are known


_CLEANERS: dict[str, Callable[[Any, Removals], Any]] = {
    widget_models.PLAIN: _plain,
    widget_models.TEXT: _text,
    widget_models.MATH: _math,
    widget_models.HTML: clean_html,
    widget_models.LABEL: _math,
    widget_models.CSS: _css,
    widget_models.PLACE: _place,
    widget_models.WORD: _known_word,
    widget_models.NUMBER_FORMAT: _number_format,
    widget_models.CLASSES: _classes,
    widget_models.ICON: _icon,
    widget_models.MODEL: _model,
    widget_models.END: _never,
    widget_models.MEDIA_TYPE: _media_type,
    widget_models.BYTES: _bytes,
    widget_models.FILES: _files,
    widget_models.OUTPUTS: _outputs,
    widget_models.AUTOPLAY: _autoplay,
    widget_models.SWITCH_HTML: _plain,
}
