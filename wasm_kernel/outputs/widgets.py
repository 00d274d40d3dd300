"""What the guest may say to widgets in the page.

A widget's model is code of the page's own, which believes what it is told. So in `safe` mode there
are only the models that come with every front end, and what they are told is cleaned, trait by
trait. In the place of any other widget stands a line that says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from itertools import islice
from typing import Any

from wasm_kernel.outputs.bundle import Mode
from wasm_kernel.outputs.patience import patiently
from wasm_kernel.outputs.removals import Refused, Removals
from wasm_kernel.outputs.widget_models import CONTROLS, PAIRS
from wasm_kernel.outputs.widget_states import (
    IDENTITY,
    Buffers,
    Model,
    clean_state,
    identified,
)
from wasm_kernel.outputs.widget_traits import ID
from wasm_kernel.result import COMMS_MOST, CommMessage

WIDGETS = "jupyter.widget"
CONTROL = "jupyter.widget.control"

_VERSION = re.compile(r"\d{1,4}(?:\.\d{1,4}){0,2}\Z")
_PATHS_MOST = 10_000
_HTML = PAIRS[(CONTROLS, "HTMLModel")]
_STANDS_FOR = (
    "<em>[wasm-kernel] A widget of {module} is not shown here: it would run code of its own in "
    "your page. c.WasmKernel.outputs = 'trusted' allows it.</em>"
)


class WidgetGate:
    """Lets messages on comms out to the page. The guest's thread owns it; one a kernel."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._models: dict[str, Model] = {}
        self._refused: dict[str, str] = {}  # the module, by the comm of what stands in its place
        self._controls: set[str] = set()

    def admits(self, message: CommMessage) -> bool:
        """Whether the page may open a comm to this target in the guest; it may then be answered."""
        if self._mode is Mode.TRUSTED or message.kind != "open":
            return True
        if self._mode is Mode.STATIC or not ID.match(message.comm_id):
            return False
        if message.target_name == CONTROL:
            self._controls.add(message.comm_id)
            return True
        state = _object(message.data.get("state"))
        return message.target_name == WIDGETS and self._register(message.comm_id, state, Removals())

    def out(self, message: CommMessage, removals: Removals) -> CommMessage | None:
        """A message of the guest as it may reach the page; None where none of it may.

        Args:
            message: The message.
            removals: Hears of what was taken out.
        """
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
        return self._said(message, removals)

    def _opened(self, message: CommMessage, removals: Removals) -> CommMessage | None:
        if message.target_name != WIDGETS or not ID.match(message.comm_id):
            removals.add(f"a channel to {_named(message.target_name)}, which is no widget's")
            return None
        state, buffers = self._entered(message.comm_id, message.data, message.buffers, removals)
        return CommMessage(
            "open",
            message.comm_id,
            {"state": state, "buffer_paths": [path for path, _ in buffers]},
            target_name=WIDGETS,
            metadata=_versioned(message.metadata),
            buffers=tuple(data for _, data in buffers),
        )

    def _entered(
        self, comm_id: str, data: Mapping[str, Any], buffers: tuple[bytes, ...], removals: Removals
    ) -> tuple[dict[str, Any], Buffers]:
        """The first state of a model, or that of what stands in its place."""
        state = _object(data.get("state"))
        if not self._register(comm_id, state, removals):
            return _instead_of(self._refused[comm_id]), []
        placed = _placed(data.get("buffer_paths"), buffers)
        return clean_state(self._models[comm_id], state, placed, self._find, removals)

    def _register(self, comm_id: str, state: Mapping[str, Any], removals: Removals) -> bool:
        try:
            model = identified(state)
        except Refused as refused:
            module = str(refused)
            self._refused[comm_id] = module
            self._models[comm_id] = Model(_HTML)
            removals.add(f"widgets that bring code of their own ({module})")
            return False
        self._refused.pop(comm_id, None)
        self._models[comm_id] = model
        return True

    def _find(self, comm_id: str) -> Model | None:
        return self._models.get(comm_id)

    def _closed(self, message: CommMessage) -> CommMessage | None:
        known = self._models.pop(message.comm_id, None) is not None
        self._refused.pop(message.comm_id, None)
        if message.comm_id in self._controls:
            self._controls.discard(message.comm_id)
            known = True
        # of a comm that the page opened to nobody, too: it has to hear of that
        return CommMessage("close", message.comm_id) if known or ID.match(message.comm_id) else None

    def _said(self, message: CommMessage, removals: Removals) -> CommMessage | None:
        data = message.data
        method = data.get("method")
        if method == "custom":
            return self._custom(message)
        if method not in ("update", "echo_update"):
            return None
        state = _object(data.get("state"))
        model = self._models.get(message.comm_id)
        if model is None and not all(name in state for name in IDENTITY):
            return None  # of a comm that was refused
        if model is None or message.comm_id in self._refused:
            if message.comm_id in self._refused and not all(name in state for name in IDENTITY):
                return None
            clean, buffers = self._entered(message.comm_id, data, message.buffers, removals)
        else:
            placed = _placed(data.get("buffer_paths"), message.buffers)
            clean, buffers = clean_state(model, state, placed, self._find, removals)
        paths = [path for path, _ in buffers]
        content = {"method": method, "state": clean, "buffer_paths": paths}
        return CommMessage(
            message.kind, message.comm_id, content, buffers=tuple(data for _, data in buffers)
        )

    def _custom(self, message: CommMessage) -> CommMessage | None:
        """The core widgets know two messages of this kind: to take the focus, and to lose it.

        They pass over any other; nobody misses it.
        """
        wish = _object(message.data.get("content")).get("do")
        if message.comm_id not in self._models or wish not in ("focus", "blur"):
            return None
        content = {"method": "custom", "content": {"do": wish}}
        return CommMessage(message.kind, message.comm_id, content)

    def _all_states(self, message: CommMessage, removals: Removals) -> CommMessage | None:
        """The answer to a page that asks for all widgets at once, such as after a reload."""
        if message.data.get("method") != "update_states":
            return None
        told = _object(message.data.get("states"))
        fresh = max(0, COMMS_MOST - len(self._models))  # more than there may be comms are none
        named = [one for one in told if ID.match(one)]
        new = set(islice((one for one in named if one not in self._models), fresh))
        states = {one: _object(told[one]) for one in named if one in self._models or one in new}
        known = {one: _object(it.get("state")) for one, it in states.items()}
        fine = {one for one, state in known.items() if self._register(one, state, removals)}
        placed = _by_widget(_placed(message.data.get("buffer_paths"), message.buffers))
        shown: dict[str, Any] = {}
        every: Buffers = []
        for one, state in patiently(known.items()):
            clean, buffers = _instead_of(self._refused.get(one, "")), list[Any]()
            if one in fine:
                own = placed.get(one, [])
                clean, buffers = clean_state(self._models[one], state, own, self._find, removals)
            shown[one] = _entry(clean)
            every += [([one, "state", *path], data) for path, data in buffers]
        content = {
            "method": "update_states",
            "states": shown,
            "buffer_paths": [path for path, _ in every],
        }
        return CommMessage(
            message.kind, message.comm_id, content, buffers=tuple(data for _, data in every)
        )


def _entry(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model_name": state["_model_name"],
        "model_module": state["_model_module"],
        "model_module_version": state.get("_model_module_version", ""),
        "state": state,
    }


def _instead_of(module: str) -> dict[str, Any]:
    """The state of the line that stands where a widget would: itself one that every page knows."""
    versions = dict.fromkeys(("_model_module_version", "_view_module_version"), "2.0.0")
    identity = dict(zip(IDENTITY, (*_HTML.model, *_HTML.view), strict=True))
    looks = {"description": "", "description_allow_html": False, "placeholder": ""}
    value = _STANDS_FOR.format(module=escape(module))
    return identity | versions | looks | {"_dom_classes": [], "layout": None, "value": value}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _placed(paths: Any, buffers: tuple[bytes, ...]) -> Buffers:
    """Each buffer with the path at which the page would put it; a strange path is no path."""
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
    version = metadata.get("version")
    return {"version": version} if isinstance(version, str) and _VERSION.match(version) else {}


def _named(target: str) -> str:
    return "".join(c for c in target[:60] if c.isalnum() or c in "/._-")
