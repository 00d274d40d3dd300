"""The cleaner of the outputs of one page: its rich outputs, and the messages to its widgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from wasm_kernel.outputs import bundle
from wasm_kernel.outputs.bundle import CleanOutput, Mode
from wasm_kernel.outputs.limits import stopping_if
from wasm_kernel.outputs.removals import Removals
from wasm_kernel.result import CommMessage

if TYPE_CHECKING:
    from wasm_kernel.outputs.widgets import WidgetGate

ShouldStop = Callable[[], bool]


class CleanMessage(Struct, frozen=True):
    """The part of a guest's message that may reach a widget, or None; `removed` names the rest."""

    message: CommMessage | None
    removed: tuple[str, ...] = ()


class Cleaner:
    """Cleans a guest's outputs for a page, in a mode. This one does the work in this process.

    Any thread may clean a bundle; messages to widgets are cleaned on one thread at a time.
    """

    def __init__(self, mode: Mode) -> None:
        self.mode = mode

    @cached_property
    def _gate(self) -> WidgetGate:
        from wasm_kernel.outputs.widgets import WidgetGate

        return WidgetGate(self.mode)

    def admits(self, message: CommMessage) -> bool:
        """Returns whether the page may open a comm to this target in the guest, and be answered."""
        return self._gate.admits(message)

    def bundle(
        self, data: Mapping[str, Any], metadata: Mapping[str, Any], should_stop: ShouldStop
    ) -> CleanOutput:
        """Returns the part of a bundle that may be shown, as `bundle.clean` does."""
        return bundle.clean(data, metadata, self.mode, should_stop)

    def comm(self, message: CommMessage, should_stop: ShouldStop) -> CleanMessage:
        """Returns the part of a guest's message that may reach a widget of the page."""
        removals = Removals()
        try:
            with stopping_if(should_stop):
                passed = self._gate.out(message, removals)
        except (MemoryError, KeyboardInterrupt):
            raise
        except BaseException:  # nh3's panics are not Exceptions; unchecked messages are not sent
            removals.add("a message to a widget that could not be checked")
            return CleanMessage(None, removals.phrases)
        return CleanMessage(passed, removals.phrases)
