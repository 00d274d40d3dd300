"""The gate for the guest's messages to widgets in the page, and the state of each widget.

A widget's model is code of the page, which trusts the messages it gets. So in `safe` mode there are
only the models that come with every front end, and their messages are cleaned, trait by trait. A
line of text stands in for any other widget and says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from wasm_kernel.outputs import media, widget_models
from wasm_kernel.outputs import removals as phrases
from wasm_kernel.outputs.bundle import Mode
from wasm_kernel.outputs.limits import stoppable
from wasm_kernel.outputs.removals import NotShowable, Removals
from wasm_kernel.outputs.widget_models import (
    CONTROLS,
    ID,
    MODEL_PREFIX,
    VIEWS,
    clean_html_trait,
    clean_trait,
    kind_of,
    may_link,
)
from wasm_kernel.result import COMMS_MOST, CommMessage

WIDGETS = "jupyter.widget"
CONTROL = "jupyter.widget.control"

_PROTOCOL_VERSION = re.compile(r"\d{1,4}(?:\.\d{1,4}){0,2}\Z")
_PATHS_MOST = 10_000
_HTML = (CONTROLS, "HTMLModel", *VIEWS[CONTROLS, "HTMLModel"])


class WidgetGate:
    """Decides which comm messages reach the page. One per kernel; the guest's thread uses it."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._models: dict[str, Model] = {}
        self._refused: dict[str, str] = {}  # modules of other widgets, by comm
        self._controls: set[str] = set()

    def admits(self, message: CommMessage) -> bool:
        """Returns whether the page may open a comm to this target in the guest, and be answered."""
        if self._mode is Mode.TRUSTED or message.kind != "open":
            return True
        if self._mode is Mode.STATIC or not ID.match(message.comm_id):
            return False
        if message.target_name == CONTROL:
            self._controls.add(message.comm_id)
            return True
        state = _mapping(message.data.get("state"))
        return message.target_name == WIDGETS and self._register(message.comm_id, state, Removals())

    def out(self, message: CommMessage, removals: Removals) -> CommMessage | None:
        """Returns a message of the guest as it may reach the page; None if nothing of it may."""
        if self._mode is Mode.TRUSTED:
            return message
        if self._mode is Mode.STATIC:
            if message.kind == "open":
                removals.add("widgets")
            return None
        if message.kind == "open":
            return self._opened(message, removals)
        if message.kind == "close":
            return self._closed(message)
        if message.comm_id in self._controls:
            return self._all_states(message, removals)
        return self._clean_message(message, removals)

    def _opened(self, message: CommMessage, removals: Removals) -> CommMessage | None:
        is_widget = message.target_name == WIDGETS and ID.match(message.comm_id)
        if not (is_widget and self._has_room(message.comm_id)):
            removals.add(f"a channel to {_named(message.target_name)}, which is not a widget's")
            return None
        state, buffers = self._entered(message.comm_id, message.data, message.buffers, removals)
        more = {"target_name": WIDGETS, "metadata": _versioned(message.metadata)}
        return _with_buffers(message, {"state": state}, buffers, **more)

    def _entered(
        self, comm_id: str, data: Mapping[str, Any], buffers: tuple[bytes, ...], removals: Removals
    ) -> tuple[dict[str, Any], Buffers]:
        """The first state of a model, or the state of the text that stands in for it."""
        state = _mapping(data.get("state"))
        if not self._register(comm_id, state, removals):
            return _instead_of(self._refused[comm_id]), []
        placed = _placed(data.get("buffer_paths"), buffers)
        return clean_state(self._models[comm_id], state, placed, self._models.get, removals)

    def _has_room(self, comm_id: str) -> bool:
        """Returns whether a comm may be open; a worker that was taken over counts none itself."""
        return comm_id in self._models or len(self._models) < COMMS_MOST

    def _register(self, comm_id: str, state: Mapping[str, Any], removals: Removals) -> bool:
        try:
            model = identified(state)
        except NotShowable as refused:
            module = str(refused)
            self._refused[comm_id] = module
            self._models[comm_id] = Model(_HTML)
            removals.add(f"widgets that bring code of their own ({module})")
            return False
        self._refused.pop(comm_id, None)
        self._models[comm_id] = model
        return True

    def _closed(self, message: CommMessage) -> CommMessage | None:
        known = self._models.pop(message.comm_id, None) is not None
        self._refused.pop(message.comm_id, None)
        if message.comm_id in self._controls:
            self._controls.discard(message.comm_id)
            known = True
        # also for a comm that the page opened and the guest has no target for: the page has to know
        return CommMessage("close", message.comm_id) if known or ID.match(message.comm_id) else None

    def _clean_message(self, message: CommMessage, removals: Removals) -> CommMessage | None:
        data = message.data
        method = data.get("method")
        if method == "custom":
            return self._custom(message)
        if method not in ("update", "echo_update"):
            return None
        state = _mapping(data.get("state"))
        model = self._models.get(message.comm_id)
        if model is not None and message.comm_id not in self._refused:
            placed = _placed(data.get("buffer_paths"), message.buffers)
            clean, buffers = clean_state(model, state, placed, self._models.get, removals)
        elif all(name in state for name in IDENTITY) and self._has_room(message.comm_id):
            clean, buffers = self._entered(message.comm_id, data, message.buffers, removals)
        else:
            return None  # its comm was refused
        return _with_buffers(message, {"method": method, "state": clean}, buffers)

    def _custom(self, message: CommMessage) -> CommMessage | None:
        """Passes on the two custom messages that core widgets know: about the focus."""
        wish = _mapping(message.data.get("content")).get("do")
        if message.comm_id not in self._models or wish not in ("focus", "blur"):
            return None
        content = {"method": "custom", "content": {"do": wish}}
        return CommMessage(message.kind, message.comm_id, content)

    def _all_states(self, message: CommMessage, removals: Removals) -> CommMessage | None:
        """The answer to a page that asks for all widgets at once, such as after a reload."""
        if message.data.get("method") != "update_states":
            return None
        listed = _mapping(message.data.get("states"))
        fresh = max(0, COMMS_MOST - len(self._models))  # no more comms are allowed
        named = [comm_id for comm_id in listed if ID.match(comm_id)]
        new = [comm_id for comm_id in named if comm_id not in self._models][:fresh]
        mine = self._models.keys() | new
        states = {each: _mapping(listed[each]).get("state") for each in named if each in mine}
        known = {comm_id: _mapping(state) for comm_id, state in states.items()}
        fine = {each for each, state in known.items() if self._register(each, state, removals)}
        placed = _by_widget(_placed(message.data.get("buffer_paths"), message.buffers))
        shown: dict[str, Any] = {}
        every: Buffers = []
        for comm_id, state in stoppable(known.items()):
            clean, buffers = _instead_of(self._refused.get(comm_id, "")), list[Any]()
            if comm_id in fine:
                model, own = self._models[comm_id], placed.get(comm_id, [])
                clean, buffers = clean_state(model, state, own, self._models.get, removals)
            shown[comm_id] = {
                "model_name": clean["_model_name"],
                "model_module": clean["_model_module"],
                "model_module_version": clean.get("_model_module_version", ""),
                "state": clean,
            }
            every += [([comm_id, "state", *path], data) for path, data in buffers]
        return _with_buffers(message, {"method": "update_states", "states": shown}, every)


