"""The state of one widget's model, as it may reach the page, with the binary content that it has.

What a trait may hold can depend on another one (a picture's bytes on their type, a description on
whether it is HTML), and each may come in a message of its own; so what the page was told is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wasm_kernel.outputs import raster, sound, widget_models
from wasm_kernel.outputs import removals as told
from wasm_kernel.outputs.patience import patiently
from wasm_kernel.outputs.removals import Refused, Removals
from wasm_kernel.outputs.widget_models import CONTROLS, PAIRS, Pair, kind_of, may_link
from wasm_kernel.outputs.widget_traits import MODEL_PREFIX, clean_html, clean_trait

IDENTITY = ("_model_module", "_model_name", "_view_module", "_view_name")
VERSIONS = ("_model_module_version", "_view_module_version")
_ENDS = ("source", "target")
_VERSION = re.compile(r"(?:[\^~]?\d{1,4}(?:\.\d{1,4}){0,2})?\Z")
_KEPT_CHARACTERS = 500
_RASTER = {"jpg": "image/jpeg"}

Buffers = list[tuple[list[Any], bytes]]
"""Pairs of a path into a state and the content that belongs there."""


@dataclass
class Model:
    """What the page knows of one widget.

    `description` is kept where it would read differently as HTML; None where it is too long to be.
    """

    pair: Pair
    html: bool = False
    description: str | None = ""
    media: str = ""
    ends: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its model."""
        return self.pair.model[1]


Find = Callable[[str], Model | None]


def identified(state: Mapping[str, Any]) -> Model:
    """The model that a whole state names.

    Raises:
        Refused: it is none whose code comes with the front end; the text names its module.
    """
    parts = [state.get(name) for name in IDENTITY]
    named = isinstance(parts[0], str) and isinstance(parts[1], str)
    pair = PAIRS.get((str(parts[0]), str(parts[1]))) if named else None
    if pair is None or not (parts[3] is None or (parts[2], parts[3]) == pair.view):
        raise Refused(_module(state))
    if not all(isinstance(v := state.get(n, ""), str) and _VERSION.match(v) for n in VERSIONS):
        raise Refused(_module(state))
    return Model(pair)


def _module(state: Mapping[str, Any]) -> str:
    for name in ("_model_module", "_view_module"):
        module = state.get(name)
        if isinstance(module, str) and module not in (widget_models.BASE, CONTROLS):
            return "".join(c for c in module[:80] if c.isalnum() or c in "@/._-")
    return "an unknown kind"


def clean_state(
    model: Model, state: Mapping[str, Any], buffers: Buffers, find: Find, removals: Removals
) -> tuple[dict[str, Any], Buffers]:
    """A state, or a part of one, as it may reach the page.

    Args:
        model: Its model; takes note of what the page will know.
        state: The traits.
        buffers: The binary content among them.
        find: The model behind a widget's id.
        removals: Hears of what was taken out.
    """
    clean: dict[str, Any] = {}
    for name, value in patiently(state.items()):
        if name in (*_ENDS, "description", "description_allow_html"):
            continue
        try:
            if name in (*IDENTITY, *VERSIONS):
                clean[name] = _as_before(model, name, value)
            else:
                clean[name] = clean_trait(model.name, name, value, removals)
        except Refused as refused:
            removals.add(str(refused))
    if kind_of(model.name, "format") == widget_models.MEDIA_TYPE and clean.get("format"):
        model.media = clean["format"]
    _describe(model, state, clean, removals)
    _link(model, state, clean, find, removals)
    return clean, [pair for path, data in buffers for pair in _fit(model, path, data, removals)]


def _as_before(model: Model, name: str, value: Any) -> Any:
    if name in VERSIONS:
        known = isinstance(value, str) and bool(_VERSION.match(value))
    else:
        own = dict(zip(IDENTITY, (*model.pair.model, *model.pair.view), strict=True))
        known = value == own[name] or (name.startswith("_view") and value is None)
    if not known:
        raise Refused("a widget that becomes another one")
    return value


def _describe(
    model: Model, state: Mapping[str, Any], clean: dict[str, Any], removals: Removals
) -> None:
    """A description is text, or HTML from the moment on at which the page is told so."""
    if "description_allow_html" in state:
        model.html = clean["description_allow_html"] = state["description_allow_html"] is True
    text = state.get("description")
    if "description" in state:
        marked = isinstance(text, str) and ("<" in text or "&" in text)
        short = isinstance(text, str) and len(text) <= _KEPT_CHARACTERS
        model.description = (text if short else None) if marked else ""
    elif "description_allow_html" in clean and model.html and model.description != "":
        text = model.description or ""
    else:
        return
    try:
        as_html = model.html and model.description != ""
        cleaned = clean_html(text, removals) if as_html else None
        clean["description"] = (
            cleaned if as_html else clean_trait(model.name, "description", text, removals)
        )
    except Refused as refused:
        removals.add(str(refused))
        clean.pop("description", None)


def _link(
    model: Model, state: Mapping[str, Any], clean: dict[str, Any], find: Find, removals: Removals
) -> None:
    """Which traits the page copies from one widget to another."""
    if not any(name in state for name in _ENDS):
        return
    ends = model.ends | {name: state[name] for name in _ENDS if name in state}
    both = [_end(ends.get(name), find) for name in _ENDS]
    source, target = both
    fine = source is not None and target is not None and may_link(source, target)
    if fine and model.name == "LinkModel":
        assert source is not None
        assert target is not None
        fine = may_link(target, source)
    if fine:
        model.ends = ends
        clean.update({name: ends[name] for name in _ENDS})
    else:
        removals.add("links between widgets that would pass on what has to be cleaned")


def _end(value: Any, find: Find) -> tuple[str, str] | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    reference, trait = value
    if not (isinstance(reference, str) and isinstance(trait, str)):
        return None
    other = find(reference.removeprefix(MODEL_PREFIX))
    return None if other is None else (other.name, trait)


def _fit(model: Model, path: Sequence[Any], data: bytes, removals: Removals) -> Buffers:
    """The content with its path, where it may have one."""
    kind = kind_of(model.name, "value")
    try:
        if kind == widget_models.BYTES and list(path) == ["value"]:
            return [(["value"], _medium(model, data, removals))]
        if kind == widget_models.FILES and len(path) == 3:
            first, at, last = path
            if first == "value" and isinstance(at, int) and last == "content":
                return [(["value", at, "content"], data)]
    except Refused as refused:
        removals.add(str(refused))
        return []
    removals.add("binary content where none belongs")
    return []


def _medium(model: Model, data: bytes, removals: Removals) -> bytes:
    if not data:
        return data
    if model.name != "ImageModel":
        if not sound.is_known(data):
            raise Refused(told.RECORDINGS)
        return data
    media = model.media or "png"
    if media in ("svg", "svg+xml"):
        from wasm_kernel.outputs.svg import clean_svg

        return clean_svg(data.decode("utf-8", "replace"), removals).encode()
    known = raster.SIGNATURES.get(_RASTER.get(media, f"image/{media}"))
    if known is None or not known(data[:64]):
        raise Refused(told.PICTURES)
    return data
