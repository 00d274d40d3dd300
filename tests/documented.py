"""The fields of each event as `wasm_kernel/events.py` documents them, to hold the package to it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from wasm_kernel import events

_ALWAYS = {"session_id", "level"}  # bound by the session; added by the tests


@cache
def fields_of() -> Mapping[str, frozenset[str]]:
    """By the event's name."""
    source = re.sub(r"\n# +", " ", inspect.getsource(events))
    lines = re.findall(r'^[A-Z_]+ = "([a-z._]+)"  # ([^:\n]+)', source, re.MULTILINE)
    return {event: frozenset(re.findall(r"\w+", fields)) for event, fields in lines}


def check(told: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Every event that was told is documented, with every field."""
    for event, fields in told:
        assert event in fields_of(), event
        assert set(fields) - _ALWAYS <= fields_of()[event], event
