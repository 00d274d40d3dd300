"""`CellOutput`: the output of one cell. Also the parts of a result that need no guest."""

from __future__ import annotations

from pathlib import Path

from wasm_kernel import result
from wasm_kernel.errors import Door, GuestStopped, OutOfMemory
from wasm_kernel.guests import protocol
from wasm_kernel.guests.protocol import ErrorOutput
from wasm_kernel.result import CellError, SandboxResult

_NEVER_RAN = CellError("KeyboardInterrupt", "The cell was interrupted before it began.", ())


class CellOutput:
    """The text and the rich outputs of one turn, for its result.

    Text is kept as bytes until it is read: the guest decides how small its pieces are, and a piece
    may be a string of a single wide character. Text is kept only if it is `wanted`: a kernel has
    sent it already, and needs no copy.
    """

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._text = {"stdout": bytearray(), "stderr": bytearray()}
        self.outputs: list[result.Output] = []

    def add(self, output: protocol.Output) -> None:
        """Adds text of a stream, or a rich output."""
        if self._wanted and isinstance(output, protocol.Stream):
            self._text[output.name] += output.text.encode("utf-8", "replace")
        elif self._wanted:
            self.outputs.append(_as_result(output))

    def text(self, name: str) -> str:
        """Returns all text of a stream."""
        return self._text[name].decode("utf-8")


def _as_result(output: protocol.Output) -> result.Output:
    match output:
        case protocol.Display():
            kind = "update" if isinstance(output, protocol.UpdateDisplay) else "display"
            return result.Output(kind, output.data, output.metadata, output.transient)
        case protocol.Result():
            return result.Output("result", output.data, output.metadata)
        case protocol.ErrorOutput():
            return result.Output("error", {"ename": output.ename, "evalue": output.evalue})
    return result.Output("clear")


def never_ran(workspace: Path, session_id: str) -> SandboxResult:
    """Returns the result of a cell that did not run to its end. Any thread may call it."""
    return SandboxResult(
        success=False,
        stdout="",
        stderr="",
        exit_code=1,
        error=_NEVER_RAN,
        fuel_consumed=None,
        memory_used_bytes=0,
        duration=0.0,
        files_created=(),
        files_modified=(),
        files_deleted=(),
        workspace_path=workspace,
        metadata={"session_id": session_id} if session_id else {},
    )


def as_error(stopped: GuestStopped, door: Door) -> ErrorOutput:
    """Returns the loss of a guest as an error of the cell, in words for the user of a door."""
    name, text = type(stopped).__name__, stopped.text(door)
    trace = stopped.trace if isinstance(stopped, OutOfMemory) else ()
    return ErrorOutput(name, text, (*trace, f"\x1b[31m{name}\x1b[39m: {text}"))
