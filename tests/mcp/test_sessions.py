"""The sessions of clients, without a server."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from wasm_kernel.frontends.mcp.callers import Caller
from wasm_kernel.frontends.mcp.sessions import AgentSession, AgentSessions
from wasm_kernel.policy import ExecutionPolicy


def test_a_client_that_leaves_while_its_session_is_made_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before, the session stayed until it expired."""
    deleted: list[str] = []

    class Sessions(AgentSessions):
        async def _made(self, caller: Caller, language: str) -> Any:
            begun.set()
            await may_end.wait()
            return SimpleNamespace(sync=SimpleNamespace(worker=SimpleNamespace(why_closed="")))

        async def destroy(self, session: AgentSession, why: str = "") -> None:
            deleted.append(session.handle)

    async def leave() -> list[str]:
        sessions = Sessions(Future(), ExecutionPolicy(), keep=False)
        call = asyncio.create_task(sessions.of(Caller("connection 1"), None))
        await begun.wait()
        call.cancel()
        leaving = asyncio.create_task(sessions.end_scope("connection 1"))
        await asyncio.sleep(0)
        may_end.set()
        await leaving
        return [each.handle for each in sessions.all()]

    begun, may_end = asyncio.Event(), asyncio.Event()
    made = asyncio.run(leave())
    assert len(made) == 1
    assert deleted == made
