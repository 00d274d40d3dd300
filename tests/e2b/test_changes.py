"""Requests to one sandbox at once, in the worst order, without a server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wasm_kernel.errors import SessionInUse
from wasm_kernel.frontends.e2b import files, messages
from wasm_kernel.frontends.e2b.cells import CellStream
from wasm_kernel.frontends.e2b.messages import NewSandbox
from wasm_kernel.frontends.e2b.sandbox import HOME, ClientSandbox
from wasm_kernel.frontends.e2b.sandboxes import Sandboxes
from wasm_kernel.frontends.http.callers import Caller
from wasm_kernel.frontends.http.limits import Refusal
from wasm_kernel.frontends.http.session_files import HostWork
from wasm_kernel.linux.folders import Folder
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.service.async_session import AsyncSession
from wasm_kernel.wasi_files.access import FileAccess, files_in
from wasm_kernel.wasi_files.preopens import APP, Preopen
from wasm_kernel.wasi_files.quota import Quota

ANN = Caller("", "ann", "ann")


class SlowService:
    """A service whose `held` call takes until `go` is set."""

    def __init__(self) -> None:
        self.sync, self.limits = self, SimpleNamespace(expire_seconds=None)
        self.facts: dict[str, str] = {}
        self.made: list[str] = []
        self.deleted: list[str] = []
        self.fails_after = 99
        self.held = ""
        self.entered, self.go = threading.Event(), threading.Event()

    def _session(self, name: str) -> Any:
        self.made.append(name)
        worker = SimpleNamespace(why_closed="", state="asleep")
        return SimpleNamespace(session_id=name, sync=SimpleNamespace(worker=worker))

    def _wait(self, call: str) -> None:
        if call == self.held:
            self.entered.set()
            assert self.go.wait(20)

    async def create(self, *_: Any, **__: Any) -> Any:
        return self._session(str(uuid.uuid4()))

    async def get(self, name: str, *_: Any, **__: Any) -> Any:
        if name in self.deleted:
            raise FileNotFoundError(name)
        return self._session(name)

    def note(self, name: str, facts: str) -> None:
        self.facts[name] = facts

    def record(self, name: str) -> Any:
        found = self.facts.get(name)
        self._wait("record")
        return None if found is None else SimpleNamespace(facts=found)

    def delete(self, name: str, why: str) -> None:
        self._wait("delete")
        if len(self.deleted) == self.fails_after:
            raise OSError("the disk failed")
        self.deleted.append(name)
        self.facts.pop(name, None)


async def made(service: SlowService) -> tuple[Sandboxes, ClientSandbox]:
    async def opened() -> Any:
        return service

    sandboxes = Sandboxes(opened, ExecutionPolicy(), HostWork())
    return sandboxes, await sandboxes.create(ANN, NewSandbox("base"))


async def at_once(service: SlowService, held: str, first: Any, second: Any) -> list[Any]:
    """Begins the second call while the first one's `held` call to the service takes long."""
    service.held = held
    one = asyncio.ensure_future(first)
    await asyncio.to_thread(service.entered.wait, 20)
    service.held = ""
    two = asyncio.ensure_future(second)
    for _ in range(10):
        await asyncio.sleep(0)
    service.go.set()
    return [*await asyncio.gather(one, two, return_exceptions=True)]


async def test_a_context_that_is_made_while_its_sandbox_is_looked_up_stays() -> None:
    service = SlowService()
    sandboxes, sandbox = await made(service)
    asks = sandboxes.running(sandbox.name, [sandbox.kept.token])
    _, context = await at_once(service, "record", asks, sandboxes.new_context(sandbox, None))
    assert [*sandbox.contexts] == [sandbox.name, context.name]
    assert context.name in service.facts[sandbox.name]  # the sandbox's end deletes it


async def test_a_request_that_comes_while_a_sandbox_is_killed_does_not_bring_it_back() -> None:
    service = SlowService()
    sandboxes, sandbox = await made(service)
    asks = sandboxes.running(sandbox.name, [sandbox.kept.token])
    killed, answer = await at_once(service, "delete", sandboxes.kill(sandbox), asks)
    assert killed is None
    assert isinstance(answer, Refusal)
    assert answer.status == 502
    assert service.made == [sandbox.name]


async def test_a_sandbox_whose_end_failed_half_way_is_killed_by_the_next_request() -> None:
    service = SlowService()
    sandboxes, sandbox = await made(service)
    for _ in range(2):
        await sandboxes.new_context(sandbox, None)
    service.fails_after = 1
    with pytest.raises(OSError, match="the disk failed"):
        await sandboxes.kill(sandbox)
    service.fails_after = 99
    await sandboxes.kill(await sandboxes.of(ANN, sandbox.name))
    assert {*service.deleted} == {*service.made}


async def test_a_cell_whose_guest_is_not_ready_says_so_on_standard_error() -> None:
    class Slow:
        async def execute(self, _: str, *, progress: Any, **__: Any) -> None:
            for left in (60, 59, 58):
                progress(f"compiling, once: {left} s left")
            raise SessionInUse

    lease = SimpleNamespace(reserve=lambda size: True, give_back=lambda size: None)
    sandbox: Any = SimpleNamespace(is_gone=False)
    call: Any = SimpleNamespace(sandbox=sandbox, lease=lease, metrics=None)
    context: Any = SimpleNamespace(session=Slow())
    sent, stays = list[bytes](), asyncio.Event()

    async def receive() -> Any:
        await stays.wait()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    await CellStream(call, context, "1")({}, receive, send)
    told = [json.loads(line) for line in b"".join(sent).splitlines()]
    assert [(line["type"], line.get("text")) for line in told[:-1]] == [
        ("stderr", "[wasm-kernel] compiling, once: 60 s left\n")
    ]


def test_a_list_of_files_that_takes_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly, a list of 14,000 links, each through 40 others, took the server 18 minutes."""

    @contextlib.contextmanager
    def opened(_: object) -> Iterator[FileAccess]:
        with Folder.open(tmp_path) as folder:
            folders = [Preopen(folder, APP)]
            with files_in(folders, Quota(folders, 0, 0), home=HOME) as found:
                yield found

    monkeypatch.setattr(files, "_open", opened)
    (tmp_path / "a").touch()
    asked, session = messages.ListDirRequest("."), cast(AsyncSession, None)
    assert [each.name for each in files.list_folder(session, asked).entries] == ["a"]
    monkeypatch.setattr(files, "_LIST_SECONDS", -1.0)
    with pytest.raises(Refusal, match="List its folders"):
        files.list_folder(session, asked)
