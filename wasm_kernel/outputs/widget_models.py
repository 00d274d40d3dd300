"""The widgets that a page may have, the meaning of their traits to the page, and their cleaning.

These are the models of ipywidgets 8 whose code comes with the front end: `@jupyter-widgets/base`,
`/controls` and `/output`. A widget of any other module brings, or fetches, code of its own. A trait
that is not in the table does not reach the page, since the page's use of it has not been checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from wasm_kernel.outputs import removals as phrases
from wasm_kernel.outputs import terminal
from wasm_kernel.outputs.attributes import FOREIGN_CLASS
from wasm_kernel.outputs.limits import check_stopped, stoppable
from wasm_kernel.outputs.removals import NotShowable, Removals, words
from wasm_kernel.outputs.tex import TEX_MOST, clean_math_in

BASE, CONTROLS, OUTPUT = (f"@jupyter-widgets/{name}" for name in ("base", "controls", "output"))


_ALIKE = """
Accordion Audio Box Button Checkbox ColorPicker ColorsInput Combobox Controller ControllerAxis
ControllerButton DatePicker Datetime Dropdown FileUpload FloatLogSlider FloatRangeSlider FloatSlider
FloatText FloatsInput GridBox HBox HTML HTMLMath Image IntRangeSlider IntSlider IntText IntsInput
Label Password Play RadioButtons Select SelectMultiple SelectionRangeSlider SelectionSlider Stack
Tab TagsInput Text Textarea Time ToggleButton ToggleButtons VBox Valid Video
"""
_OTHERWISE = {
    "BoundedFloatText": "FloatText",
    "BoundedIntText": "IntText",
    "FloatProgress": "Progress",
    "IntProgress": "Progress",
    "NaiveDatetime": "Datetime",
}
_WITH_STYLE = """
Button Checkbox Description HTML HTMLMath Label Progress Slider Text ToggleButton ToggleButtons
"""
_LINKS = words("LinkModel DirectionalLinkModel")


def _views() -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    for name, view in (dict.fromkeys(words(_ALIKE), "") | _OTHERWISE).items():
        yield (CONTROLS, f"{name}Model"), (CONTROLS, f"{view or name}View")
    for name in words(_WITH_STYLE):
        yield (CONTROLS, f"{name}StyleModel"), (BASE, "StyleView")
    for name in _LINKS:
        yield (CONTROLS, name), (CONTROLS, "")
    yield (BASE, "LayoutModel"), (BASE, "LayoutView")
    yield (OUTPUT, "OutputModel"), (OUTPUT, "OutputView")


VIEWS = dict(_views())
"""The one view that shows each model; both as their module and their name."""

# -- what a trait means to the page

PLAIN = "plain"  # numbers, booleans, dates: nothing that could be read as code
TEXT = "text"  # shown as text, or the value of a text field
MATH = "math"  # text that MathJax looks at
HTML = "html"  # becomes part of the page
LABEL = "label"  # as MATH, and as HTML if `description_allow_html` says so
CSS = "css"  # the value of a CSS property of the widget's element
PLACE = "place"  # the value of a CSS property that moves the element
WORD = "word"  # one of a few words
NUMBER_FORMAT = "number format"  # d3's; an error quotes a wrong one, as HTML
CLASSES = "classes"  # names of CSS classes of the page
ICON = "icon"  # names of CSS classes of Font Awesome
MODEL = "model"  # another widget, or several
END = "end"  # one end of a link between two widgets' traits: a widget and a trait of it
MEDIA_TYPE = "media type"  # the format of `value`'s bytes
BYTES = "bytes"  # binary content of a medium
FILES = "files"  # uploaded files, which the page knows
OUTPUTS = "outputs"  # outputs, as a cell has them
AUTOPLAY = "autoplay"  # a medium begins by itself
SWITCH_HTML = "switch"  # makes a LABEL HTML

_TRAITS = {
    PLAIN: """
        _view_count allow_duplicates base concise connected continuous_update controls disabled
        ensure_option indent index interval loop max min multiple playing pressed readout repeat
        rows selected_index show_repeat step tabbable timestamp value
        """,
    TEXT: "_options_labels accept allowed_tags error msg_id name options placeholder titles tooltip"
    " tooltips",
    LABEL: "description",
    SWITCH_HTML: "description_allow_html",
    CSS: """
        align_content align_items align_self background bar_color border_bottom border_left
        border_right border_top button_color button_width description_width display flex flex_flow
        font_family font_size font_style font_variant font_weight grid_area grid_auto_columns
        grid_auto_flow grid_auto_rows grid_column grid_gap grid_row grid_template_areas
        grid_template_columns grid_template_rows handle_color height justify_content justify_items
        max_height max_width min_height min_width object_fit object_position order overflow padding
        text_color text_decoration visibility width
        """,
    PLACE: "top bottom left right margin",
    WORD: "bar_style behavior box_style button_style mapping orientation tag_style",
    NUMBER_FORMAT: "readout_format",
    CLASSES: "_dom_classes",
    ICON: "icon icons",
    MODEL: "axes buttons children layout style",
    END: "source target",
    OUTPUTS: "outputs",
    AUTOPLAY: "autoplay",
}
KINDS = {name: kind for kind, names in _TRAITS.items() for name in words(names)}
"""The meaning of each trait, by its name, in all models but those of `_OF_ONE`."""

_VALUES = {
    HTML: "HTML HTMLMath",
    MATH: "Label",
    TEXT: "Combobox Password TagsInput Text Textarea",
    CSS: "ColorPicker ColorsInput",
    BYTES: "Audio Image Video",
    FILES: "FileUpload",
}
_OF_ONE = {(f"{m}Model", "value"): kind for kind, names in _VALUES.items() for m in words(names)}
_OF_ONE |= {("ValidModel", "readout"): TEXT}
_OF_ONE |= {(f"{m}Model", "format"): MEDIA_TYPE for m in words("Audio Image Video")}
_OF_ONE |= {(f"{m}Model", "format"): NUMBER_FORMAT for m in words("FloatsInput IntsInput")}
_OF_ONE |= {(f"{m}Model", "allowed_tags"): CSS for m in words("ColorsInput")}


def kind_of(model: str, trait: str) -> str | None:
    """Returns what a trait of a model means to the page; None if it is not known."""
    return _OF_ONE.get((model, trait)) or KINDS.get(trait)


def may_link(source: tuple[str, str], target: tuple[str, str]) -> bool:
    """Returns whether the page may copy one trait to another, without a check by the host.

    Content that is not plain may only go to a trait that is cleaned in the same way.
    """
    kind, goal = kind_of(*source), kind_of(*target)
    if kind == PLAIN:
        return goal in (PLAIN, TEXT, MATH, HTML)
    return kind == goal and kind in (TEXT, MATH, HTML, CSS) and source[1] == target[1]


# -- the value of each kind of trait, as it may reach the page

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
MODEL_PREFIX = "IPY_MODEL_"
ITEMS_MOST = 100_000
VALUE_DEPTH = 6

_WORDS = words("inf -inf nan any")  # numbers that JSON lacks, and a date picker's free step
_STYLE_WORDS = words("primary success info warning danger")
_KNOWN_WORDS = _STYLE_WORDS | words("horizontal vertical drag-tap drag-snap tap drag snap standard")
_OWN_CLASSES = frozenset({"widget-interact"})
_CLASS = re.compile(r"[A-Za-z0-9_-]{1,100}\Z")
_ICON = re.compile(r"[a-z0-9-]{1,40}(?: (?:fa-)?(?:spin|pulse|fw|lg|border|[2-5]x|li))*\Z")
# d3-format's own grammar, as its source has it
_D3 = re.compile(
    r"(?:(?:.)?[<>=^])?[+\-( ]?[$#]?0?(?:\d{1,3})?,?(?:\.\d{1,3})?~?[A-Za-z%]?\Z", re.DOTALL
)
_EASY_CSS = re.compile(r"[\w.%# +-]{0,200}\Z", re.ASCII)
_VARIABLE = re.compile(r"var\(--[\w-]+\)")
_BACKWARDS = re.compile(r"(?<![A-Za-z])-|-(?![A-Za-z])")  # a minus that is not part of a word
_MEDIA_TYPE = re.compile(r"[a-z0-9.+-]{1,40}\Z")


def clean_trait(model: str, name: str, value: Any, removals: Removals) -> Any:
    """The value of a trait as it may reach the page; with `NotShowable` the page keeps its own."""
    kind = kind_of(model, name)
    if kind is None:
        raise NotShowable("settings of a widget that are not known here")
    if value is None:
        return None
    check_stopped()
    return _CLEANERS[kind](value, removals)


def _plain(value: Any, _: Removals, depth: int = 0) -> Any:
    if isinstance(value, bool | int | float) or (isinstance(value, str) and value in _WORDS):
        return value
    if depth < VALUE_DEPTH and isinstance(value, list) and len(value) <= ITEMS_MOST:
        return [_plain(item, _, depth + 1) if item is not None else None for item in value]
    if depth < VALUE_DEPTH and isinstance(value, dict) and len(value) <= 20:
        return {_word(k): None if v is None else _plain(v, _, depth + 1) for k, v in value.items()}
    raise NotShowable("values of a widget that are not numbers")


def _word(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[a-z]{1,20}", value) and value != "constructor":
        return value
    raise NotShowable("values of a widget that are not numbers")


def _text(value: Any, removals: Removals) -> Any:
    if isinstance(value, list) and len(value) <= ITEMS_MOST:
        return [_text(item, removals) for item in value]
    if isinstance(value, str) or type(value) in (int, float):
        return value
    raise NotShowable("texts of a widget that are not text")


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise NotShowable("texts of a widget that are not text")
    return value


def _math(value: Any, removals: Removals) -> Any:
    if len(_string(value)) > TEX_MOST:
        raise NotShowable(f"a widget's text of more than {TEX_MOST:,} characters")
    return clean_math_in(value, removals)


def clean_html_trait(value: Any, removals: Removals) -> str:
    """A text that becomes a part of the page, cleaned as HTML."""
    text = _string(value)
    if "<" not in text:
        return str(_math(text, removals))
    from wasm_kernel.outputs import html

    return html.clean_html(text, removals)


def _css(value: Any, removals: Removals) -> Any:
    if isinstance(value, list) and len(value) <= ITEMS_MOST:
        return [_css(item, removals) for item in value]
    if type(value) in (int, float):
        return value
    text = _string(value)
    if _EASY_CSS.match(text):
        return text
    import tinycss2

    from wasm_kernel.outputs.css import clean_value

    clean = clean_value(tinycss2.parse_component_value_list(text[:2000]), removals)
    if clean is None:
        raise NotShowable(phrases.STYLES)
    return clean


def _place(value: Any, removals: Removals) -> Any:
    clean = _css(value, removals)
    if isinstance(clean, list) or _BACKWARDS.search(_VARIABLE.sub("", str(clean))):
        raise NotShowable(phrases.STYLES)
    return clean


def _known_word(value: Any, _: Removals) -> Any:
    if value == "" or (isinstance(value, str) and value in _KNOWN_WORDS):
        return value
    raise NotShowable("settings of a widget that are not known here")


def _number_format(value: Any, _: Removals) -> Any:
    if not _D3.match(_string(value)):
        raise NotShowable("a number format that does not exist")
    return value


def _classes(value: Any, _: Removals) -> Any:
    if not isinstance(value, list) or len(value) > 100:
        raise NotShowable("invalid names of CSS classes")
    return [name for name in value if isinstance(name, str) and _is_own(name)]


def _is_own(name: str) -> bool:
    return name in _OWN_CLASSES or bool(_CLASS.match(name) and not FOREIGN_CLASS.match(name))


def _icon(value: Any, removals: Removals) -> Any:
    if isinstance(value, list) and len(value) <= ITEMS_MOST:
        return [_icon(item, removals) for item in value]
    if value == "" or _ICON.match(_string(value)):
        return value
    raise NotShowable("icons that do not exist")


def _model(value: Any, removals: Removals) -> Any:
    if isinstance(value, list) and len(value) <= ITEMS_MOST:
        return [_model(item, removals) for item in value]
    if isinstance(value, str) and value.startswith(MODEL_PREFIX) and ID.match(value[10:]):
        return value
    raise NotShowable("parts of a widget that do not exist")


def _media_type(value: Any, _: Removals) -> Any:
    if value == "url":
        raise NotShowable(phrases.SOURCES)
    if not _MEDIA_TYPE.match(_string(value)):
        raise NotShowable(phrases.PICTURES)
    return value


def _bytes(_: Any, __: Removals) -> Any:
    raise NotShowable(phrases.PICTURES)  # bytes come in a buffer of their own


def _files(value: Any, removals: Removals) -> Any:
    if not isinstance(value, list) or len(value) > ITEMS_MOST:
        raise NotShowable("invalid files")
    known = ("name", "type", "size", "last_modified")
    return [
        {name: _text(item[name], removals) for name in known if name in item}
        for item in value
        if isinstance(item, dict)
    ]


def _outputs(value: Any, removals: Removals) -> Any:
    if not isinstance(value, list) or len(value) > ITEMS_MOST:
        raise NotShowable("invalid outputs")
    return [clean for item in stoppable(value) if (clean := _output(item, removals))]


def _output(value: Any, removals: Removals) -> dict[str, Any]:
    from wasm_kernel.outputs.bundle import Mode, clean

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
    bundle = clean(data, metadata if isinstance(metadata, dict) else {}, Mode.SAFE)
    removals.update(bundle.removed)
    output = {"output_type": kind, "data": bundle.data, "metadata": bundle.metadata}
    count = fields.get("execution_count")
    return output | ({"execution_count": count} if isinstance(count, int) else {})


def _autoplay(value: Any, removals: Removals) -> Any:
    if value is not False:
        removals.add("sounds and videos that begin by themselves")
    return False


def _never(_: Any, __: Removals) -> Any:
    # `widgets` decides on links, as it knows both ends
    raise NotShowable("invalid links between widgets")


_CLEANERS: dict[str, Callable[[Any, Removals], Any]] = {
    PLAIN: _plain,
    TEXT: _text,
    MATH: _math,
    HTML: clean_html_trait,
    LABEL: _math,
    CSS: _css,
    PLACE: _place,
    WORD: _known_word,
    NUMBER_FORMAT: _number_format,
    CLASSES: _classes,
    ICON: _icon,
    MODEL: _model,
    END: _never,
    MEDIA_TYPE: _media_type,
    BYTES: _bytes,
    FILES: _files,
    OUTPUTS: _outputs,
    AUTOPLAY: _autoplay,
    SWITCH_HTML: _plain,
}
