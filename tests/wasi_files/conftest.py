"""A tiny guest for every test of file calls."""

from __future__ import annotations

from tests.engine.conftest import guest

__all__ = ["guest"]
