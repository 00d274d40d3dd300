"""The page's side of the gate that widgets pass."""

from __future__ import annotations

from typing import Any

import pytest

from wasm_kernel.outputs.bundle import Mode
from wasm_kernel.outputs.removals import Removals
from wasm_kernel.outputs.widget_models import CONTROLS, VIEWS
from wasm_kernel.outputs.widgets import WIDGETS, WidgetGate
from wasm_kernel.result import CommMessage


class Page:
    """A gate, and the messages that it let through."""

    def __init__(self, mode: Mode = Mode.SAFE) -> None:
        self.gate = WidgetGate(mode)
        self.told: list[str] = []

    def out(self, message: CommMessage) -> CommMessage | None:
        removals = Removals()
        passed = self.gate.out(message, removals)
        self.told += removals.phrases
        return passed

    def lets(self, message: CommMessage) -> CommMessage:
        """Returns the message that passes in place of a given one."""
        passed = self.out(message)
        assert passed is not None
        return passed

    def open(
        self, comm_id: str, state: dict[str, Any], *buffers: bytes, paths: Any = ()
    ) -> CommMessage:
        return self.lets(opening(comm_id, state, *buffers, paths=paths))

    def make(self, name: str, comm_id: str = "w1", *buffers: bytes, **traits: Any) -> Any:
        """The state that the page gets of a new model of the controls."""
        paths = [["value"]] * bool(buffers)
        return self.open(comm_id, identity(name) | traits, *buffers, paths=paths).data["state"]

    def update(self, comm_id: str, *buffers: bytes, paths: Any = (), **state: Any) -> Any:
        data = {"method": "update", "state": state, "buffer_paths": list(paths)}
        passed = self.out(CommMessage("msg", comm_id, data, buffers=buffers))
        return None if passed is None else passed.data["state"]


def opening(
    comm_id: str, state: dict[str, Any], *buffers: bytes, paths: Any = (), **fields: Any
) -> CommMessage:
    """The message that opens a widget."""
    data = {"state": state, "buffer_paths": list(paths)}
    fields = {"target_name": WIDGETS, "metadata": {"version": "2.1.0"}} | fields
    return CommMessage("open", comm_id, data, buffers=buffers, **fields)


def identity(name: str, module: str = CONTROLS) -> dict[str, Any]:
    view = VIEWS.get((module, f"{name}Model"), (module, f"{name}View"))
    versions = {"_model_module_version": "2.0.0", "_view_module_version": "2.0.0"}
    names = {"_model_module": module, "_model_name": f"{name}Model"}
    return names | {"_view_module": view[0], "_view_name": view[1] or None} | versions


@pytest.fixture
def page() -> Page:
    return Page()
