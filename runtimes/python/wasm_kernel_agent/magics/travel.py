"""`%undo`, `%redo`, `%checkpoint`, `%restore`: going back in the session's memory; `%checkpoints`
and `%history_tree`: where to.

The host keeps the history and reads the magics' words; it goes where it was asked to when the cell
is over. Cells that hold nothing but these magics never come here: the host does what they say by
itself.
"""

from __future__ import annotations

import re
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.display import display

_display: Any = display
_BEGUN = re.compile(r"(?:.*=\s*)?%?(undo|redo|restore)\s")


@magics_class
class TravelMagics(Magics):
    """The magics that ask the host to go elsewhere in the history."""

    shell: Any

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        shell.set_hook("complete_command", self.complete, re_key=_BEGUN)

    def complete(self, _: Any, event: Any) -> list[str]:
        """Names of checkpoints and options, for IPython's completer."""
        begun = _BEGUN.match(event.line)
        if event.symbol.startswith("-"):
            return ["--files"]
        if begun is None or begun[1] != "restore":
            return []
        names: list[str] = self._send("checkpoints", "").get("names", [])
        return names

    def _send(self, how: str, line: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.shell.agent.door.send(
            {"op": "travel", "how": how, "line": line}
        )
        return answer

    def _ask(self, how: str, line: str) -> None:
        """Have the host do what a magic says, and show what it answers."""
        answer = self._send(how, line)
        if "refused" in answer:
            raise UsageError(answer["refused"])
        if "said" in answer:
            print(answer["said"])
        if "shown" in answer:
            _display(answer["shown"], raw=True)

    @line_magic
    def undo(self, line: str) -> None:
        """Take back what the last cells did to variables: `%undo`, or `%undo 3` for three cells.

        Files stay as they are, unless you say `%undo --files`: then those in /app are as they were,
        too. `%redo` takes it back, until the next cell runs.
        """
        self._ask("undo", line)

    @line_magic
    def redo(self, line: str) -> None:
        """Take back the last `%undo`, as long as no other cell ran since.

        `%redo --files` brings files back as well, as they were before the `%undo`.
        """
        self._ask("redo", line)

    @line_magic
    def checkpoint(self, line: str) -> None:
        """Name the state after this cell: `%checkpoint before the merge`. It is kept until the end.

        Without a name, it is called after the cell's number.
        """
        self._ask("checkpoint", line)

    @line_magic
    def checkpoints(self, line: str) -> None:
        """List the states that can be gone back to with `%undo` and `%restore`."""
        self._ask("checkpoints", line)

    @line_magic
    def history_tree(self, line: str) -> None:
        """Draw how those states follow one another, with the branches that going back has left."""
        self._ask("history_tree", line)

    @line_magic
    def restore(self, line: str) -> None:
        """Bring variables back as they were: `%restore NAME`, or `%restore 7` for after In[7].

        `%restore NAME --files` brings the files in /app back, too; `%restore --files` those of the
        last cell that left a state, such as after one that failed half-way.
        """
        self._ask("restore", line)
