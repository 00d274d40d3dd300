"""A new workspace for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.state.files.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    """An empty workspace at commit 1."""
    made = Workspace(tmp_path)
    yield made
    made.close()
