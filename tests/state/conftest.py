"""A tiny guest whose memory has a history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.state.session import Session


@pytest.fixture
def session_of(tmp_path: Path) -> Iterator[Callable[..., Session]]:
    """Makes sessions on one folder, and closes them after the test."""
    made: list[Session] = []

    def one(folder: Path = tmp_path, **options: object) -> Session:
        made.append(Session(folder, **options))  # type: ignore[arg-type]
        return made[-1]

    yield one
    for session in made:
        session.close()


@pytest.fixture
def session(session_of: Callable[..., Session]) -> Session:
    """One session."""
    return session_of()
