"""`CellClient`: nbclient's part of a page, with messages of a hostile cell."""

# mypy: disable-error-code="no-untyped-call"
# (nbformat carries no types)

from __future__ import annotations

from typing import Any

import nbformat
import pytest

from wasm_kernel.frontends.batch import notebook_client
from wasm_kernel.frontends.batch.notebook_client import CellClient
from wasm_kernel.frontends.batch.notebooks import merged
from wasm_kernel.frontends.batch.outcome import NotebookEnded


class Page:
    """A notebook of empty cells, whose kernel sends the messages of a test."""

    def __init__(self, cells: int = 1) -> None:
        made = [nbformat.v4.new_code_cell("pass") for _ in range(cells)]
        self.book = nbformat.v4.new_notebook(cells=made)
        self.client = CellClient(self.book, record_timing=False)
        self.client.clear_before_next_output = False  # as at the beginning of each cell

    def tell(self, kind: str, content: dict[str, Any], cell: int = 0) -> None:
        header = {"msg_id": f"cell {cell}", "msg_type": kind}
        msg = {"header": header, "msg_type": kind, "parent_header": header}
        msg |= {"content": content, "metadata": {}, "buffers": []}
        self.client.process_message(msg, self.book.cells[cell], cell)

    def show(self, text: str, cell: int = 0, kind: str = "display_data") -> None:
        shown = {"data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": "a"}}
        self.tell(kind, shown, cell)

    def widget(self, name: str, state: Any, kind: str = "comm_open") -> None:
        content = {"comm_id": name, "target_name": "jupyter.widget", "data": {"state": state}}
        self.tell(kind, content)

    def texts(self, cell: int = 0) -> list[str]:
        outputs = self.book.cells[cell].outputs
        return [each.get("text") or each["data"]["text/plain"] for each in outputs]


def test_a_display_is_updated_wherever_its_cell_has_it_by_now() -> None:
    page = Page(cells=2)
    for text in ("one", "two"):
        page.tell("stream", {"name": "stdout", "text": text})
    page.show("0 %")
    page.book.cells[0].outputs = merged(page.book.cells[0].outputs)
    page.show("100 %", cell=1, kind="update_display_data")
    assert page.texts() == ["onetwo", "100 %"]
    page.tell("clear_output", {"wait": False})
    page.show("new", cell=1)
    assert page.texts() == [] and page.texts(1) == ["new"]


def test_one_display_cannot_be_shown_a_thousand_times_as_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An update is one message, and the notebook's file repeats it at each place of the display."""
    monkeypatch.setattr(notebook_client, "COPIED_BYTES", 1_000_000)
    page = Page()
    for _ in range(20):
        page.show("x")
    with pytest.raises(NotebookEnded):
        page.show("y" * 100_000, kind="update_display_data")
    assert page.texts() == ["x"] * 20


def test_outputs_hold_no_more_values_than_a_notebook_that_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each value takes some 400 bytes of memory in the run, and two bytes in the file."""
    monkeypatch.setattr(notebook_client, "MOST_VALUES", 1_000)
    page = Page()
    for kind in ("display_data", "update_display_data"):
        page.show("[1, 2, {}]" * 1_000, kind=kind)
    shown = {"data": {"application/json": [{"a": 1}] * 40}, "metadata": {}, "transient": {}}
    page.tell("display_data", shown)
    with pytest.raises(NotebookEnded, match="1,000 values"):
        page.tell("execute_result", shown | {"execution_count": 1})
        page.tell("display_data", shown)
    assert len(page.book.cells[0].outputs) <= 3


def test_invalid_widgets_end_no_run_and_many_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook_client, "COPIED_BYTES", 1_000_000)
    area: Any = {"_model_module": "@jupyter-widgets/output", "_model_name": "OutputModel"}
    page = Page()
    opened: list[Any] = [5, None, area, area | {"_model_module": []}, area | {"outputs": 5}]
    for state in opened:
        page.widget("w", state)
    changed: list[Any] = [5, {"msg_id": ""}, {"msg_id": []}]
    for state in changed:
        page.widget("w", state, "comm_msg")
    for number in range(100):
        page.widget("bar", {"value": f"{number} {'x' * 100_000}"}, "comm_msg")
    with pytest.raises(NotebookEnded):
        for number in range(100):
            page.widget(f"bar {number}", {"value": "x" * 100_000})
