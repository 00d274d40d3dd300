"""Errands: what a magic has the host do, where it stands in the cell's own text.

The host compares the words with the text that it sent. So the magic must see them as they stand
there: declare it with `no_var_expand`.
"""

from __future__ import annotations

from typing import Any

from IPython.core.error import UsageError

from wasm_kernel_agent.outbox import flush


def send_out(shell: Any, name: str, line: str, cell: str | None = None) -> Any:
    """What came of `%name line`, done by the host; a JSON value.

    Raises:
        UsageError: the host refused, in words.
        KeyboardInterrupt: the cell was interrupted while the host was at it.
    """
    __tracebackhide__ = True
    frame = {"op": "errand", "name": name, "line": line}
    if cell is not None:
        frame["cell"] = cell
    flush()
    answer = shell.agent.door.send(frame)
    if answer.get("interrupted"):
        raise KeyboardInterrupt
    if "refused" in answer:
        raise UsageError(answer["refused"])
    return answer.get("value")
