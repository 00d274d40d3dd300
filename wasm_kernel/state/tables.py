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

State = dict[str, Any]

_DEPTH = 40  # branches of branches beyond are drawn beside each other
_HEADINGS = ("checkpoint", "after cell", "first line", "time", "KiB", "")


def _place(state: State) -> str:
    return f"In[{state['cell']}]" if state["cell"] else "the beginning"


def _time(state: State) -> str:
    """The time of day, with the date where that is not today's."""
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
        self.states = states

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (
                str(state["name"] or ""),
                _place(state),
                str(state["label"]),
                _time(state),
                f"{state['bytes'] / 1024:,.0f}",
                "here" if state["here"] else "",
            )
            for state in self.states
        ]

    def text(self) -> str:
        """The table in columns."""
        return _padded([_HEADINGS, *self._cells()])

    def html(self) -> str:
        """The table as HTML, labels escaped."""

        def row(cells: tuple[str, ...], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in cells) + "</tr>"

        body = "".join(row(cells, "td") for cells in self._cells())
        return f"<table><thead>{row(_HEADINGS, 'th')}</thead><tbody>{body}</tbody></table>"


class HistoryTree:
    """The states as they follow one another; where somebody went back, a branch begins.

    The line that leads to where memory stands goes straight down, the others hang off it.
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
        self._line = self._to_here()

    def _to_here(self) -> set[int]:
        at = next((one for one, state in self._states.items() if state["here"]), 0)
        line: set[int] = set()
        while at in self._states:
            line.add(at)
            at = self._states[at]["parent"]
        return line

    def _lines(self, one: int) -> Iterator[tuple[int, list[int]]]:
        """A state and those straight below it, each with the branches that begin there."""
        while one:
            below = self._below.get(one, [])
            straight = max(below, key=lambda child: (child in self._line, child), default=0)
            yield one, [child for child in below if child != straight]
            one = straight

    def _drawn(self, top: int) -> Iterator[tuple[str, ...]]:
        """The rows of one tree. A stack, as a hostile history has branches of any depth."""
        waiting = [(self._lines(top), "", "")]
        while waiting:
            line, first, rest = waiting.pop()
            for state, branches in line:
                yield (f"{first}● {_place(self._states[state])}", *self._told(state))
                waiting.append((line, rest, rest))
                inner = f"{rest}│ " if len(rest) < 2 * _DEPTH else rest
                waiting += [(self._lines(one), f"{rest}├─", inner) for one in reversed(branches)]
                break

    def _told(self, one: int) -> tuple[str, str, str, str]:
        state = self._states[one]
        names = ", ".join(map(repr, self._names[one]))
        return str(state["label"]), names, _time(state), "<- here" if state["here"] else ""

    def text(self) -> str:
        """The tree in characters."""
        tops = self._below.get(0, [])
        return _padded([line for top in tops for line in self._drawn(top)])

    def html(self) -> str:
        """The tree as nested lists, labels escaped."""
        return "".join("".join(self._list(top)) for top in self._below.get(0, []))

    def _list(self, top: int) -> Iterator[str]:
        waiting: list[str | Iterator[tuple[int, list[int]]]] = ["</ul>", self._lines(top), "<ul>"]
        depth = 0
        while waiting:
            piece = waiting.pop()
            if isinstance(piece, str):
                depth += {"<ul>": 1, "</ul>": -1}.get(piece, 0)
                yield piece
                continue
            for state, branches in piece:
                yield self._item(state)
                waiting += [piece, "</li>"]
                begin, end = ("<ul>", "</ul>") if depth < _DEPTH else ("", "")
                for one in reversed(branches):
                    waiting += [end, self._lines(one), begin]
                break

    def _item(self, one: int) -> str:
        label, names, when, here = self._told(one)
        text = f"{_place(self._states[one])} <code>{escape(label)}</code> {escape(names)}"
        text = f"<b>{text}</b>" if here else text
        return f"<li>{text} <small>{when}</small>"
