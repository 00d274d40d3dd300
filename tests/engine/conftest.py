"""A tiny guest for the tests of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.tiny import Guest


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Guest]:
    """A guest with `/app` (tracked, writable), `/ro`, `/other` (writable) and `/`."""
    made = Guest(tmp_path)
    yield made
    made.close()