def _with_buffers(
    message: CommMessage, content: dict[str, Any], buffers: Buffers, **more: Any
) -> CommMessage:
    """Returns a message with another content, and the buffers that belong into it."""
    content["buffer_paths"] = [path for path, _ in buffers]
    data = tuple(data for _, data in buffers)
    return CommMessage(message.kind, message.comm_id, content, buffers=data, **more)


def _instead_of(module: str) -> dict[str, Any]:
    """The state of the text that stands in for a widget: an HTML widget, which every page knows."""
    versions = dict.fromkeys(("_model_module_version", "_view_module_version"), "2.0.0")
    identity = dict(zip(IDENTITY, _HTML, strict=True))
    looks = {"description": "", "description_allow_html": False, "placeholder": ""}
    value = (
        f"<em>[wasm-kernel] A widget of {escape(module)} is not shown here: it would run code of "
        "its own in your page. c.WasmKernel.outputs = 'trusted' allows it.</em>"
    )
    return identity | versions | looks | {"_dom_classes": [], "layout": None, "value": value}


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _placed(paths: Any, buffers: tuple[bytes, ...]) -> Buffers:
    """Each buffer with the path at which the page would put it; one with a bad path is dropped."""
    listed = paths[:_PATHS_MOST] if isinstance(paths, list) else []
    return [
        (path, data)
        for path, data in zip(listed, buffers, strict=False)
        if isinstance(path, list) and all(isinstance(step, str | int) for step in path)
    ]


def _by_widget(placed: Buffers) -> dict[str, Buffers]:
    """The buffers of each widget's state, with the paths that they have in it."""
    found: dict[str, Buffers] = {}
    for path, data in placed:
        if len(path) > 1 and isinstance(path[0], str) and path[1] == "state":
            found.setdefault(path[0], []).append((path[2:], data))
    return found


def _versioned(metadata: Mapping[str, Any]) -> dict[str, str]:
    version: Any = metadata.get("version")
    is_known = isinstance(version, str) and _PROTOCOL_VERSION.match(version)
    return {"version": version} if is_known else {}


def _named(target: str) -> str:
    return "".join(c for c in target[:60] if c.isalnum() or c in "/._-")


# -- the state of one widget

IDENTITY = ("_model_module", "_model_name", "_view_module", "_view_name")
VERSIONS = ("_model_module_version", "_view_module_version")
_ENDS = ("source", "target")
_MODULE_VERSION = re.compile(r"(?:[\^~]?\d{1,4}(?:\.\d{1,4}){0,2})?\Z")
_KEPT_CHARACTERS = 500
_RASTER = {"jpg": "image/jpeg"}

Buffers = list[tuple[list[Any], bytes]]
"""Pairs of a path into a state and the content that belongs there."""


