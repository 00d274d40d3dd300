"""`CellClient`: nbclient's client, for untrusted notebooks.

nbclient updates displays and follows widgets for the executed notebook, as a front end does for a
page, and trusts the kernel's messages. Here, their effect is bounded.
"""

# mypy: disable-error-code="no-untyped-call"
# (nbformat carries no types)

from __future__ import annotations

import json
import logging
from collections import defaultdict
from contextlib import suppress
from typing import Any

from nbclient.client import NotebookClient
from nbclient.exceptions import CellExecutionComplete
from nbclient.output_widget import OutputWidget
from nbformat import NotebookNode
from nbformat.v4 import output_from_msg

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.frontends.batch.notebooks import MOST_VALUES
from wasm_kernel.policy import MIB

COPIED_BYTES = 64 * MIB
"""The most bytes for copies of displays, and for widgets, in an executed notebook."""
OUTPUT_SECONDS = 60
"""The seconds in which the outputs of a cell must be read, once it has ended."""
_ENTRY_BYTES = 200  # of an entry without content
_CONTAINER_VALUES = 8  # that a list or object counts as, beside its items, by its memory
_LOG = logging.getLogger("wasm_kernel.batch")

Told = dict[str, Any]
"""A message of the kernel, or its content."""


class TooMuchKept(WasmKernelError):
    """The executed notebook would be far larger than the outputs of its cells."""


class CellClient(NotebookClient):
    """A client of nbclient's, with its options, that runs the cells of a notebook."""

    def __init__(self, book: NotebookNode, **options: Any) -> None:
        super().__init__(book, iopub_timeout=OUTPUT_SECONDS, raise_on_iopub_timeout=True, **options)
        self.widget_registry = {"@jupyter-widgets/output": {"OutputModel": _OutputArea}}
        self.changed: set[_OutputArea] = set()
        self._shown: defaultdict[str, defaultdict[int, list[NotebookNode]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._shown_in: defaultdict[int, set[str]] = defaultdict(set)
        self._kept: dict[tuple[str, str], int] = {}
        self._left = COPIED_BYTES
        self._values = 0

    def process_message(
        self, msg: Told, cell: NotebookNode, cell_index: int
    ) -> NotebookNode | None:
        """Takes a message of the kernel; ignores a widget's if it makes no sense.

        Raises `CellExecutionComplete` when the cell has ended, `TooMuchKept` if there is no room.
        """
        try:
            return super().process_message(msg, cell, cell_index)
        except CellExecutionComplete:
            while self.changed:
                self.changed.pop().tell()
            raise
        except TooMuchKept:
            raise
        except Exception:  # a guest chooses a widget's content, and nbclient does not check it
            if not (msg["msg_type"].startswith("comm") or self.comm_objects):
                raise
            _LOG.debug("a widget's message was passed over", exc_info=True)
            return None

    # -- updates of displays: nbclient finds them by index, which changes as streams are merged

    def output(
        self, outs: list[NotebookNode], msg: Told, display_id: str | None, cell_index: int
    ) -> NotebookNode | None:
        """Adds an output to its cell."""
        self._count_values(msg)
        made: NotebookNode | None = super().output(outs, msg, None, cell_index)
        if made is not None and display_id:
            self._shown[display_id][cell_index].append(made)
            self._shown_in[cell_index].add(display_id)
        return made

    def _update_display_id(self, display_id: str, msg: Told) -> None:
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

    def handle_comm_msg(self, outs: list[NotebookNode], msg: Told, cell_index: int) -> None:
        """Follows the state of a widget."""
        name, data = msg["content"]["comm_id"], msg["content"]["data"]
        paths = zip(data.get("buffer_paths") or [], msg["buffers"], strict=False)
        sizes = {each: _size(value) for each, value in (data.get("state") or {}).items()}
        sizes |= {json.dumps(path): len(buffer) * 4 // 3 for path, buffer in paths}
        for key, size in [((name, each), size) for each, size in {"": 0, **sizes}.items()]:
            self._spend(size + _ENTRY_BYTES - self._kept.get(key, 0))
            self._kept[key] = size + _ENTRY_BYTES
        super().handle_comm_msg(outs, msg, cell_index)

    def _count_values(self, msg: Told) -> None:
        """Counts the values in an output, which take far more memory than their text."""
        left: list[Any] = [msg["content"].get("data")]
        while left and self._values <= MOST_VALUES:
            value = left.pop()
            self._values += 1
            if isinstance(value, dict | list):
                self._values += _CONTAINER_VALUES
                left += value.values() if isinstance(value, dict) else value
        if self._values > MOST_VALUES:
            raise TooMuchKept(f"The outputs would hold more than {MOST_VALUES:,} values of JSON.")

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooMuchKept(
                f"Copies of displays, and widgets, would take more than {COPIED_BYTES // MIB} MiB."
            )


class _OutputArea(OutputWidget):
    """A widget that shows outputs. They are sent to the kernel when the cell has ended.

    The kernel would read them no sooner, and sending all of them after each one takes quadratic
    time.
    """

    def sync_state(self) -> None:
        self.executor.changed.add(self)

    def tell(self) -> None:
        """Sends its outputs to the kernel, if its name can be sent."""
        with suppress(ValueError, TypeError):
            super().sync_state()


def _size(value: Any) -> int:
    return len(json.dumps(value))
