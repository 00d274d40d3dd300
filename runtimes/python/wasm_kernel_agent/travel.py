"""`%undo`, `%redo`, `%checkpoint`, `%restore`: going back in the session's memory; `%checkpoints`
and `%history_tree`: where to.

The host keeps the history; these magics ask it. It goes where it was asked to when the cell is
over.
"""

from __future__ import annotations

import re
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.display import display

from wasm_kernel_agent.states import CheckpointTable, HistoryTree

_display: Any = display
_BEGUN = re.compile(r"(?:.*=\s*)?%?(undo|redo|restore)\s")
_FILES = re.compile(r"(?:^|\s)--files(?!\S)")


def _without_files(line: str) -> tuple[str, bool]:
    """A magic's arguments, and whether files are to go along."""
    words, count = _FILES.subn("", line)
    return words.strip(), count > 0


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
        return [row["name"] for row in self._ask("checkpoints")["rows"] if row["name"]]

    def _ask(self, how: str, **fields: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.shell.agent.door.send({"op": "travel", "how": how, **fields})
        if "refused" in answer:
            raise UsageError(answer["refused"])
        return answer

    @line_magic
    def undo(self, line: str) -> None:
        """Take back what the last cells did to variables: `%undo`, or `%undo 3` for three cells.

        Files stay as they are, unless you say `%undo --files`: then those in /app are as they were,
        too. `%redo` takes it back, until the next cell runs.
        """
        words, files = _without_files(line)
        if words and not words.isdecimal():
            raise UsageError("%undo takes the number of cells to undo, such as: %undo 2")
        self._tell("Undone", self._ask("undo", cells=min(int(words or 1), 2**31), files=files))

    @line_magic
    def redo(self, line: str) -> None:
        """Take back the last `%undo`, as long as no other cell ran since.

        `%redo --files` brings files back as well, as they were before the `%undo`.
        """
        words, files = _without_files(line)
        if words:
            raise UsageError("%redo takes nothing but --files")
        self._tell("Done again", self._ask("redo", files=files))

    def _tell(self, what: str, answer: dict[str, Any]) -> None:
        print(f"{what}: " + ("; ".join(answer["cells"]) or "nothing that changed a variable"))

    @line_magic
    def checkpoint(self, line: str) -> None:
        """Name the state after this cell: `%checkpoint before the merge`. It is kept until the end.

        Without a name, it is called after the cell's number.
        """
        name = line.strip() or f"In {self.shell.execution_count}"
        self._ask("checkpoint", name=name)
        print(f"Checkpoint {name!r}: %restore {name} comes back to the variables as they are now.")

    @line_magic
    def checkpoints(self, line: str) -> None:
        """List the states that can be gone back to with `%undo` and `%restore`."""
        _display(CheckpointTable(self._ask("checkpoints")["rows"]))

    @line_magic
    def history_tree(self, line: str) -> None:
        """Draw how those states follow one another, with the branches that going back has left."""
        _display(HistoryTree(self._ask("checkpoints")["rows"]))

    @line_magic
    def restore(self, line: str) -> None:
        """Bring variables back as they were: `%restore NAME`, or `%restore 7` for after In[7].

        `%restore NAME --files` brings the files in /app back, too; `%restore --files` those of the
        last cell that left a state, such as after one that failed half-way.
        """
        name, files = _without_files(line)
        if not name and not files:
            raise UsageError("%restore takes a checkpoint's name or a cell's number")
        self._ask("restore", name=name, files=files)
        where = f"as at {name!r}" if name else "as they were before this cell"
        print(f"Restored: the variables are {where}.")
