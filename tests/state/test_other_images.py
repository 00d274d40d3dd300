"""States over another base image wait until a session with that image is opened."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from tests.state.session import Session
from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state.history import History
from wasm_kernel.state.stored import StateFolder

Making = Callable[..., Session]


def opened_with(session: Session, image: str) -> None:
    """Open the session with another base image, run a cell and close it."""
    with closing(History(Folder.open(session.folder), image)) as history:
        with pytest.raises(HistoryError, match=r"by another version .* kept for that version"):
            history.load()
        history.set_aside()
        assert history.tree.commits == {}
        history.save()


def test_states_wait_for_their_base_image(session_of: Making) -> None:
    session = session_of()
    session.cell(p0="1")
    session.cell(p0="2", p1="b")
    session.flush()
    session.history.name("best", 1)
    session.history.save()
    before = session.state
    session.close()
    opened_with(session, "another")
    again = session_of(load=True)
    assert again.state == before
    assert again.history.place is not None and again.history.place.has_come_back
    assert set(again.history.tree.names) == {"best"}
    again.close()
    with closing(StateFolder(Folder.open(session.folder))) as folder:
        assert folder.read("another") is not None  # the other image's states are there as well
        assert folder.has_come_back
        assert folder.unused_bytes


def test_states_that_wait_go_when_room_is_needed(session_of: Making) -> None:
    session = session_of()
    session.cell(p0="1")
    session.flush()
    session.close()
    opened_with(session, "another")
    with closing(StateFolder(Folder.open(session.folder))) as folder:
        folder.drop_unused()
        assert folder.unused_bytes == 0
    with (
        closing(History(Folder.open(session.folder), "image")) as history,
        pytest.raises(HistoryError, match="another version"),
    ):
        history.load()
