"""The states of a session that can be gone back to, shown as a table and as a tree.

A state is an object with `id`, `parent`, `name`, `cell`, `label`, `time`, `bytes` and `here`, as
`Tree.rows` gives it. One with several names comes several times. Times are the guest's, which
knows no time zone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from html import escape
from typing import Any

from wasm_kernel.state.index import place_of

State = dict[str, Any]

_DEPTH = 40  # branches of branches beyond are drawn beside each other
_HEADINGS = ("checkpoint", "after cell", "first line", "time", "KiB", "")


def _place(state: State) -> str:
    return place_of(state["cell"], state["label"])


def _time(state: State) -> str:
    """The time of day, with the date if that is not today's."""
    then = time.gmtime(state["time"])
    today = then[:3] == time.gmtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)


def _padded(lines: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


class CheckpointTable:
    """The states in the order in which they were left."""

    def __init__(self, states: list[State]) -> None:
        self._lines = [
            (
                str(state["name"] or ""),
                _place(state),
                str(state["label"]),
                _time(state),
                f"{state['bytes'] / 1024:,.0f}",
                "here" if state["here"] else "",
            )
            for state in states
        ]

    def text(self) -> str:
        """The table in columns."""
        return _padded([_HEADINGS, *self._lines])

    def html(self) -> str:
        """The table as HTML, labels escaped."""

        def row(cells: tuple[str, ...], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in cells) + "</tr>"

        body = "".join(row(cells, "td") for cells in self._lines)
        return f"<table><thead>{row(_HEADINGS, 'th')}</thead><tbody>{body}</tbody></table>"


class HistoryTree:
    """The states as they follow one another; after somebody went back, a branch begins.

    The line that leads to where memory is goes straight down, the others hang off it.
    """

    def __init__(self, states: list[State]) -> None:
        self._names: dict[int, list[str]] = {}
        self._states: dict[int, State] = {}
        for state in states:
            self._states[state["id"]] = state
            self._names.setdefault(state["id"], []).extend([state["name"]] if state["name"] else [])
        self._below: dict[int, list[int]] = {}
        for one, state in sorted(self._states.items()):
            parent = state["parent"] if state["parent"] in self._states else 0
            self._below.setdefault(parent, []).append(one)
        self._line: set[int] = set()  # what leads to where memory is
        at = next((one for one, state in self._states.items() if state["here"]), 0)
        while at in self._states:
            self._line.add(at)
            at = self._states[at]["parent"]

    def _walk(self) -> Iterator[tuple[int, int, bool]]:
        """Every state, on how deep a branch it is, and whether that begins there.

        A stack, as a hostile history has branches of any depth.
        """
        waiting = [(top, 0, True) for top in reversed(self._below.get(0, []))]
        while waiting:
            one, depth, begins = waiting.pop()
            yield one, min(depth, _DEPTH), begins
            if below := self._below.get(one):
                straight = max(below, key=lambda child: (child in self._line, child))
                waiting.append((straight, depth, False))
                waiting += [(b, depth + 1, True) for b in reversed(below) if b != straight]

    def _cells(self, one: int) -> tuple[str, str, str, str]:
        state = self._states[one]
        names = ", ".join(map(repr, self._names[one]))
        return str(state["label"]), names, _time(state), "<- here" if state["here"] else ""

    def text(self) -> str:
        """The tree in characters."""
        lines: list[tuple[str, ...]] = []
        for one, depth, begins in self._walk():
            before = "│ " * (depth - 1) + "├─" if begins and depth else "│ " * depth
            lines.append((f"{before}● {_place(self._states[one])}", *self._cells(one)))
        return _padded(lines)

    def html(self) -> str:
        """The tree as nested lists, labels escaped."""
        parts: list[str] = []
        opened = 0  # lists
        for one, depth, begins in self._walk():
            stay = depth if begins else depth + 1
            parts.append("</li></ul>" * (opened - stay))
            parts.append("<ul>" if begins else "</li>")
            opened = depth + 1
            label, names, when, here = self._cells(one)
            text = f"{_place(self._states[one])} <code>{escape(label)}</code> {escape(names)}"
            text = f"<b>{text}</b>" if here else text
            parts.append(f"<li>{text} <small>{when}</small>")
        return "".join(parts) + "</li></ul>" * opened
