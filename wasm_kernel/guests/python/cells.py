"""`PythonCell`: the magics of a cell's text, as the host looks for them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from msgspec import Struct

from wasm_kernel.guests.base import CommandLine

_ALONE = re.compile(r"%(\w+)(?:[ \t]+(\S.*))?")
_LINE = re.compile(r"[^\r\n]+")
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
        for line in self._lines() if len(self.source) <= _TEXT_MOST else ():
            match = _ALONE.fullmatch(line)
            if match is None or match[1] not in names or _FOR_THE_GUEST.search(line):
                return None
            found.append(CommandLine(match[1], match[2] or ""))
        return found or None

    def _lines(self) -> Iterator[str]:
        """Yields the lines with code, one by one, since the first decides on most cells."""
        for found in _LINE.finditer(self.source):
            line = found[0].strip()
            if line and not line.startswith("#"):
                yield line

    def commands(self, names: Collection[str]) -> list[CommandLine]:
        """Returns the magics among `names` that stand at top level, in their order."""
        from wasm_kernel.guests.python.cell_reader import commands_in

        return commands_in(self.source, names)
