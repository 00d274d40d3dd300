"""An empty cache, and a tiny binary, for tests of the guest's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.test_compiler import binary
from wasm_kernel.engine.cache import Cache

__all__ = ["binary"]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """An empty cache."""
    made = Cache(tmp_path / "cache")
    made.prepare()
    return made
