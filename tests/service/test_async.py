"""A service used by programs with asyncio."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from inspect import iscoroutinefunction
from typing import Any

import anyio
import pytest

from tests.faces import PATIENCE
from tests.service.conftest import Starting
from tests.service.offered import echo
from wasm_kernel.errors import LimitReached, SandboxClosed, TravelError
from wasm_kernel.guests.protocol import Output, Stream
from wasm_kernel.service.async_session import AsyncSession
from wasm_kernel.service.limits import ServiceLimits
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.service.service import AsyncService, Service

pytestmark = pytest.mark.usefixtures("one_fork_server")
ENDLESS = "begun = True\nprint('begun', flush=True)\nwhile True: pass"


@pytest.fixture
async def session(service: Service) -> AsyncIterator[AsyncSession]:
    """A new session of a service."""
    async with AsyncSession(await asyncio.to_thread(service.create)) as session:
        yield session


async def test_a_service_makes_sessions_whose_calls_are_awaited(starting: Starting) -> None:
    limits = ServiceLimits(owner_sessions=1)
    async with starting(limits=limits) as service:
        session = await service.create(owner="ada")
        first = await session.execute("x = 1; print(x)", timeout_seconds=30)
        assert (first.stdout, first.success) == ("1\n", True)
        with pytest.raises(LimitReached, match="An owner may have 1 session"):
            await service.create(owner="ada")
        (listed,) = await service.list("ada")
        assert (listed.cells, (await service.info(session.session_id)).cells) == (1, 1)
        again = await service.get(session.session_id, owner="ada")
        assert (await again.execute("print(x)")).stdout == "1\n"
        await service.delete(session.session_id)
        assert not session.workspace.exists()
    with pytest.raises(SandboxClosed, match="service is closed"):
        await service.create()


async def test_outputs_are_heard_in_the_loop_before_the_result(session: AsyncSession) -> None:
    heard: list[tuple[Output, threading.Thread]] = []
    result = await session.execute(
        "import sys; print('a', flush=True); print('b', file=sys.stderr); display(1)",
        on_output=lambda output: heard.append((output, threading.current_thread())),
    )
    assert result.success
    assert {thread for _, thread in heard} == {threading.current_thread()}
    texts = [each.text for each, _ in heard if isinstance(each, Stream)]
    assert texts == ["a\n", "b\n"]
    assert len(heard) == 3


async def test_a_cancelled_await_interrupts_its_cell_alone(session: AsyncSession) -> None:
    begun = asyncio.Event()
    endless = asyncio.create_task(session.execute(ENDLESS, on_output=lambda output: begun.set()))
    await begun.wait()
    waiting = asyncio.create_task(session.execute("print(begun)"))
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless
    assert (await waiting).stdout == "True\n"


async def test_a_cancelled_await_ends_though_its_cell_goes_on(session: AsyncSession) -> None:
    """Formerly, the await went on as long as the cell, and the loop cancelled it at each turn."""
    cancels = 0

    class Task(asyncio.Task[None]):
        def cancel(self, msg: Any = None) -> bool:
            nonlocal cancels
            cancels += 1
            return super().cancel(msg)

    catches = "n = 0\nwhile True:\n try:\n  print(n, flush=True)\n  while True: pass\n"
    catches += " except KeyboardInterrupt: n += 1"
    begun, scope = asyncio.Event(), anyio.CancelScope()

    async def scoped() -> None:
        with scope:
            await session.execute(catches, on_output=lambda _: begun.set())

    for by_scope in (False, True):
        begun.clear()
        call, cancels = Task(scoped(), loop=asyncio.get_running_loop()), 0
        await begun.wait()
        (scope if by_scope else call).cancel()
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait((call,))
        assert cancels < 5
        assert (await session.execute("print('n' in dir())")).stdout == "False\n"
    assert scope.cancelled_caught


async def test_a_cell_that_is_cancelled_while_it_is_sent_does_not_run(
    session: AsyncSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell is sent late if the service has to make room for its worker."""
    await session.execute("ran = False")
    sends, may_send, cells = threading.Event(), threading.Event(), queue.SimpleQueue[Any]()
    real = session.sync.submit

    def slow(*args: Any, **options: Any) -> Any:
        sends.set()
        assert may_send.wait(30)
        cell = real(*args, **options)
        cells.put(cell)
        return cell

    with monkeypatch.context() as patch:
        patch.setattr(session.sync, "submit", slow)
        call = asyncio.create_task(session.execute("import time; time.sleep(60); ran = True"))
        await asyncio.to_thread(sends.wait, 30)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    may_send.set()
    cell = await asyncio.to_thread(cells.get)
    assert not (await asyncio.wrap_future(cell)).success
    assert (await session.execute("print(ran)")).stdout == "False\n"


