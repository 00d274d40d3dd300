"""Cases of one kind, of which `make test` runs some; `make soak` runs the others, or many more."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

SOAK_SECONDS = float(os.environ.get("SOAK_SECONDS", "30"))


def lasting(times: float = 1.0) -> Iterator[int]:
    """Yields the numbers of a soak's rounds, from 0, for this many times `SOAK_SECONDS`."""
    end = time.monotonic() + times * SOAK_SECONDS
    for number in itertools.count():
        yield number
        if time.monotonic() > end:
            return


def sampled(cases: Mapping[str, Any], every: int) -> list[Any]:
    """The parameters of a test: each `every`-th case runs always, and the others in the soak.

    A tuple holds the values of several parameters.
    """
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            id=name,
            marks=[pytest.mark.soak] if index % every else [],
        )
        for index, (name, value) in enumerate(cases.items())
    ]


def but_for(cases: Mapping[str, Any], *names: str) -> list[Any]:
    """The parameters of a test: all cases run always, except those with these names."""
    assert cases.keys() >= set(names)
    return [
        pytest.param(value, id=name, marks=[pytest.mark.soak] if name in names else [])
        for name, value in cases.items()
    ]
