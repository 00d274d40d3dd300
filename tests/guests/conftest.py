"""A tiny guest for the tests of what a language does to an instance."""

from __future__ import annotations

from tests.engine.conftest import guest

__all__ = ["guest"]
