"""ATTACKS 25: the values that links between widgets may pass on."""

from __future__ import annotations

import pytest

from tests.outputs.conftest import Page
from wasm_kernel.outputs import widget_models
from wasm_kernel.outputs.widget_models import VIEWS, may_link


def link(page: Page, kind: str, source: tuple[str, str], target: tuple[str, str]) -> bool:
    page.make(source[0], "a")
    page.make(target[0], "b")
    ends = {"source": ["IPY_MODEL_a", source[1]], "target": ["IPY_MODEL_b", target[1]]}
    return "source" in page.make(kind, "link", **ends)


@pytest.mark.parametrize(
    ("source", "target", "fine"),
    [
        (("IntSlider", "value"), ("IntText", "value"), True),
        (("IntSlider", "value"), ("HTML", "value"), True),
        (("IntSlider", "max"), ("FloatSlider", "value"), True),
        (("Checkbox", "value"), ("Text", "disabled"), True),
        (("ColorPicker", "value"), ("ButtonStyle", "button_color"), False),
        (("Text", "value"), ("HTML", "value"), False),
        (("Text", "value"), ("Label", "value"), False),
        (("Text", "value"), ("Image", "format"), False),
        (("Text", "value"), ("HTML", "_view_name"), False),
        (("Checkbox", "value"), ("Text", "description_allow_html"), False),
        (("TagsInput", "value"), ("VBox", "_dom_classes"), False),
        (("Label", "value"), ("HTML", "value"), False),
    ],
)
def test_links_pass_on_what_needs_no_cleaning(
    page: Page, source: tuple[str, str], target: tuple[str, str], fine: bool
) -> None:
    assert link(page, "DirectionalLink", source, target) is fine


def test_a_link_in_both_ways_is_judged_in_both_and_not_bent_later(page: Page) -> None:
    assert link(page, "DirectionalLink", ("IntSlider", "value"), ("HTML", "value"))
    page.make("Text", "c")
    assert page.update("link", source=["IPY_MODEL_c", "value"]) == {}
    assert page.update("link", target=["IPY_MODEL_c", "value"]) != {}
    assert link(page, "DirectionalLink", ("IntSlider", "value"), ("HTML", "value"))
    assert not link(page, "Link", ("IntSlider", "value"), ("HTML", "value"))


def test_no_chain_of_links_brings_text_where_it_is_cleaned() -> None:
    """Whatever the page copies from trait to trait, text never becomes HTML, style or TeX."""
    models = [name for _, name in VIEWS]
    names = [*widget_models.KINDS, "value", "format", "description"]
    reached = {("TextModel", "value")}
    fresh = set(reached)
    while fresh:
        fresh = {
            (model, name)
            for model in models
            for name in names
            for source in fresh
            if may_link(source, (model, name))
        } - reached
        reached |= fresh
    kinds = {widget_models.kind_of(*one) for one in reached}
    assert kinds == {widget_models.TEXT}
