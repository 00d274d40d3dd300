"""`display()` and the value of a cell's last expression, as frames."""

from __future__ import annotations

from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher

from wasm_kernel_agent import bundles
from wasm_kernel_agent.outbox import Outbox


class FramePublisher(DisplayPublisher):
    """Publishes what `display()` is given. `outbox` is set by the shell that owns it."""

    outbox: Outbox

    def publish(
        self,
        data: Any,
        metadata: Any = None,
        source: Any = None,
        *,
        transient: Any = None,
        update: bool = False,
        **kwargs: Any,
    ) -> None:
        """A display, or with `update` a change of the one whose `display_id` is in `transient`."""
        op = "update_display" if update else "display"
        fields = bundles.plain_object(transient)
        self.outbox.bundle(op, data, metadata, transient=fields)

    def clear_output(self, wait: bool = False) -> None:
        """Clear the cell's output, at the next output where `wait` is set."""
        self.outbox.plain({"op": "clear_output", "wait": bool(wait)})


class FrameHook(DisplayHook):
    """Shows the value of a cell's last expression. `outbox` is set by the shell that owns it."""

    outbox: Outbox

    def write_output_prompt(self) -> None:
        """There is no prompt to write: the frame carries the number."""

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        """The value, in the forms that IPython's formatters gave it."""
        self.outbox.bundle("result", format_dict, md_dict, execution_count=self.prompt_count)

    def finish_displayhook(self) -> None:
        """The value was shown."""
        self._is_active = False
