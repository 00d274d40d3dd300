"""ATTACKS 25: which messages may reach the page's widgets."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from typing import Any

import comm
import ipywidgets
import pytest
from comm.base_comm import BaseComm
from hypothesis import given
from hypothesis import strategies as st
from ipywidgets.widgets import widget_link
from ipywidgets.widgets.widget import _instances, _registry, _remove_buffers

from tests.outputs.conftest import Page, identity, opening
from tests.outputs.payloads import PAYLOADS
from tests.outputs.strict import problems_in
from wasm_kernel.outputs import widget_models
from wasm_kernel.outputs.bundle import Mode
from wasm_kernel.outputs.cleaner import Cleaner
from wasm_kernel.outputs.widget_models import BASE, CONTROLS, OUTPUT, VIEWS
from wasm_kernel.outputs.widgets import CONTROL, WIDGETS
from wasm_kernel.result import CommMessage

SERVER = "http://127.0.0.1:9"
IMG = "<img src=x onerror=alert(1)>"
LEFT = "<img>"  # the part of the HTML that is left
PNG = b"\x89PNG\r\n\x1a\n" + bytes(50)
ALL_CLASSES = [klass for _, klass in _registry.items() if klass.__name__ != "_Media"]


# -- what passes


class Recorded(BaseComm):
    """A comm without a front end."""

    def publish_msg(self, *args: Any, **fields: Any) -> None:
        """Does nothing."""


@pytest.fixture
def widgets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets the test make widgets in its own process."""
    monkeypatch.setattr(comm, "create_comm", Recorded)
    yield
    ipywidgets.Widget.close_all()


def state_of(widget: Any) -> tuple[dict[str, Any], list[Any], list[bytes]]:
    state, paths, buffers = _remove_buffers(widget.get_state())
    return json.loads(json.dumps(state)), paths, [bytes(each) for each in buffers]


def made(klass: Any) -> Any:
    if klass in (widget_link.Link, widget_link.DirectionalLink):
        ends = ipywidgets.IntSlider(), ipywidgets.IntText()
        return klass((ends[0], "value"), (ends[1], "value"))
    if klass in (ipywidgets.SelectionSlider, ipywidgets.SelectionRangeSlider):
        return klass(options=["a", "b"])
    return klass()


@pytest.mark.parametrize("klass", ALL_CLASSES, ids=lambda klass: klass.__name__)
def test_every_core_widget_passes_as_it_is(widgets: None, page: Page, klass: Any) -> None:
    made(klass)
    for widget in list(_instances.values()):
        state, paths, buffers = state_of(widget)
        passed = page.open(widget.model_id, state, *buffers, paths=paths)
        expected = state | ({"autoplay": False} if "autoplay" in state else {})
        assert passed.data == {"state": expected, "buffer_paths": paths}
        assert passed.buffers == tuple(buffers)
    assert set(page.told) <= {"sounds and videos that begin by themselves"}


LOOKS = {
    "Layout": {
        "width": "calc(100% - 20px)",
        "grid_template_areas": '"a b" "c d"',
        "margin": "0 auto",
    },
    "ButtonStyle": {"button_color": "rgb(1, 2, 3)", "font_weight": "bold"},
    "Text": {"value": "<script>text</script>", "placeholder": "<i>"},
    "IntSlider": {"readout_format": "~s", "_dom_classes": ["widget-interact", "mine"]},
    "DatePicker": {"value": {"year": 2024, "month": 0, "date": 3}, "step": "any"},
    "Label": {"value": "$x^2$ <b>text</b>"},
    "HBox": {"children": ["IPY_MODEL_abc", "IPY_MODEL_def"], "layout": "IPY_MODEL_xyz"},
    "HTML": {"value": "100%|<b>x</b>| 3/3 [00:00&lt;00:00]"},
    "Combobox": {"options": ['"><img src=x onerror=alert(1)>']},
}


@pytest.mark.parametrize(("name", "traits"), LOOKS.items(), ids=lambda value: str(value)[:20])
def test_everyday_traits_of_widgets_pass(page: Page, name: str, traits: dict[str, Any]) -> None:
    module = BASE if name == "Layout" else CONTROLS
    state = page.open("w1", identity(name, module) | traits).data["state"]
    assert {key: state[key] for key in traits} == traits
    assert not page.told


# -- which widgets there are


