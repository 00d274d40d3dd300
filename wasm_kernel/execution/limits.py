"""The limits that the host counts: the output of cells, and the fuel that they burn.

There are limits for each output, for each cell, and for all cells of a session together. The
guest's thread owns all counters.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import astuple, replace

from wasm_kernel.engine.instance import Instance
from wasm_kernel.engine.streams import StreamLimit, limit_of
from wasm_kernel.guests.protocol import ErrorOutput, Output, memory_size
from wasm_kernel.policy import ExecutionPolicy

SESSION = "session_output_bytes"
OVERHEAD = 4096  # bytes around the contents of an output that are not counted
ERRORS, ERROR_BYTES = 1_000, 64 * 1024 * 1024  # the errors of one cell, and their bytes


class OutputAllowance:
    """The output that a sandbox has shown since it was made, and may still show."""

    def __init__(self, policy: ExecutionPolicy) -> None:
        self.policy = policy
        self._left = policy.session_output_bytes

    @property
    def left(self) -> int:
        """The bytes that all later cells may show together."""
        return max(0, self._left)

    def spend(self, size: int) -> None:
        """Counts bytes of output."""
        self._left -= size

    def caps(self) -> dict[str, StreamLimit]:
        """Returns the limits of a cell's two streams."""
        return {name: self._cap(name) for name in ("stdout", "stderr")}

    def _cap(self, name: str) -> StreamLimit:
        most: int = getattr(self.policy, f"{name}_bytes")
        limit = limit_of(name, most)
        if self.left < most:
            limit = StreamLimit(self.left, SESSION, self.used_up)
        return replace(limit, advice=self.policy.door.raising(limit.setting, purpose="to see more"))

    @property
    def used_up(self) -> str:
        """The sentence for a session that has used up its output."""
        return f"The session has shown {self.policy.session_output_bytes:,} bytes of output"


class CellAllowance:
    """The rich output that one cell has sent, and may still send.

    Errors have limits of their own, so that a cell that showed too much can still show its error.
    """

    def __init__(self, session: OutputAllowance) -> None:
        self._session = session
        self._policy = session.policy
        self._shown = [0, 0]  # outputs, bytes
        self._failed = [0, 0]

    def objection(self, output: Output, size: int) -> tuple[str, str]:
        """Returns why an output of `size` bytes may not be shown, and the setting that forbids it.

        Both are empty if it may be shown; it is counted then.
        """
        policy, error = self._policy, isinstance(output, ErrorOutput)
        so_far = self._failed if error else self._shown
        outputs = ERRORS if error else policy.display_count
        total = ERROR_BYTES if error else policy.display_bytes
        if size > policy.output_bytes:
            return f"The cell sent an output of {size:,} bytes", "output_bytes"
        if so_far[0] >= outputs:
            return f"The cell sent more than {outputs:,} rich outputs", "display_count"
        taken = max(size, memory_size(astuple(output)) - OVERHEAD)
        if so_far[1] + taken > total:
            return f"The cell sent more than {total:,} bytes of rich output", "display_bytes"
        if size > self._session.left and not error:
            return self._session.used_up, SESSION
        so_far[0] += 1
        so_far[1] += taken
        self._session.spend(size)
        return "", ""


class FuelMeter:
    """The fuel of a sandbox's cells: the budget of each, and the consumption of the last turn.

    `budget` is None without a limit, `consumed` is None if fuel is not counted.
    """

    def __init__(self, budget: int | None) -> None:
        self.budget = budget
        self._instance: Instance | None = None
        self._given: int | None = None
        self._cut = 0
        self._last: int | None = None
        self.consumed: int | None = None

    def begin(self, instance: Instance, given: int | None) -> None:
        """Begins a turn with the fuel `given`, or without a limit."""
        self._instance, self._given, self._cut = instance, given, 0

    def lower(self, most: int) -> None:
        """Lets the running turn burn at most `most` more."""
        if self._instance is not None:
            self._cut += self._instance.lower_fuel(most)

    def end(self) -> None:
        """Ends the turn."""
        self.consumed = self._so_far()
        if self.consumed is not None:
            self._last = self.consumed
        self._instance = None

    def skip(self) -> None:
        """Notes a cell that ran without the guest."""
        self.consumed = 0 if self.budget is not None else None

    def _so_far(self) -> int | None:
        left = None if self._instance is None else self._instance.fuel_left
        return None if left is None or self._given is None else self._given - self._cut - left

    def facts(self) -> dict[str, Any]:
        """Returns facts for a cell: the fuel burnt and left, and the fuel of the last cell."""
        consumed = self._so_far()
        left = None if consumed is None or self._instance is None else self._instance.fuel_left
        return {
            "metered": self.budget is not None,
            "budget": self.budget,
            "consumed": consumed,
            "left": left,
            "last": self._last,
        }