@dataclass
class Model:
    """The facts that the page knows of one widget.

    A trait may depend on another one (a picture's bytes on their type, a description on whether it
    is HTML), and each may come in a message of its own; so these are remembered. `identity` has the
    values of `IDENTITY`. `description` is kept if it would read differently as HTML;
    None if it is too long to be kept.
    """

    identity: tuple[str, ...]
    html: bool = False
    description: str | None = ""
    media: str = ""
    ends: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the widget's model."""
        return self.identity[1]


Find = Callable[[str], Model | None]


def identified(state: Mapping[str, Any]) -> Model:
    """The model that a whole state names; `NotShowable` if its code is not the front end's."""
    module, name, *shown = (state.get(each) for each in IDENTITY)
    model = (module, name) if isinstance(module, str) and isinstance(name, str) else ("", "")
    view = VIEWS.get(model)
    if view is None or not (shown[1] is None or (*shown,) == view):
        raise NotShowable(_module(state))
    versions = [state.get(name, "") for name in VERSIONS]
    if not all(isinstance(each, str) and _MODULE_VERSION.match(each) for each in versions):
        raise NotShowable(_module(state))
    return Model((*model, *view))


def _module(state: Mapping[str, Any]) -> str:
    for name in ("_model_module", "_view_module"):
        module = state.get(name)
        if isinstance(module, str) and module not in (widget_models.BASE, CONTROLS):
            return "".join(c for c in module[:80] if c.isalnum() or c in "@/._-")
    return "an unknown kind"


def clean_state(
    model: Model, state: Mapping[str, Any], buffers: Buffers, find: Find, removals: Removals
) -> tuple[dict[str, Any], Buffers]:
    """Returns a state, or a part of one, as it may reach the page; the model remembers it."""
    clean: dict[str, Any] = {}
    for name, value in stoppable(state.items()):
        if name in (*_ENDS, "description", "description_allow_html"):
            continue
        try:
            if name in (*IDENTITY, *VERSIONS):
                clean[name] = _as_before(model, name, value)
            else:
                clean[name] = clean_trait(model.name, name, value, removals)
        except NotShowable as refused:
            removals.add(str(refused))
    if kind_of(model.name, "format") == widget_models.MEDIA_TYPE and clean.get("format"):
        model.media = clean["format"]
    _describe(model, state, clean, removals)
    _link(model, state, clean, find, removals)
    return clean, [
        pair for path, data in buffers for pair in _clean_buffer(model, path, data, removals)
    ]


def _as_before(model: Model, name: str, value: Any) -> Any:
    if name in VERSIONS:
        known = isinstance(value, str) and bool(_MODULE_VERSION.match(value))
    else:
        own = dict(zip(IDENTITY, model.identity, strict=True))
        known = value == own[name] or (name.startswith("_view") and value is None)
    if not known:
        raise NotShowable("a widget that becomes another one")
    return value


def _describe(
    model: Model, state: Mapping[str, Any], clean: dict[str, Any], removals: Removals
) -> None:
    """Cleans a description, which is text until the page is told that it is HTML."""
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
        if model.html and model.description != "":
            clean["description"] = clean_html_trait(text, removals)
        else:
            clean["description"] = clean_trait(model.name, "description", text, removals)
    except NotShowable as refused:
        removals.add(str(refused))
        clean.pop("description", None)


def _link(
    model: Model, state: Mapping[str, Any], clean: dict[str, Any], find: Find, removals: Removals
) -> None:
    """Cleans a link, by which the page copies a trait from one widget to another."""
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
        removals.add("links between widgets that would pass on uncleaned content")


def _end(value: Any, find: Find) -> tuple[str, str] | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    reference, trait = value
    if not (isinstance(reference, str) and isinstance(trait, str)):
        return None
    other = find(reference.removeprefix(MODEL_PREFIX))
    return None if other is None else (other.name, trait)


def _clean_buffer(model: Model, path: Sequence[Any], data: bytes, removals: Removals) -> Buffers:
    """The content with its path; empty if no such content belongs at that path."""
    kind = kind_of(model.name, "value")
    try:
        if kind == widget_models.BYTES and list(path) == ["value"]:
            return [(["value"], _medium(model, data, removals))]
        if kind == widget_models.FILES and len(path) == 3:
            first, at, last = path
            if first == "value" and isinstance(at, int) and last == "content":
                return [(["value", at, "content"], data)]
    except NotShowable as refused:
        removals.add(str(refused))
        return []
    removals.add("binary content where none belongs")
    return []


def _medium(model: Model, data: bytes, removals: Removals) -> bytes:
    if not data:
        return data
    if model.name != "ImageModel":
        if not media.is_recorded(data):
            raise NotShowable(phrases.RECORDINGS)
        return data
    kind = model.media or "png"
    if kind in ("svg", "svg+xml"):
        from wasm_kernel.outputs.html import clean_svg

        return clean_svg(data.decode("utf-8", "replace"), removals).encode()
    known = media.IMAGE_SIGNATURES.get(_RASTER.get(kind, f"image/{kind}"))
    if known is None or not known(data[:64]):
        raise NotShowable(phrases.PICTURES)
    return data