@pytest.mark.parametrize(
    "changes",
    [
        {"_model_module": "bqplot", "_model_name": "FigureModel"},
        {"_model_module": "anywidget", "_model_name": "AnyModel", "_esm": "export default {}"},
        {"_model_module": "@jupyter-widgets/base", "_model_name": "DOMWidgetModel"},
        {"_model_name": "NoSuchModel"},
        {"_view_module": "bqplot", "_view_name": "Figure"},
        {"_view_name": "HTMLView"},
        {"_view_module": "@jupyter-widgets/output"},
        {"_model_module_version": IMG},
        {"_view_module_version": "2.0.0 || *"},
        {"_model_module": ["@jupyter-widgets/controls"]},
        {"_model_name": None},
        {"_model_name": "__proto__"},
    ],
)
def test_any_other_widget_gives_way_to_a_sentence(page: Page, changes: dict[str, Any]) -> None:
    passed = page.open("w1", identity("Text") | {"value": IMG} | changes)
    state = passed.data["state"]
    assert (state["_model_name"], state["_view_name"]) == ("HTMLModel", "HTMLView")
    assert "would run code of its own" in state["value"]
    assert "onerror" not in json.dumps(passed.data)
    assert page.told[0].startswith("widgets that bring code of their own")
    assert page.update("w1", value=IMG) is None
    again = page.update("w1", **(identity("Text") | changes))
    assert again is None or again["_model_name"] in ("HTMLModel", "TextModel")


def test_the_module_of_a_refused_widget_is_named_and_can_not_be_html(page: Page) -> None:
    page.open("w1", {"_model_module": f"x{IMG}y", "_model_name": "M"})
    assert page.told == ["widgets that bring code of their own (ximgsrcxonerroralert1y)"]


@pytest.mark.parametrize("name", ["_model_name", "_view_name", "_view_module", "_model_module"])
def test_a_widget_can_not_become_another_one(page: Page, name: str) -> None:
    page.make("Text", value=IMG)
    assert page.update("w1", **{name: "HTMLView"}) == {}
    assert page.told == ["a widget that becomes another one"]


def test_the_whole_state_of_a_known_widget_passes_again(page: Page) -> None:
    state = page.make("IntSlider", value=3)
    assert page.update("w1", **state) == state


def test_the_page_may_ask_for_a_widget_that_was_opened_before_this_kernel(page: Page) -> None:
    assert page.update("w1", value=3) is None
    whole = identity("HTML") | {"value": f"<b>x</b>{IMG}"}
    assert page.update("w1", **whole)["value"] == f"<b>x</b>{LEFT}"
    assert page.update("w1", value=IMG)["value"] == LEFT


@pytest.mark.parametrize("target", ["mine", "jupyter.widget.control", "jupyter.widget.version"])
def test_other_channels_are_not_opened(page: Page, target: str) -> None:
    assert page.out(opening("w1", {}, target_name=target)) is None
    assert target in page.told[0]
    assert page.out(CommMessage("msg", "w1", {"anything": 1})) is None


@pytest.mark.parametrize("comm_id", ["x" * 65, "a b", IMG, "__proto__", "a/b", "é"])
def test_a_comm_has_a_plain_name(page: Page, comm_id: str) -> None:
    assert page.out(opening(comm_id, identity("Text"))) is None


def test_widgets_load_no_module_typeset_tex_and_get_no_classes_of_the_page(page: Page) -> None:
    message = opening("w1", identity("Text"), target_module="evil")
    assert page.lets(message).target_module is None
    value = page.make("Label", value=r"$\href{javascript:alert(1)}{x}$")["value"]
    assert r"\href" not in value
    worn = ["jp-Dialog", "lm-mod-hidden", "mine", "widget-interact", "a b", "cm-editor", 5]
    assert page.make("VBox", _dom_classes=worn)["_dom_classes"] == ["mine", "widget-interact"]


# -- messages to widgets

