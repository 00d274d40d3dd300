"""The timeline in the output of `%timeline`, for pages that have widgets and no panel.

VS Code and others load no extensions of JupyterLab, but show the models of ipywidgets. The kernel's
front end makes these itself, and is a view like the panel: it sends the same requests. The ids of
its comms are secret, and the front end takes the messages on them: a cell can neither press a
button nor change a text here. Texts of cells only become options of a list, or escaped text.
"""

from __future__ import annotations

import html
import secrets
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from wasm_kernel.outputs.bundle import WIDGET_VIEW
from wasm_kernel.result import CommMessage, first_of, readable, readable_time

Content = dict[str, Any]
Ask = Callable[[Content], Awaitable[Content]]
"""Sends a request of `docs/timeline.md`, and returns its reply."""
Send = Callable[[Content, CommMessage], None]

TARGET = "jupyter.widget"
_VERSION = {"version_major": 2, "version_minor": 0}
_PROTOCOL = {"version": "2.1.0"}
_BASE, _CONTROLS = "@jupyter-widgets/base", "@jupyter-widgets/controls"
_ROWS = 12
_VARIABLES_MOST = 50  # variables that are shown
_SHOWN_CHARACTERS = 10_000
_BUTTONS = {
    "go": "Go back to here",
    "files": "Go back, with files",
    "changes": "What changed?",
    "undo": "Undo",
    "redo": "Redo",
    "checkpoint": "Name checkpoint",
}
_FILES = {
    "files_back": "Files brought back",
    "files_removed": "Files removed",
    "files_missed": "Files that could not be brought back",
    "files_left": "Files stay as they are",
}
_NO_STATE = "This cell left no state: choose another row."
_OUTCOMES = {
    "error": "error",
    "interrupted": "interrupted",
    "fuel": "out of fuel",
    "time": "out of time",
    "memory": "out of memory",
    "lost": "sandbox lost",
}


class TimelineWidget:
    """A list of the states, buttons, and a text with the outcome of the last one.

    Attributes:
        comms: The ids of its models.
        bundle: The data of the output that shows it.
    """

    def __init__(self, ask: Ask, send: Send, parent: Content, tree: Content) -> None:
        self._ask = ask
        self._send = send
        self._names: dict[str, str] = {}  # names of models, by their comms
        self._ids: dict[str, str] = {}
        self._states: list[int] = []  # the states of the rows; 0 for a cell that left none
        self._parents: dict[int, int] = {}  # the parents of the states
        self._chosen = self._here = 0
        self._name = ""
        self._open(parent, tree)
        self.comms = frozenset(self._names)
        self.bundle = {WIDGET_VIEW: {**_VERSION, "model_id": self._ids["box"]}}

    def _open(self, parent: Content, tree: Content) -> None:
        def model(name: str, kind: str, state: Content, module: str = _CONTROLS) -> str:
            comm = self._ids[name] = secrets.token_hex(16)
            self._names[comm] = name
            about = {"_model_module": module, "_model_name": f"{kind}Model"}
            about |= {"_view_module": module, "_view_name": f"{kind}View"}
            version = "2.0.0"  # the version of both modules, in ipywidgets 8
            about |= {"_model_module_version": version, "_view_module_version": version}
            data = {"state": {**about, **state}, "buffer_paths": []}
            message = CommMessage("open", comm, data, target_name=TARGET, metadata=_PROTOCOL)
            self._send(parent, message)
            return f"IPY_MODEL_{comm}"

        wide = model("layout", "Layout", {"width": "100%"}, _BASE)
        rows = {**self._rows(tree), "description": "States", "rows": _ROWS, "layout": wide}
        states = model("states", "Select", rows)
        buttons = [model(name, "Button", {"description": text}) for name, text in _BUTTONS.items()]
        named = model("name", "Text", {"placeholder": "a name for the current state", "value": ""})
        said = model("said", "HTML", {"value": ""})
        upper = model("upper", "HBox", {"children": buttons[:-1]})
        lower = model("lower", "HBox", {"children": [named, buttons[-1]]})
        model("box", "VBox", {"children": [states, upper, lower, said]})

    def _update(self, name: str, **state: Any) -> None:
        data = {"method": "update", "state": state, "buffer_paths": []}
        self._send({}, CommMessage("msg", self._ids[name], data))

    def show(self, tree: Content) -> None:
        """Shows the states as they are now; the chosen row follows memory to another state."""
        self._update("states", **self._rows(tree))

    def _rows(self, tree: Content) -> Content:
        if tree["here"] != self._here:
            self._here = self._chosen = tree["here"]
        rows = [*_rows(tree)]
        self._states = [state for state, _ in rows]
        self._parents = {each["id"]: each["parent"] for each in tree["states"]}
        index = self._states.index(self._chosen) if self._chosen in self._states else None
        return {"_options_labels": [text for _, text in rows], "index": index}

    def close(self, parent: Content) -> None:
        """Takes the widget from the page."""
        for comm in self.comms:
            self._send(parent, CommMessage("close", comm))

    async def heard(self, message: CommMessage) -> None:
        """Takes a message of the page: a choice, a name, or a pressed button."""
        name = self._names[message.comm_id]
        state, content = message.data.get("state"), message.data.get("content")
        if isinstance(state, dict):
            index, value = state.get("index"), state.get("value")
            if name == "states" and isinstance(index, int) and 0 <= index < len(self._states):
                self._chosen = self._states[index]
            elif name == "name" and isinstance(value, str):
                self._name = value
        elif name in _BUTTONS and isinstance(content, dict) and content.get("event") == "click":
            self._say(await self._pressed(name))

    async def _pressed(self, button: str) -> str:
        request: Content = {"request": button, "id": 0}
        if button in ("go", "files", "changes"):
            if not self._chosen:
                return _NO_STATE
            request["state"] = self._chosen
        if button == "files":
            request |= {"request": "go", "files": True}
        elif button == "changes":
            request["since"] = self._parents[self._chosen]
        elif button == "checkpoint":
            request["name"] = self._name
        reply = await self._ask(request)
        return reply.get("error") or (_variables(reply) if button == "changes" else _files(reply))

    def _say(self, text: str) -> None:
        lines = html.escape(text[:_SHOWN_CHARACTERS])
        self._update("said", value=f'<pre role="status">{lines}</pre>' if lines else "")


