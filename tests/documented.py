"""A log that tests read, and the fields of events in the comments of `wasm_kernel/events.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from structlog.testing import CapturingLogger

from wasm_kernel import SandboxLogger, events

_ALWAYS = {"session_id", "level"}  # bound by the session; added by the tests
_LINE = re.compile(r'^[A-Z_]+ = "([a-z._]+)"  # ([^:\n]+)(?:: )?(.*)$', re.MULTILINE)


@cache
def _documented() -> Mapping[str, tuple[list[str], str]]:
    source = re.sub(r"\n# +", " ", inspect.getsource(events))
    lines = _LINE.findall(source)
    return {event: (re.findall(r"\w+", fields), meaning) for event, fields, meaning in lines}


def fields_of() -> Mapping[str, frozenset[str]]:
    """The documented fields, by the event's name."""
    return {event: frozenset(fields) for event, (fields, _) in _documented().items()}


def fields_in_order(event: str) -> list[str]:
    """The fields of one event, in the order of the comment."""
    return _documented()[event][0]


def meanings() -> Mapping[str, str]:
    """The comment's text beyond the fields, by the event's name; mostly empty."""
    return {event: meaning for event, (_, meaning) in _documented().items()}


def check(told: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Checks that every event in the log is documented, with every field."""
    for event, fields in told:
        assert event in fields_of(), event
        assert set(fields) - _ALWAYS <= fields_of()[event], event


class Heard:
    """A logger, and the events that it heard."""

    def __init__(self) -> None:
        self._capturing = CapturingLogger()
        self.logger = SandboxLogger(self._capturing)

    def clear(self) -> None:
        """Forgets all events."""
        self._capturing.calls.clear()

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Each event's name and fields, in order; `level` is one of the fields."""
        return [
            (call.args[0], {**call.kwargs, "level": call.method_name})
            for call in self._capturing.calls
        ]

    def of(self, name: str) -> list[dict[str, Any]]:
        """The fields of all events of this name."""
        return [fields for event, fields in self.events if event == name]

    def one(self, name: str) -> dict[str, Any]:
        """The fields of the event of this name; it must have been heard just once."""
        (fields,) = self.of(name)
        return fields
