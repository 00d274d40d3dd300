"""A workspace of its own for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.versions.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """An empty workspace at commit 1."""
    return Workspace(tmp_path)