SINKS: list[tuple[str, str, Any]] = [
    ("HTML", "value", [IMG]),
    ("Label", "value", [IMG]),
    ("FloatSlider", "readout_format", IMG),
    ("FloatsInput", "format", f"invalid {IMG}"),
    ("IntSlider", "orientation", "constructor"),
    ("Button", "button_style", "__proto__"),
    ("Button", "icon", "x jp-Dialog"),
    ("ToggleButtons", "icons", ["check", "x lm-mod-hidden"]),
    ("Image", "format", "url"),
    ("Image", "value", "http://127.0.0.1:9/x"),
    ("Audio", "format", "mp3;" + IMG),
    ("HBox", "children", [f"IPY_MODEL_{IMG}"]),
    ("HBox", "layout", "IPY_MODEL___proto__"),
    ("IntSlider", "value", IMG),
    ("DatePicker", "value", {"year": IMG}),
    ("DatePicker", "value", {"__proto__": 1}),
    ("IntSlider", "unknown", 1),
    ("IntSlider", "__proto__", {"x": 1}),
    ("Link", "source", ["IPY_MODEL_nobody", "value"]),
    ("FileUpload", "value", "x"),
]


@pytest.mark.parametrize(("name", "trait", "value"), SINKS, ids=lambda value: str(value)[:30])
def test_wrong_value_of_a_trait_is_left_out(page: Page, name: str, trait: str, value: Any) -> None:
    assert trait not in page.make(name, **{trait: value})
    assert page.told
    assert trait not in page.update("w1", **{trait: value})


ADDRESSES = ["url(http://h/x)", "url('//h')", "image-set('http://h' 1x)", "u\\72l(//h)", "src(//h)"]


@pytest.mark.parametrize(
    ("name", "trait"),
    [("HTMLStyle", "background"), ("Layout", "border_left"), ("ColorPicker", "value")],
)
def test_no_style_loads_anything(page: Page, name: str, trait: str) -> None:
    module = BASE if name == "Layout" else CONTROLS
    for value in ADDRESSES:
        state = page.open("w1", identity(name, module) | {trait: value}).data["state"]
        assert trait not in state, value


BEHIND = ["-2000px", "0 -1px", "calc(0px - 100vw)", "calc(-1 * 5px)", "-.5em"]
BEHIND += ["calc(9px * (0 - (1)))", "calc(0px - +5px)", "calc(0px - var(--x))"]


@pytest.mark.parametrize("value", BEHIND)
def test_no_widget_leaves_its_place(page: Page, value: str) -> None:
    traits = dict.fromkeys(("margin", "top", "left", "right", "bottom"), value)
    state = page.open("w1", identity("Layout", BASE) | traits).data["state"]
    assert not state.keys() & traits.keys()


def test_html_in_widgets_is_that_of_outputs() -> None:
    armed = [each.armed(SERVER) for each in PAYLOADS if "text/html" in each.data]
    for payload in armed[::4]:
        page, text = Page(), payload.data["text/html"]
        for state in (
            page.make("HTML", value=text),
            page.make("HTMLMath", "w2", value=text),
            page.update("w1", value=text),
        ):
            assert problems_in({"text/html": state.get("value", "")}) == [], payload.name
        described = page.make("Checkbox", "w3", description=text, description_allow_html=True)
        assert problems_in({"text/html": described.get("description", "")}) == [], payload.name


def test_a_description_that_becomes_html_later_is_cleaned_then_or_emptied(page: Page) -> None:
    text = f"<b>x</b>{IMG}"
    assert page.make("Text", description=text)["description"] == text
    assert page.update("w1", description_allow_html=True) == {
        "description_allow_html": True,
        "description": f"<b>x</b>{LEFT}",
    }
    assert page.update("w1", description=text)["description"] == f"<b>x</b>{LEFT}"
    assert page.update("w1", description_allow_html=False) == {"description_allow_html": False}
    assert page.update("w1", description=text)["description"] == text
    page.make("Text", description="<b>" + "x" * 5000)
    assert page.update("w1", description_allow_html=True)["description"] == ""


def test_the_check_of_outputs_in_a_widget_ends_with_the_cell() -> None:
    asked = itertools.count()
    html = "<b style='color: red'>x</b>" * 100
    outputs = [{"output_type": "display_data", "data": {"text/html": html}}]
    message = opening("w1", identity("Output", OUTPUT) | {"outputs": outputs, "msg_id": "m"})
    passed = Cleaner(Mode.SAFE).comm(message, lambda: next(asked) > 50)
    assert passed.removed == ("a part that was still being checked when the cell ended",)


