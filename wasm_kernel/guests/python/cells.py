"""`PythonCell`: the magics of a cell's text, as the host looks for them."""

from __future__ import annotations

import re
from collections.abc import Collection

from msgspec import Struct

from wasm_kernel.guests.base import COMMAND, CommandLine, code_lines

_FOR_THE_GUEST = re.compile(r"[${]|\?\Z|\\\Z")  # variables, a question, a line that goes on
_TEXT_MOST = 100_000  # characters of a cell that is read while the guest waits


class PythonCell(Struct, frozen=True):
    """A cell's text: a `ParsedCell`."""

    source: str

    def only_commands(self, names: Collection[str]) -> list[CommandLine] | None:
        """Returns the magics of a cell that holds nothing but some of these; else None.

        Magics with variables in their words, or with a question mark, don't count: the guest
        expands or answers them.
        """
        found = []
        for line in code_lines(self.source, "#") if len(self.source) <= _TEXT_MOST else ():
            match = COMMAND.fullmatch(line)
            if match is None or match[1] not in names or _FOR_THE_GUEST.search(line):
                return None
            found.append(CommandLine(match[1], match[2] or ""))
        return found or None

    def commands(self, names: Collection[str]) -> list[CommandLine]:
        """Returns the magics among `names` that stand at top level, in their order."""
        from wasm_kernel.guests.python.cell_reader import commands_in

        return commands_in(self.source, names)
