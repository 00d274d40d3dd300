"""A tiny guest for tests of the calls that a language makes on an instance."""

from __future__ import annotations

from tests.engine.conftest import guest

__all__ = ["guest"]
