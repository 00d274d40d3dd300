"""The sessions of clients, without a server."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from itertools import count
from types import SimpleNamespace
from typing import Any

from wasm_kernel.frontends.http.callers import Caller
from wasm_kernel.frontends.mcp.sessions import AgentSession, AgentSessions
from wasm_kernel.policy import ExecutionPolicy


class Fakes(AgentSessions):
    """Sessions without guests."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.deleted: list[str] = []
        self._numbers = count()

    async def service(self) -> Any:
        async def create(*_: Any, **__: Any) -> Any:
            worker = SimpleNamespace(why_closed="")
            return SimpleNamespace(
                sync=SimpleNamespace(worker=worker), session_id=f"{next(self._numbers)}"
            )

        return SimpleNamespace(create=create)

    async def destroy(self, session: AgentSession, why: str = "") -> None:
        session.sandbox.sync.worker.why_closed = why
        self.deleted.append(session.handle)


async def test_a_client_that_leaves_while_its_session_is_made_leaves_none() -> None:
    """Formerly, such a session stayed until it expired."""
    begun, may_end = asyncio.Event(), asyncio.Event()

    class Sessions(Fakes):
        async def service(self) -> Any:
            begun.set()
            await may_end.wait()
            return await super().service()

    sessions = Sessions(Future(), ExecutionPolicy(), keep=False)
    call = asyncio.create_task(sessions.of(Caller("connection 1", "", "connection 1"), None))
    await begun.wait()
    call.cancel()
    leaving = asyncio.create_task(sessions.end_scope("connection 1"))
    await asyncio.sleep(0)
    may_end.set()
    await leaving
    assert not sessions.all()
    assert len(sessions.deleted) == 1


async def test_only_sessions_whose_clients_left_are_deleted_after_an_hour() -> None:
    sessions = Fakes(Future(), ExecutionPolicy(), keep=False)
    nobody, there = Caller("", "", "at 1"), Caller("connection 1", "", "connection 1")
    unnamed = await sessions.of(nobody, None)
    named = await sessions.of(nobody, None, "javascript")
    own = await sessions.of(there, None)
    left = await sessions.of(Caller("connection 2", "", "connection 2"), None)
    explicit = await sessions.create(nobody, "python")
    sessions.known(nobody, named.handle)
    sessions.client_is_there("connection 1", False)
    sessions.client_is_there("connection 1", True)
    sessions.client_is_there("connection 2", False)
    await sessions.end_left(unnamed.used - 1)
    assert not sessions.deleted
    await sessions.end_left(explicit.used + 1)
    assert sessions.deleted == [unnamed.handle, left.handle]
    left_again = await sessions.of(Caller("connection 2", "", "connection 2"), None)
    assert "its client had left" in left_again.notes[0]
    assert [own.why_gone, named.why_gone, explicit.why_gone] == ["", "", ""]
