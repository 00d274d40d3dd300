"""A tiny guest whose memory has a history."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.state.session import Session


@pytest.fixture
def session_of(tmp_path: Path, ending: ExitStack) -> Callable[..., Session]:
    """Makes sessions on one folder, and closes them after the test."""

    def one(folder: Path = tmp_path, **options: Any) -> Session:
        return ending.enter_context(closing(Session(folder, **options)))

    return one


@pytest.fixture
def session(session_of: Callable[..., Session]) -> Session:
    """One session."""
    return session_of()
