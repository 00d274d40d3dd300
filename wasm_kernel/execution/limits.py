"""What a session may show: limits of each output, of each cell, and of all cells together.

The guest's thread owns all of it.
"""

from __future__ import annotations

from wasm_kernel.engine.output import Cap, cap_of
from wasm_kernel.guests.protocol import Display, Error, Output, Result, memory_size
from wasm_kernel.policy import ExecutionPolicy

SESSION = "session_output_bytes"
OVERHEAD = 4096  # bytes around the contents of an output that are not counted
ERRORS, ERROR_BYTES = 1_000, 64 * 1024 * 1024  # that one cell may show


class Allowance:
    """What a sandbox has shown since it was made, and may still show."""

    def __init__(self, policy: ExecutionPolicy) -> None:
        self.policy = policy
        self._left = policy.session_output_bytes

    def adopt(self, policy: ExecutionPolicy) -> None:
        """Other limits hold from the next cell on; what was shown so far counts."""
        self._left += policy.session_output_bytes - self.policy.session_output_bytes
        self.policy = policy

    @property
    def left(self) -> int:
        """Bytes that all cells to come may show together."""
        return max(0, self._left)

    def spend(self, size: int) -> None:
        """So many bytes were shown."""
        self._left -= size

    def of_cell(self) -> CellAllowance:
        """What one cell may show."""
        return CellAllowance(self)

    def caps(self) -> dict[str, Cap]:
        """What a cell may write to its two streams."""
        return {name: self._cap(name) for name in ("stdout", "stderr")}

    def _cap(self, name: str) -> Cap:
        most: int = getattr(self.policy, f"{name}_bytes")
        if self.left < most:
            return Cap(self.left, SESSION, self.used_up)
        return cap_of(name, most)

    @property
    def used_up(self) -> str:
        """What is said where the session has shown all that it may."""
        return f"The session has shown {self.policy.session_output_bytes:,} bytes of output"


class CellAllowance:
    """What one cell has sent as rich output, and may still send.

    Errors have limits of their own, so that a cell that showed too much can still say how it ended.
    """

    def __init__(self, session: Allowance) -> None:
        self._session = session
        self._policy = session.policy
        self._shown = [0, 0]  # outputs, bytes
        self._failed = [0, 0]

    def objection(self, output: Output, size: int) -> tuple[str, str]:
        """Why an output of so many bytes may not be shown, and the setting that forbids it.

        Two empty texts where it may; it then counts as shown.
        """
        policy, error = self._policy, isinstance(output, Error)
        so_far = self._failed if error else self._shown
        outputs = ERRORS if error else policy.display_count
        total = ERROR_BYTES if error else policy.display_bytes
        if size > policy.output_bytes:
            return f"The cell sent an output of {size:,} bytes", "output_bytes"
        if so_far[0] >= outputs:
            return f"The cell sent more than {outputs:,} rich outputs", "display_count"
        taken = max(size, _weight(output) - OVERHEAD)
        if so_far[1] + taken > total:
            return f"The cell sent more than {total:,} bytes of rich output", "display_bytes"
        if size > self._session.left and not error:
            return self._session.used_up, SESSION
        so_far[0] += 1
        so_far[1] += taken
        self._session.spend(size)
        return "", ""


def _weight(output: Output) -> int:
    """How many bytes an output takes in the host's memory."""
    match output:
        case Display():
            return memory_size([output.data, output.metadata, output.transient])
        case Result():
            return memory_size([output.data, output.metadata])
        case Error():
            return memory_size([output.ename, output.evalue, output.traceback])
    return 0
