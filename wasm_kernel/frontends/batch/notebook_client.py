"""`CellClient`: nbclient's client, for untrusted notebooks in sandboxes without kernels.

nbclient updates displays and follows widgets for the executed notebook, as a front end does for a
page, and trusts the messages that it gets. Here, their effect is bounded.
"""

# mypy: disable-error-code="no-untyped-call"
# (nbformat carries no types)

from __future__ import annotations

import asyncio
import json
import logging
import threading
import uuid
from collections import defaultdict
from contextlib import suppress
from typing import Any

from nbclient.client import NotebookClient, timestamp
from nbclient.exceptions import CellExecutionComplete
from nbclient.jsonutil import json_clean
from nbclient.output_widget import OutputWidget
from nbclient.util import run_hook
from nbformat import NotebookNode
from nbformat.v4 import output_from_msg

from wasm_kernel.frontends.batch.notebooks import MOST_VALUES
from wasm_kernel.frontends.batch.outcome import NotebookEnded
from wasm_kernel.guests.protocol import Output
from wasm_kernel.kernels import messages
from wasm_kernel.kernels.page import CleanListener, CleanPage
from wasm_kernel.outputs.cleaner import Cleaner
from wasm_kernel.policy import MIB
from wasm_kernel.result import CommMessage
from wasm_kernel.service.cell_future import CellFuture
from wasm_kernel.service.cleaning import CleanerLost
from wasm_kernel.service.sandbox import Sandbox

COPIED_BYTES = 64 * MIB
"""The most bytes for copies of displays, and for widgets, in an executed notebook."""
_ENTRY_BYTES = 200  # bytes of an entry without content
_CONTAINER_VALUES = 8  # values that a list or object counts as, by its memory, beside its items
_LOG = logging.getLogger("wasm_kernel.batch")
_ENDED_IT = "The cell has ended the kernel's process."

JsonObject = dict[str, Any]
"""A message of Jupyter, or its content."""


