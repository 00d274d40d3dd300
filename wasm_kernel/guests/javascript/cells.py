"""`JavaScriptCell`: the commands at the top of a cell's text, before any JavaScript."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from msgspec import Struct

from wasm_kernel.guests.base import CommandLine

_COMMAND = re.compile(r"%(\w+)(?:[ \t]+(\S.*))?")
_LINE = re.compile(r"[^\r\n]+")


class JavaScriptCell(Struct, frozen=True):
    """A cell's text: a `ParsedCell`."""

    source: str

    def only_commands(self, names: Collection[str]) -> list[CommandLine] | None:
        """Returns the commands of a cell that holds nothing but some of these; else None."""
        found = []
        for line in self._lines():
            command = _command(line)
            if command is None or command.name not in names:
                return None
            found.append(command)
        return found or None

    def commands(self, names: Collection[str]) -> list[CommandLine]:
        """Returns the commands among `names` at the cell's top, in their order."""
        found = []
        for line in self._lines():
            command = _command(line)
            if command is None:
                break
            if command.name in names:
                found.append(command)
        return found

    def _lines(self) -> Iterator[str]:
        """Yields the lines that say something, one by one: the first decides on most cells."""
        for found in _LINE.finditer(self.source):
            line = found[0].strip()
            if line and not line.startswith("//"):
                yield line


def _command(line: str) -> CommandLine | None:
    match = _COMMAND.fullmatch(line)
    return CommandLine(match[1], match[2] or "") if match else None