def test_outputs_in_a_widget_are_cleaned_like_a_cells(page: Page) -> None:
    outputs = [
        {"output_type": "display_data", "data": {"text/html": f"<b>x</b>{IMG}"}, "metadata": {}},
        {"output_type": "display_data", "data": {"application/javascript": "alert(1)"}},
        {"output_type": "stream", "name": "stdout", "text": "a\x1b]52;c;eA==\x07b"},
        {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\x1b[31mx", 5]},
        {"output_type": "update_display_data", "data": {"text/html": IMG}},
        "x",
    ]
    passed = page.open("w1", identity("Output", OUTPUT) | {"outputs": outputs, "msg_id": "m"})
    shown = passed.data["state"]["outputs"]
    assert [each["output_type"] for each in shown] == ["display_data"] * 2 + ["stream", "error"]
    assert shown[0]["data"] == {"text/html": f"<b>x</b>{LEFT}"}
    assert "javascript" not in json.dumps(shown)
    assert shown[2]["text"] == "ab"


# -- binary content


def test_a_picture_is_what_it_says(page: Page) -> None:
    png = identity("Image") | {"format": "png"}
    assert page.open("w1", png, PNG, paths=[["value"]]).buffers == (PNG,)
    assert page.update("w1", b"http://h/x", paths=[["value"]], format="url") == {}
    page.told.clear()
    data = {"method": "update", "state": {"format": "jpeg"}, "buffer_paths": [["value"]]}
    assert not page.lets(CommMessage("msg", "w1", data, buffers=(PNG,))).buffers


def test_an_svg_picture_is_cleaned(page: Page) -> None:
    svg = (
        b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script><rect width="5"/></svg>'
    )
    state = identity("Image") | {"format": "svg+xml"}
    (picture,) = page.open("w1", state, svg, paths=[["value"]]).buffers
    assert b"script" not in picture
    assert b"rect" in picture


PATHS = [["__proto__", "x"], ["constructor", "prototype", "x"], ["layout"], ["_view_name"]]


@pytest.mark.parametrize("path", [*PATHS, ["value", "x"], [], "value", [["value"]], [None]])
def test_binary_content_goes_nowhere_else(page: Page, path: Any) -> None:
    for name in ("Image", "FileUpload", "Text"):
        passed = page.open("w1", identity(name), PNG, paths=[path])
        assert passed.buffers == ()
        assert passed.data["buffer_paths"] == []


def test_files_keep_their_content(page: Page) -> None:
    file = {"name": "a", "type": "b", "size": 1, "last_modified": 0, "more": IMG}
    page.make("FileUpload")
    data = {
        "method": "echo_update",
        "state": {"value": [file]},
        "buffer_paths": [["value", 0, "content"]],
    }
    passed = page.lets(CommMessage("msg", "w1", data, buffers=(b"x",)))
    assert passed.buffers == (b"x",)
    assert "more" not in passed.data["state"]["value"][0]


PLAYLIST = b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/x.ts\n"


def test_a_list_of_addresses_is_not_a_sound(page: Page) -> None:
    state = identity("Video") | {"format": "mpegurl"}
    assert page.open("w1", state, PLAYLIST, paths=[["value"]]).buffers == ()
    assert page.told == ["sounds and films that are not what they say they are"]
    sound = b"RIFF\x24\x00\x00\x00WAVEfmt "
    state = identity("Video") | {"format": "wav"}
    assert page.open("w2", state, sound, paths=[["value"]]).buffers == (sound,)


def test_nothing_begins_to_play(page: Page) -> None:
    assert page.make("Video", autoplay=True)["autoplay"] is False
    assert page.told == ["sounds and videos that begin by themselves"]


# -- other messages


def test_a_widget_may_take_the_focus_and_no_other_method_passes(page: Page) -> None:
    page.make("Text")
    for wish, fine in (("focus", True), ("blur", True), ("eval", False), (IMG, False)):
        data = {"method": "custom", "content": {"do": wish, "more": IMG}}
        passed = page.out(CommMessage("msg", "w1", data))
        assert (passed is not None) is fine
        assert passed is None or passed.data["content"] == {"do": wish}
    page.make("Text")
    for method in (None, "request_state", "eval", ["update"]):
        assert page.out(CommMessage("msg", "w1", {"method": method, "state": {}})) is None


def test_all_states_at_once_are_cleaned_one_by_one(page: Page) -> None:
    assert page.gate.admits(CommMessage("open", "ctl", target_name=CONTROL))
    states = {
        "h1": {"state": identity("HTML") | {"value": IMG}},
        "i1": {"state": identity("Image") | {"format": "png"}},
        "l1": {
            "state": identity("DirectionalLink")
            | {"source": ["IPY_MODEL_h1", "value"], "target": ["IPY_MODEL_t1", "value"]}
        },
        "t1": {"state": identity("HTMLMath") | {"value": "x"}},
        "x1": {"state": {"_model_module": "bqplot", "_model_name": "M"}, "model_name": IMG},
        "__proto__": {"state": identity("Text")},
        "none": 5,
    }
    data = {
        "method": "update_states",
        "states": states,
        "buffer_paths": [["i1", "state", "value"], ["h1", "state", "value"], ["__proto__", "x"]],
    }
    passed = page.lets(CommMessage("msg", "ctl", data, buffers=(PNG, PNG, PNG)))
    shown = passed.data["states"]
    assert set(shown) == {"h1", "i1", "l1", "t1", "x1", "none"}
    assert shown["h1"]["state"]["value"] == LEFT
    assert shown["x1"]["model_name"] == shown["none"]["model_name"] == "HTMLModel"
    assert "source" in shown["l1"]["state"]
    assert passed.data["buffer_paths"] == [["i1", "state", "value"]]
    assert passed.buffers == (PNG,)
    assert page.update("h1", value=IMG)["value"] == LEFT


def test_a_closed_widget_is_forgotten(page: Page) -> None:
    page.make("Text")
    assert page.out(CommMessage("close", "w1", {"x": IMG})) == CommMessage("close", "w1")
    assert page.update("w1", value="x") is None


# -- other modes


def test_static_shows_no_widgets_and_trusted_all() -> None:
    page = Page(Mode.STATIC)
    assert page.out(opening("w1", identity("IntSlider"))) is None
    assert page.told == ["widgets"]
    assert page.update("w1", value=1) is None
    assert not page.gate.admits(CommMessage("open", "c", target_name=CONTROL))
    page = Page(Mode.TRUSTED)
    message = CommMessage("open", "c", {"state": {"_model_module": "bqplot"}}, "mine", "module")
    assert page.out(message) is message
    assert page.gate.admits(message)


@pytest.mark.parametrize(
    ("message", "fine"),
    [
        (CommMessage("open", "c1", target_name=CONTROL), True),
        (CommMessage("open", "c1", target_name="mine"), False),
        (CommMessage("open", "c1", {"state": identity("IntSlider")}, WIDGETS), True),
        (CommMessage("open", "c1", {"state": {"_model_module": "x"}}, WIDGETS), False),
        (CommMessage("open", "a b", target_name=CONTROL), False),
        (CommMessage("msg", "c1"), True),
        (CommMessage("close", "c1"), True),
    ],
)
def test_the_page_itself_may_open_few_comms(page: Page, message: CommMessage, fine: bool) -> None:
    assert page.gate.admits(message) is fine


# -- anything at all

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.sampled_from([IMG, "IPY_MODEL_w1", "url(x)", "__proto__", "png", "svg"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)
NAMES = st.sampled_from([*widget_models.KINDS, "format", "value", "_model_name", "_view_name"])


@given(
    st.sampled_from(sorted(VIEWS)),
    st.lists(st.dictionaries(NAMES | st.text(max_size=8), VALUES, max_size=6), max_size=4),
)
def test_whatever_comes_is_cleaned(model: tuple[str, str], states: list[dict[str, Any]]) -> None:
    page = Page()
    module, name = model
    first, *later = [identity(name.removesuffix("Model"), module), *states]
    page.open("w1", first)
    for state in later:
        before = copy.deepcopy(state)
        clean = page.update("w1", **before)
        assert before == state
        for trait, value in clean.items():
            kind = widget_models.kind_of(name, trait)
            assert kind is not None or trait.startswith("_")
            if kind == widget_models.HTML and isinstance(value, str):
                assert problems_in({"text/html": value}) == []
            if kind == widget_models.PLAIN:
                assert "<" not in json.dumps(value)


def test_no_more_widgets_are_known_than_may(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a worker that was taken over could fill the memory of its front end with them."""
    monkeypatch.setattr("wasm_kernel.outputs.widgets.COMMS_MOST", 3)
    for number in range(3):
        page.make("IntSlider", f"w{number}")
    assert page.out(opening("w3", identity("IntSlider"))) is None
    assert page.update("w4", **identity("IntSlider")) is None
    page.out(CommMessage("close", "w0"))
    assert page.update("w5", **identity("IntSlider"))
    assert page.update("w1", value=7) == {"value": 7}
