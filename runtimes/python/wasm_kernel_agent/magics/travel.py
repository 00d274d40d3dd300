"""Going back in the session's history (`%undo`, `%restore`, ...), and `%fork`.

The host keeps the history and reads the magics' words. When the cell is over, the host goes to the
requested state. A cell that holds only these magics never comes here: the host runs it itself.
"""

from __future__ import annotations

import re
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class, no_var_expand
from IPython.display import display

from wasm_kernel_agent.host import run_host_command

_display: Any = display
_BEGUN = re.compile(r"(?:.*=\s*)?%?(undo|redo|restore|fork)\s")


@magics_class
class TravelMagics(Magics):
    """The magics that ask the host to restore another state, or to fork the session."""

    shell: Any

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        shell.set_hook("complete_command", self.complete, re_key=_BEGUN)

    def complete(self, _: Any, event: Any) -> list[str]:
        """Returns names of checkpoints and options, for IPython's completer."""
        begun = _BEGUN.match(event.line)
        if event.symbol.startswith("-"):
            return ["--deterministic" if begun and begun[1] == "fork" else "--files"]
        if begun is None or begun[1] != "restore":
            return []
        try:
            listed: dict[str, list[str]] = run_host_command(self.shell, "checkpoints", "")
        except UsageError:
            return []
        return listed["names"]

    def _ask(self, name: str, line: str) -> None:
        """Asks the host to run a magic, and shows the answer."""
        answer = run_host_command(self.shell, name, line)
        if "said" in answer:
            print(answer["said"])
        if "shown" in answer:
            _display(answer["shown"], raw=True)

    @line_magic
    def undo(self, line: str) -> None:
        """Take back what the last cells did to variables: `%undo`, or `%undo 3` for three cells.

        Files stay as they are; `%undo --files` restores the files in /app, too. `%redo` takes the
        undo back, until the next cell runs.
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
        """Name the state after this cell: `%checkpoint before the merge`.

        `%restore` brings it back, also after a restart or tomorrow, as long as the session is
        there. Without a name, it is called after the cell's number.
        """
        self._ask("checkpoint", line)

    @line_magic
    def checkpoints(self, line: str) -> None:
        """List the states that can be gone back to with `%undo` and `%restore`."""
        self._ask("checkpoints", line)

    @line_magic
    def timeline(self, line: str) -> None:
        """Draw how those states follow one another, with the branches that going back has left.

        In JupyterLab, it also opens the timeline beside the notebook.
        """
        self._ask("timeline", line)

    @line_magic
    def restore(self, line: str) -> None:
        """Bring variables back as they were: `%restore NAME`, or `%restore 7` for after In[7].

        `%restore NAME --files` brings the files in /app back, too. `%restore --files` brings back
        the files of the last cell that left a state, such as after a cell that failed half-way.
        """
        self._ask("restore", line)

    @no_var_expand
    @line_magic
    def fork(self, line: str) -> Any:
        """Make another session with these variables and files: `new = %fork`.

        The new session begins with the variables and files that the cell leaves. Later changes in
        one of the two sessions do not reach the other. The value is the new session's id.
        Generators of random numbers are seeded afresh in the new session; `%fork --deterministic`
        keeps their state.
        """
        new = run_host_command(self.shell, "fork", line)
        print(new["said"], end="")
        return new["id"]
