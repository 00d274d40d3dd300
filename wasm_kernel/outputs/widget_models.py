"""The widgets that a page may be given, and what each of their traits is to it.

These are the models of ipywidgets 8 whose code comes with the front end: `@jupyter-widgets/base`,
`/controls` and `/output`. A widget of any other module brings, or fetches, code of its own. A trait
that is not in the table does not reach the page: nobody has looked at what is done with it there.
"""

from __future__ import annotations

from dataclasses import dataclass

from wasm_kernel.outputs.words import words

BASE, CONTROLS, OUTPUT = (f"@jupyter-widgets/{name}" for name in ("base", "controls", "output"))


@dataclass(frozen=True)
class Pair:
    """A model and the one view that shows it, each as its module and its name."""

    model: tuple[str, str]
    view: tuple[str, str]


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
_STYLES = """
Button Checkbox Description HTML HTMLMath Label Progress Slider Text ToggleButton ToggleButtons
"""
_LINKS = words("LinkModel DirectionalLinkModel")


def _pairs() -> list[Pair]:
    views = dict.fromkeys(words(_ALIKE), "") | _OTHERWISE
    found = [
        Pair((CONTROLS, f"{name}Model"), (CONTROLS, f"{view or name}View"))
        for name, view in views.items()
    ]
    found += [Pair((CONTROLS, f"{name}StyleModel"), (BASE, "StyleView")) for name in words(_STYLES)]
    found += [Pair((CONTROLS, name), (CONTROLS, "")) for name in _LINKS]
    found.append(Pair((BASE, "LayoutModel"), (BASE, "LayoutView")))
    found.append(Pair((OUTPUT, "OutputModel"), (OUTPUT, "OutputView")))
    return found


PAIRS: dict[tuple[str, str], Pair] = {pair.model: pair for pair in _pairs()}

# -- what a trait is to the page

PLAIN = "plain"  # numbers, booleans, dates: nothing that could be read as code
TEXT = "text"  # shown as text, or the value of a text field
MATH = "math"  # text that MathJax looks at
HTML = "html"  # becomes part of the page
LABEL = "label"  # as MATH, and as HTML where `description_allow_html` says so
CSS = "css"  # the value of a CSS property of the widget's element
PLACE = "place"  # the same, of one that moves the element
WORD = "word"  # one of a few words
NUMBER_FORMAT = "number format"  # d3's; a wrong one is quoted in an error, and that as HTML
CLASSES = "classes"  # names of CSS classes of the page
ICON = "icon"  # the same, of Font Awesome
MODEL = "model"  # another widget, or several
END = "end"  # a widget and a trait of it, which the page links to another one
MEDIA_TYPE = "media type"  # what `value`'s bytes are
BYTES = "bytes"  # binary content of a medium
FILES = "files"  # what was uploaded, which the page knows
OUTPUTS = "outputs"  # outputs, as a cell has them
AUTOPLAY = "autoplay"  # a medium begins by itself
SWITCH_HTML = "switch"  # makes a LABEL HTML

_KINDS = {
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
_BY_NAME = {name: kind for kind, names in _KINDS.items() for name in words(names)}

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
    """What a trait of the model of this name is to the page; None where it is not known."""
    return _OF_ONE.get((model, trait)) or _BY_NAME.get(trait)


def may_link(source: tuple[str, str], target: tuple[str, str]) -> bool:
    """Whether the page may copy one trait to another, past everything that is cleaned here.

    Numbers and the like may go wherever they mean no more than what they are; any other content may
    only go where it would be cleaned in the same way.

    Args:
        source: The name of a model, and of the trait that is copied.
        target: The same, of where it goes.
    """
    kind, goal = kind_of(*source), kind_of(*target)
    if kind == PLAIN:
        return goal in (PLAIN, TEXT, MATH, HTML)
    return kind == goal and kind in (TEXT, MATH, HTML, CSS) and source[1] == target[1]