async def test_a_session_goes_back_forks_and_has_files(session: AsyncSession) -> None:
    await session.start()
    await session.write_file("in.txt", "1")
    await session.execute("x = [int(open('in.txt').read())]")
    await session.checkpoint("one")
    await session.execute("x.append(2); open('out.txt', 'w').close()")
    (fork,) = await session.fork()
    async with fork:
        await session.undo()
        assert (await session.execute("print(x)")).stdout == "[1]\n"
        assert (await fork.execute("print(x)")).stdout == "[1, 2]\n"
    await session.restore("one", files=True)
    assert await session.list_files() == ["in.txt"]
    assert "one" in [each.name for each in await session.checkpoints()]
    with pytest.raises(TravelError):
        await session.restore("two")
    assert not await session.interrupt()


async def test_a_reset_session_keeps_its_files_alone(session: AsyncSession) -> None:
    begun = asyncio.Event()
    await session.execute("x = 1; open('kept', 'w').close()")
    running = asyncio.create_task(session.execute(ENDLESS, on_output=lambda output: begun.set()))
    await begun.wait()
    await session.reset()
    assert not (await running).success
    again = await session.execute("import os; print('x' in dir(), os.listdir())")
    assert (again.stdout, again.stderr) == ("False ['kept']\n", "")


WAITS = """
import os, time
print("begun", flush=True)
while not os.path.exists("go"): time.sleep(0.01)
"""
Calls = dict[str, Callable[[AsyncService, AsyncSession], Coroutine[Any, Any, object]]]
AWAITED: Calls = {
    "execute": lambda service, session: session.execute("1"),
    "aexecute": lambda service, session: session.sync.aexecute("1"),
    "start": lambda service, session: session.start(),
    "fork": lambda service, session: session.fork(),
    "checkpoint": lambda service, session: session.checkpoint("here"),
    "checkpoints": lambda service, session: session.checkpoints(),
    "undo": lambda service, session: session.undo(),
    "redo": lambda service, session: session.redo(),
    "restore": lambda service, session: session.restore("one"),
    "rollback": lambda service, session: session.rollback(),
    "list_files": lambda service, session: session.list_files(),
    "read_file": lambda service, session: session.read_file("one.txt"),
    "write_file": lambda service, session: session.write_file("two.txt", b""),
    "delete_file": lambda service, session: session.delete_file("one.txt"),
    "create": lambda service, session: service.create(),
    "get": lambda service, session: service.get(session.session_id),
    "list": lambda service, session: service.list(),
    "info": lambda service, session: service.info(session.session_id),
}
ENDING: Calls = {
    "interrupt": lambda service, session: session.interrupt(),
    "reset": lambda service, session: session.reset(),
    "close": lambda service, session: session.close(),
    "delete": lambda service, session: service.delete(session.session_id),
    "close_service": lambda service, session: service.close(),
}


def test_the_tables_have_each_method_that_is_awaited() -> None:
    faces = (AsyncSession, AsyncService, Sandbox)
    found = {name for face in faces for name in vars(face) if iscoroutinefunction(vars(face)[name])}
    assert found - {"__aenter__", "__aexit__"} <= {*AWAITED, *ENDING}


@pytest.mark.parametrize("name", [*AWAITED, *ENDING])
async def test_event_loops_go_on_while_a_cell_runs(starting: Starting, name: str) -> None:
    """Formerly, the loop stood still until a cell's end if functions were offered while it ran."""
    async with starting() as service:
        session, begun = await service.create(), asyncio.Event()
        await session.write_file("one.txt", b"")
        await session.execute("x = 1")
        await session.checkpoint("one")
        await session.execute("x = 2")
        await session.undo()
        options: dict[str, Any] = {"timeout_seconds": PATIENCE}
        options["store_history"] = False  # `undo` may be redone
        running = asyncio.create_task(
            session.execute(WAITS, on_output=lambda _: begun.set(), **options)
        )
        await begun.wait()
        session.sync.offer_functions([echo])  # the next call gets another worker
        call = asyncio.create_task((AWAITED | ENDING)[name](service, session))
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert running.done() <= (name in ENDING)
        if name in AWAITED:
            (session.workspace / "go").touch()
        assert (await running).success is (name in AWAITED)
        await call
