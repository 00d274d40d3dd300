"""The states that a session can restore, shown as a table and as a tree.

A state is an object with `id`, `parent`, `name`, `cell`, `label`, `time`, `bytes` and `here`, as
`Tree.rows` returns it; `Tree.ran` tells how its cell ran. A state with several names occurs once
for each. Times are in UTC, as the guest has no time zone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from wasm_kernel.result import Ran, readable, readable_time
from wasm_kernel.state.index import place_of

State = dict[str, Any]

_DEPTH = 40  # levels; deeper branches are drawn at this level
_HEADINGS = ("checkpoint", "after cell", "first line", "time", "KiB", "")


def _place(state: State) -> str:
    return place_of(state["cell"], state["label"])


def _time(state: State) -> str:
    """Returns the time of day, with the date if it is not today."""
    then = time.gmtime(state["time"])
    today = then[:3] == time.gmtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)


def padded(lines: Sequence[Sequence[str]]) -> str:
    """Returns lines of cells as text in columns, each as wide as its longest cell."""
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
        """Returns the table in columns."""
        return padded([_HEADINGS, *self._lines])

    def html(self) -> str:
        """Returns the table as HTML, with labels escaped."""

        def row(cells: tuple[str, ...], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in cells) + "</tr>"

        body = "".join(row(cells, "td") for cells in self._lines)
        return f"<table><thead>{row(_HEADINGS, 'th')}</thead><tbody>{body}</tbody></table>"


class HistoryTree:
    """The states as a tree: a cell that ran after going back begins a branch.

    The line to the current state goes straight down; other branches hang off it.
    """

    def __init__(self, states: list[State], ran: Mapping[int, Ran] | None = None) -> None:
        self._ran = ran or {}
        self._names: dict[int, list[str]] = {}
        self._states: dict[int, State] = {}
        for state in states:
            self._states[state["id"]] = state
            self._names.setdefault(state["id"], []).extend([state["name"]] if state["name"] else [])
        self._below: dict[int, list[int]] = {}
        for one, state in sorted(self._states.items()):
            parent = state["parent"] if state["parent"] in self._states else 0
            self._below.setdefault(parent, []).append(one)
        self._line: set[int] = set()  # from the beginning to the current state
        at = next((one for one, state in self._states.items() if state["here"]), 0)
        while at in self._states:
            self._line.add(at)
            at = self._states[at]["parent"]

    def _walk(self) -> Iterator[tuple[int, int, bool]]:
        """Yields every state, the depth of its branch, and True if the branch begins there.

        Uses a stack of its own, as a hostile history has branches of any depth.
        """
        waiting = [(top, 0, True) for top in reversed(self._below.get(0, []))]
        while waiting:
            one, depth, begins = waiting.pop()
            yield one, min(depth, _DEPTH), begins
            if below := self._below.get(one):
                straight = max(below, key=lambda child: (child in self._line, child))
                waiting.append((straight, depth, False))
                waiting += [(b, depth + 1, True) for b in reversed(below) if b != straight]

    def _cells(self, one: int) -> tuple[str, str, str, str, str]:
        state = self._states[one]
        names = ", ".join(map(repr, self._names[one]))
        here = "<- here" if state["here"] else ""
        return str(state["label"]), names, self._facts(one), _time(state), here

    def _facts(self, one: int) -> str:
        ran = self._ran.get(one)
        facts = ["" if one in self._line else "undone", readable(self._states[one]["bytes"])]
        if ran is not None:
            sent = "sent requests, can't be unsent" if ran.sent else ""
            facts = [ran.error, facts[0], sent, readable_time(ran.seconds), facts[1]]
        return ", ".join(filter(None, facts))

    def text(self) -> str:
        """Returns the tree in characters."""
        lines: list[tuple[str, ...]] = []
        for one, depth, begins in self._walk():
            before = "│ " * (depth - 1) + "├─" if begins and depth else "│ " * depth
            mark = "●" if one in self._line else "○"
            lines.append((f"{before}{mark} {_place(self._states[one])}", *self._cells(one)))
        return padded(lines)

    def html(self) -> str:
        """Returns the tree as nested HTML lists, with labels escaped."""
        parts: list[str] = []
        opened = 0  # lists
        for one, depth, begins in self._walk():
            stay = depth if begins else depth + 1
            parts.append("</li></ul>" * (opened - stay))
            parts.append("<ul>" if begins else "</li>")
            opened = depth + 1
            label, names, facts, when, here = self._cells(one)
            label = f"<code>{escape(label)}</code>" if label else ""
            text = f"{_place(self._states[one])} {label} {escape(names)}"
            text = f"<b>{text}</b>" if here else text
            parts.append(f"<li>{text} <small>{escape(facts)}, {when}</small>")
        return "".join(parts) + "</li></ul>" * opened
