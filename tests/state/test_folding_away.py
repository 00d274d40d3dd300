"""Folding on disk: every kept state stays, whatever happens in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.state.session import Session, three
from tests.state.test_history import reopened
from wasm_kernel.state import commits
from wasm_kernel.state.folding import fold

Making = Callable[..., Session]


def test_folding_keeps_every_state_that_it_keeps(session_of: Making, session: Session) -> None:
    for number in range(10):
        session.cell(**{f"p{number % 4}": f"v{number}"})
    session.history.name("early", 3)
    session.flush()
    fold(session.history, 2)
    assert sorted(session.history.tree.commits) == [3, 8, 9, 10]
    assert session.go(3) == {0: "v0", 1: "v1", 2: "v2"}
    assert session.go(8) == {0: "v4", 1: "v5", 2: "v6", 3: "v7"}
    assert session.go(10) == {0: "v8", 1: "v9", 2: "v6", 3: "v7"}


def test_folding_that_is_killed_leaves_every_state(session_of: Making, session: Session) -> None:
    """It is killed after writing the merged child and before removing the parent."""
    three(session)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session.history, "drop", lambda one: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fold(session.history, 1)
    again = reopened(session_of, session)
    assert again.state == {0: "A", 1: "b", 2: "c"}
    assert again.go(2) == {0: "A", 1: "b"}


def test_a_rollback_does_not_wait_for_a_folding(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A travel into the range that is being folded finds every state."""
    three(session)
    write, states = commits.write_content, list[dict[int, str]]()

    def interleaved(*args: object) -> object:
        written = write(*args)  # type: ignore[arg-type]
        states.extend(session.go(one) for one in (3, 1))
        return written

    monkeypatch.setattr(commits, "write_content", interleaved)
    fold(session.history, 1)
    assert states == [{0: "A", 1: "b", 2: "c"}, {0: "a"}]
    assert session.go(3) == {0: "A", 1: "b", 2: "c"}
    assert session.go(2) == {0: "A", 1: "b"}


def test_folding_leaves_on_disk_what_stands_below_memory_only(
    session_of: Making, session: Session
) -> None:
    three(session)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commits, "write_content", _full)
        for number in range(5):
            session.cell(**{f"p{number}": "unsaved"})
        session.flush()
        with pytest.raises(OSError, match="No space"):
            fold(session.history, 1)
        again = reopened(session_of, session)
    assert again.state == {0: "A", 1: "b", 2: "c"}


def _full(*args: object) -> None:
    raise OSError(28, "No space left on device")
