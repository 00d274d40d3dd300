"""Small tables, as text and as HTML, and values that show themselves as one."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

MAX_ROWS = 1_000
"""Longer tables are shown cut; their values are complete."""

Row = Sequence[str]
_UNITS = ("KiB", "MiB", "GiB", "TiB")
_STEP = 1024


def readable(size: int) -> str:
    """Returns a number of bytes in words, such as `1.5 MiB`."""
    if size < _STEP:
        return f"{size} bytes" if size != 1 else "1 byte"
    power = 1
    while power < len(_UNITS) and size >= _STEP ** (power + 1):
        power += 1
    return f"{size / _STEP**power:,.1f} {_UNITS[power - 1]}"


def one_line(text: str) -> str:
    """Returns `text` on one line, with whatever does not print escaped."""
    return text if text.isprintable() else repr(text)[1:-1]


def as_text(headings: Row, rows: Sequence[Row]) -> str:
    """Returns the table in columns, without lines between them; `headings` may be empty."""
    kept, note = _cut(rows)
    lines = [list(headings)] if headings else []
    lines += [[one_line(cell) for cell in row] for row in kept]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines)
    return "\n".join([line.rstrip() for line in padded] + ([note] if note else []))


def as_html(headings: Row, rows: Sequence[Row]) -> str:
    """Returns the table as HTML, everything in it escaped."""
    kept, note = _cut(rows)
    body = "".join(_html_row(row, "td") for row in kept)
    head = f"<thead>{_html_row(headings, 'th')}</thead>" if headings else ""
    table = f"<table>{head}<tbody>{body}</tbody></table>"
    return table + (f"<p>{escape(note)}</p>" if note else "")


def _cut(rows: Sequence[Row]) -> tuple[Sequence[Row], str]:
    left = len(rows) - MAX_ROWS
    return (rows, "") if left <= 0 else (rows[:MAX_ROWS], f"... and {left:,} more")


def _html_row(cells: Row, tag: str) -> str:
    style = ' style="text-align: left"'
    return "<tr>" + "".join(f"<{tag}{style}>{escape(one_line(c))}</{tag}>" for c in cells) + "</tr>"


class ShownAsTable:
    """A list or dict that shows itself as the table of `_headings` and `_rows`."""

    _headings: Row = ()
    _nothing = "nothing"

    def _rows(self) -> list[Row]:
        raise NotImplementedError

    def __repr__(self) -> str:
        rows = self._rows()
        return as_text(self._headings, rows) if rows else self._nothing

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def _repr_html_(self) -> str:
        rows = self._rows()
        return as_html(self._headings, rows) if rows else escape(self._nothing)
