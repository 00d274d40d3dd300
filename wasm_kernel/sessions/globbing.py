"""Glob patterns over paths in a session: `*`, `?`, `[...]` within a name, `**` across folders."""

from __future__ import annotations

import fnmatch
import re
from itertools import pairwise

from wasm_kernel.sessions.paths import SessionPathError, normalized

_ANY_FOLDERS = "**"


class Pattern:
    """A pattern, matched name by name; its cost is bounded by pattern times path. Immutable.

    `**` stands for any number of folders, none included; at the end of a pattern for everything
    below. Names that begin with a dot match like all others.
    """

    def __init__(self, text: str) -> None:
        parts = normalized(text)
        if not parts or ".." in parts:
            raise SessionPathError("A pattern stays inside the session workspace", text)
        if parts[-1] == _ANY_FOLDERS:
            parts.append("*")
        once = [one for one, after in pairwise([*parts, ""]) if one != after or one != _ANY_FOLDERS]
        self._names = [None if part == _ANY_FOLDERS else _regex(part) for part in once]

    def matches(self, path: tuple[str, ...]) -> bool:
        """Whether the pattern fits the whole of a path."""
        states = self._opened({0})
        for name in path:
            states = self._opened(set(self._after(states, name)))
        return len(self._names) in states

    def _after(self, states: set[int], name: str) -> list[int]:
        found = []
        for state in states:
            if state < len(self._names):
                regex = self._names[state]
                if regex is None:
                    found.append(state)
                elif regex.match(name):
                    found.append(state + 1)
        return found

    def _opened(self, states: set[int]) -> set[int]:
        """The states, and those behind each `**` that may stand for no folder at all."""
        found = set(states)
        for state in sorted(states):
            at = state
            while at < len(self._names) and self._names[at] is None:
                at += 1
                found.add(at)
        return found


def _regex(part: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(part))