class CellClient(NotebookClient):
    """nbclient's client, with its options, which runs the cells of a notebook."""

    def __init__(self, book: NotebookNode, **options: Any) -> None:
        super().__init__(book, **options)
        self.widget_registry = {"@jupyter-widgets/output": {"OutputModel": _OutputArea}}
        self.changed: set[_OutputArea] = set()
        self.page: NotebookPage | None = None
        self._shown: defaultdict[str, defaultdict[int, list[NotebookNode]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._shown_in: defaultdict[int, set[str]] = defaultdict(set)
        self._kept: dict[tuple[str, str], int] = {}
        self._left = COPIED_BYTES
        self._values = 0

    async def run_cell(self, page: NotebookPage, cell: NotebookNode, place: int) -> None:
        """Runs a cell, as nbclient does with a kernel: with its hooks, its tags and its times.

        Raises `CellExecutionError` if it failed and may not fail; else as `NotebookPage.ended`.
        """
        about = {"cell": cell, "cell_index": place}
        await run_hook(self.on_cell_start, **about)
        if not cell.source.strip() or self.skip_cells_with_tag in cell.metadata.get("tags", []):
            return
        if self.record_timing:
            cell.metadata["execution"] = {}
        await run_hook(self.on_cell_execute, **about)
        cell.outputs, self.clear_before_next_output = [], False
        running = page.begin(cell, place)
        await run_hook(self.on_cell_complete, **about)
        reply = await page.ended(running)
        if self.record_timing:
            cell.metadata["execution"]["shell.execute_reply"] = timestamp(reply)
        await run_hook(self.on_cell_executed, **about, execute_reply=reply)
        await self._check_raise_for_error(cell, place, reply)

    def process_message(
        self, msg: JsonObject, cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        """Takes a message; ignores a widget's if it makes no sense.

        Raises `CellExecutionComplete` when the cell has ended, `NotebookEnded` if there is no room.
        """
        try:
            return super().process_message(msg, cell, cell_index)
        except CellExecutionComplete:
            while self.changed:
                self.changed.pop().tell()
            raise
        except NotebookEnded:
            raise
        except Exception:  # a guest chooses a widget's content, and nbclient does not check it
            if not (msg["msg_type"].startswith("comm") or self.comm_objects):
                raise
            _LOG.debug("a widget's message was passed over", exc_info=True)
            return None

    # -- updates of displays: nbclient finds them by index, which changes as streams are merged

    def output(
        self, outs: list[NotebookNode], msg: JsonObject, display_id: str | None, cell_index: int
    ) -> NotebookNode | None:
        """Adds an output to its cell."""
        self._count_values(msg)
        made: NotebookNode | None = super().output(outs, msg, None, cell_index)
        if made is not None and display_id:
            self._shown[display_id][cell_index].append(made)
            self._shown_in[cell_index].add(display_id)
        return made

    def _update_display_id(self, display_id: str, msg: JsonObject) -> None:
        there = [each for row in self._shown.get(display_id, {}).values() for each in row]
        if not there:
            return
        self._count_values(msg)
        kind = {**msg["header"], "msg_type": "display_data"}
        new = output_from_msg({**msg, "msg_type": "display_data", "header": kind})
        if len(there) > 1:
            self._spend(len(there) * (_size(new["data"]) + _ENTRY_BYTES))
        for each in there:
            each["data"], each["metadata"] = new["data"], new["metadata"]

    def clear_display_id_mapping(self, cell_index: int) -> None:
        """Forgets the displays of a cell whose outputs were cleared."""
        for display_id in self._shown_in.pop(cell_index, ()):
            self._shown[display_id].pop(cell_index, None)

    # -- widgets

    def handle_comm_msg(self, outs: list[NotebookNode], msg: JsonObject, cell_index: int) -> None:
        """Follows the state of a widget."""
        name, data = msg["content"]["comm_id"], msg["content"]["data"]
        paths = zip(data.get("buffer_paths") or [], msg["buffers"], strict=False)
        sizes = {each: _size(value) for each, value in (data.get("state") or {}).items()}
        sizes |= {json.dumps(path): len(buffer) * 4 // 3 for path, buffer in paths}
        for key, size in [((name, each), size) for each, size in {"": 0, **sizes}.items()]:
            self._spend(size + _ENTRY_BYTES - self._kept.get(key, 0))
            self._kept[key] = size + _ENTRY_BYTES
        super().handle_comm_msg(outs, msg, cell_index)

    def _count_values(self, msg: JsonObject) -> None:
        """Counts the values in an output, which take far more memory than their text."""
        left: list[Any] = [msg["content"].get("data")]
        while left and self._values <= MOST_VALUES:
            value = left.pop()
            self._values += 1
            if isinstance(value, dict | list):
                self._values += _CONTAINER_VALUES
                left += value.values() if isinstance(value, dict) else value
        if self._values > MOST_VALUES:
            words = f"The outputs would hold more than {MOST_VALUES:,} values of JSON."
            raise NotebookEnded("output-limit", words)

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            most = f"more than {COPIED_BYTES // MIB} MiB"
            words = f"Copies of displays, and widgets, would take {most}."
            raise NotebookEnded("output-limit", words)


class NotebookPage(CleanPage):
    """The executed notebook of a running sandbox: cleaned outputs go into the cell that runs.

    They come on the sandbox's thread, which waits until each is in its cell.
    """

    def __init__(self, sandbox: Sandbox, cleaner: Cleaner, client: CellClient) -> None:
        super().__init__(sandbox, cleaner)
        self.client = client
        self._guard = threading.Lock()
        self._cell: tuple[NotebookNode, int] | None = None
        self._problem: Exception | None = None
        self._listener = _CellListener(self, {})
        client.page = self

    def begin(self, cell: NotebookNode, place: int) -> CellFuture:
        """Queues a cell, whose outputs go into it."""
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request"}
        self._listener = _CellListener(self, {"header": header})
        self._cell, self._problem = (cell, place), None
        self._tell_state("busy")
        counted = {"code": cell.source, "execution_count": self.sandbox.next_count}
        self.publish(self._listener.parent, "execute_input", counted)
        return self.sandbox.submit(cell.source, parent=header, listener=self._listener)

    async def ended(self, running: CellFuture) -> JsonObject:
        """Waits for the end of a cell; returns the reply of a kernel.

        Raises `NotebookEnded`, or `WasmKernelError` if the cell can't run.
        """
        try:
            result = await asyncio.wrap_future(running)
            if self.is_ending:
                raise NotebookEnded("error", _ENDED_IT)
            self._listener.finish()
            self._tell_state("idle")
        finally:
            with self._guard:
                self._cell = None
        if self._problem is not None:
            raise self._problem
        count = messages.count_of(result.reply)
        shown = self.sandbox.next_count if count is None else count
        args = (result, shown, self.cleaner)
        content = await asyncio.to_thread(messages.execute_reply, *args)
        return _message(self._listener.parent, "execute_reply", content)

    def publish(self, parent: JsonObject, kind: str, content: JsonObject) -> None:
        """Gives nbclient a message about the running cell."""
        self._hand_over(_message(parent, kind, content))

    def send(self, parent: JsonObject, message: CommMessage) -> None:
        """Gives nbclient a message to a widget."""
        told = _message(parent, *messages.of_comm(message))
        self._hand_over(told | {"metadata": message.metadata, "buffers": list(message.buffers)})

    def tell_widget(self, comm_id: str, data: JsonObject) -> None:
        """Passes on a message of a widget in the notebook to the sandbox."""
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "comm_msg"}
        self.sandbox.comm(CommMessage("msg", comm_id, json_clean(data)), parent=header)

    def _tell_state(self, state: str) -> None:
        self.publish(self._listener.parent, "status", {"execution_state": state})

    def _hand_over(self, msg: JsonObject) -> None:
        """Hands a message to nbclient. An error ends the cell, which then ignores messages."""
        with self._guard:
            if self._cell is None or self._problem is not None:
                return
            try:
                with suppress(CellExecutionComplete):
                    self.client.process_message(msg, *self._cell)
                return
            except Exception as problem:
                failed = problem
        self.fail(failed)

    def fail(self, problem: Exception) -> None:
        """Ends the running cell, if it has not ended: its outputs can't be taken."""
        with self._guard:
            if self._cell is None or self._problem is not None:
                return
            self._problem = problem
        self.sandbox.interrupt()


class _CellListener(CleanListener):
    """The listener of a cell, which ends if its outputs can't be cleaned."""

    def __init__(self, page: NotebookPage, parent: JsonObject) -> None:
        super().__init__(page, parent)
        self._notebook = page

    def emit(self, output: Output) -> None:
        """Shows a cleaned piece of output."""
        try:
            super().emit(output)
        except CleanerLost as problem:
            self._notebook.fail(problem)

    def comm(self, message: CommMessage) -> None:
        """Passes on the part of a comm message that may reach the page."""
        try:
            super().comm(message)
        except CleanerLost as problem:
            self._notebook.fail(problem)


def _message(parent: JsonObject, kind: str, content: JsonObject) -> JsonObject:
    header = {"msg_id": uuid.uuid4().hex, "msg_type": kind}
    parts = {"header": header, "msg_type": kind, "parent_header": parent["header"]}
    return {**parts, "content": content, "metadata": {}, "buffers": []}


class _OutputArea(OutputWidget):
    """A widget that shows outputs. They are sent to the guest when the cell has ended.

    The guest would read them no sooner, and sending all of them after each one takes quadratic
    time.
    """

    def send(self, data: JsonObject | None = None, *_: Any, **__: Any) -> None:
        """Sends a message to the guest."""
        self.executor.page.tell_widget(self.comm_id, data or {})

    def sync_state(self) -> None:
        self.executor.changed.add(self)

    def tell(self) -> None:
        """Sends the widget's outputs to the guest, if its name can be sent."""
        with suppress(ValueError, TypeError):
            super().sync_state()


def _size(value: Any) -> int:
    return len(json.dumps(value))
