"""What a turn showed, gathered for its result."""

from __future__ import annotations

from wasm_kernel import result
from wasm_kernel.guests import protocol


class Shown:
    """The text and the rich outputs of one turn.

    Text is kept as bytes until it is asked for: guest code decides how small its pieces are, and a
    piece may be a text of a single wide character.

    Args:
        wanted: Whether anybody will ask. A kernel has sent it all by then, and keeps nothing.
    """

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._text = {"stdout": bytearray(), "stderr": bytearray()}
        self.outputs: list[result.Output] = []

    def add_text(self, name: str, text: str) -> None:
        """Further text of a stream."""
        if self._wanted:
            self._text[name] += text.encode("utf-8", "replace")

    def add(self, output: protocol.Output) -> None:
        """One more rich output."""
        if self._wanted:
            self.outputs.append(_as_output(output))

    def text(self, name: str) -> str:
        """All text of a stream."""
        return self._text[name].decode("utf-8")


def _as_output(output: protocol.Output) -> result.Output:
    if isinstance(output, protocol.Display):
        kind = "update" if output.is_update else "display"
        return result.Output(kind, output.data, output.metadata, output.transient)
    if isinstance(output, protocol.Result):
        return result.Output("result", output.data, output.metadata)
    if isinstance(output, protocol.Error):
        return result.Output("error", {"ename": output.ename, "evalue": output.evalue})
    return result.Output("clear")