def _rows(tree: Content) -> Iterator[tuple[int, str]]:
    """Yields each row's state, 0 for a cell that left none, and its text."""
    states = {each["id"]: each for each in tree["states"]}
    line, at = set[int](), tree["here"]
    while at in states and at not in line:
        line.add(at)
        at = states[at]["parent"]
    above = 0
    for number, each in sorted(states.items()):
        is_here = number == tree["here"]
        facts = ["here" if is_here else "", _OUTCOMES.get(each["outcome"], "")]
        facts.append("" if number in line else "undone")
        if each["parent"] != above and each["parent"] in states:
            facts.append(f"after {_place(states[each['parent']])}")
        facts += [f"checkpoint {name}" for name in each["names"]]
        facts.append("sent requests, can't be unsent" if each["sent"] else "")
        facts.append("" if each["seconds"] is None else readable_time(each["seconds"]))
        facts.append(readable(each["bytes"]))
        mark = "\u25c9" if is_here else "\u25cf" if number in line else "\u25cb"
        yield number, _text(mark, each, facts)
        above = number
        for cell in tree["lost"]:
            if cell["at"] == number:
                yield 0, _text("\u25a0", cell, [_OUTCOMES[cell["outcome"]], "left no state"])


def _text(mark: str, row: Content, facts: list[str]) -> str:
    start = " ".join(part for part in (mark, _place(row), row["label"]) if part)
    return " \u00b7 ".join([start, *filter(None, facts)])


def _place(row: Content) -> str:
    if row["cell"]:
        return f"[{row['cell']}]"
    return "earlier" if row["label"] else "start"


def _variables(reply: Content) -> str:
    def shown(value: Content | None) -> str:
        return "-" if value is None else value["text"] or value["type"]

    found = reply["variables"]
    lines = [
        f"{each['name']}: {shown(each['before'])} \u2192 {shown(each['after'])}" for each in found
    ]
    return "\n".join(first_of(lines, _VARIABLES_MOST)) or "No variable changed."


def _files(reply: Content) -> str:
    lines = [
        f"{text}: {', '.join(reply[kind])}." for kind, text in _FILES.items() if reply.get(kind)
    ]
    return "\n".join(lines)
