"""The server over HTTP: which client may use which session."""

from __future__ import annotations

import asyncio
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.faces import PATIENCE, wait_for
from tests.mcp.clients import MODERN, Agents, HttpServer, Wire, serving
from wasm_kernel import PolicyError
from wasm_kernel.frontends.cli.main import main
from wasm_kernel.frontends.http.callers import Caller, Tokens
from wasm_kernel.frontends.mcp.sessions import AgentSession, AgentSessions
from wasm_kernel.policy import ExecutionPolicy

TOKENS = """
admin = "an admin's token, long"
token = "a token that many share"
[owners]
ann = "the token of ann herself"
bob = "the token of bob himself"
"""
ADMIN, SHARED, ANN, BOB = (line.split('"')[1] for line in TOKENS.splitlines() if '"' in line)


@pytest.fixture(scope="module")
def closed(agents: Agents, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """A server that takes tokens."""
    file = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    file.write_text(TOKENS)
    options = ("--token-file", str(file), "--owner-sessions", "6")
    with serving(agents.environment, *options) as server:
        yield server


def refusal(request: urllib.request.Request) -> int:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=PATIENCE)
    with refused.value:
        return refused.value.code


def test_a_session_belongs_to_its_owner(closed: HttpServer, agents: Agents) -> None:
    ann, bob = agents.http(closed.url, ANN), agents.http(closed.url, BOB)
    ann.says("x = 'ann'")
    bob.says("x = 'bob'")
    assert agents.http(closed.url, ANN).says("x") == "'ann'"  # the token names the client
    older = agents.http(closed.url, ANN, mode="legacy")
    assert older.says("x", session=ann.call("list_sessions").handle) == "'ann'"
    assert ann.call("list_sessions").handle in older.call("list_sessions").text
    handle = ann.call("list_sessions").handle
    for tool in ("execute_code", "write_file", "destroy_session", "get_workspace_info"):
        arguments = {"execute_code": {"code": "x"}, "write_file": {"path": "x", "content": "x"}}
        refused = bob.call(tool, session=handle, **arguments.get(tool, {}))
        assert refused.failed
        assert "for you" in refused.text
    assert ann.says("x") == "'ann'"


def test_the_token_of_an_owner_brings_back_its_session(closed: HttpServer, agents: Agents) -> None:
    """Both protocols bring the session back."""
    for mode in ("legacy", "auto", MODERN):
        with ExitStack() as leaving:
            client = Agents(agents.environment, leaving).http(closed.url, BOB, mode=mode)
            client.says(f"kept = {mode!r}")
        assert agents.http(closed.url, BOB, mode=mode).says("kept") == repr(mode)


def test_a_client_without_a_handle_is_told_before_another_session_begins(
    closed: HttpServer, agents: Agents
) -> None:
    wire = agents.http(closed.url, SHARED, mode=MODERN)
    begun = wire.begin("execute_code", code="x = 1").result()
    first_line = begun.content[0].text
    assert first_line.startswith('[note] This is session="')
    handle = first_line.split('"')[1]
    for tool, arguments in (
        ("execute_code", {"code": "x = 2"}),
        ("write_file", {"path": "a", "content": "x"}),
        ("checkpoint", {"name": "a"}),
        ("list_files", {}),
        ("get_workspace_info", {}),
    ):
        refused = wire.begin(tool, **arguments).result()
        assert refused.is_error
        assert "Nothing was done" in refused.content[0].text
    assert "Name it" in wire.begin("list_sessions").result().content[0].text
    assert wire.says("x", session=handle) == "1"
    second = wire.call("create_session").handle
    assert "NameError" in wire.call("execute_code", code="x", session=second).text
    made = [wire.call("create_session", language="javascript") for _ in range(7)]
    assert sum(not each.failed for each in made) < 6  # the limit of the client holds here, too
    for each in made:
        if not each.failed:
            wire.call("destroy_session", session=each.handle)
    stranger = agents.http(closed.url, ANN).call("execute_code", code="x", session=handle)
    assert "for you" in stranger.text
    wire.call("destroy_session", session=handle)


def test_first_calls_at_once_share_a_session(closed: HttpServer, agents: Agents) -> None:
    agent = agents.http(closed.url, SHARED, mode="legacy")
    calls = [agent.begin("execute_code", code=f"x{number} = {number}") for number in range(4)]
    assert not [call for call in calls if call.result().is_error]
    assert agent.says("x0 + x1 + x2 + x3") == "6"


def test_an_old_client_gets_no_block_that_it_does_not_know(closed: HttpServer) -> None:
    for version, links in (("2025-11-25", 1), ("2025-03-26", 0), ("2024-11-05", 0)):
        wire = Wire(closed, ANN)
        session = wire.begin(version)
        arguments = {"path": "a.txt", "content": "x"}
        call = {"name": "write_file", "arguments": arguments}
        with wire.send("tools/call", call, session) as answer:
            assert answer.read().count(b"resource_link") == links
        wire.close()


def test_a_waiting_cell_whose_client_has_left_does_not_begin(closed: HttpServer) -> None:
    """Later calls of the session would wait for a cell whose result no client can get."""
    with closing(Wire(closed, ANN)) as wire:
        session = wire.begin()

    def send(code: str, *, waits: bool = True) -> bytes:
        call = {"name": "execute_code", "arguments": {"code": code}}
        with closing(Wire(closed, ANN)) as wire, wire.send("tools/call", call, session) as answer:
            return answer.read() if waits else b""

    send("runs = 0")
    for _ in range(4):
        send("import time\ntime.sleep(2)\nruns += 1", waits=False)
    assert b"runs: 1" in send("print('runs:', runs)")


def test_a_stream_that_a_client_resumes_begins_anew(closed: HttpServer) -> None:
    wire = Wire(closed, ANN)
    session = {"Mcp-Session-Id": wire.begin(), "Authorization": f"Bearer {ANN}"}
    headers = {"Accept": "text/event-stream", "Last-Event-ID": "7", **session}
    with urllib.request.urlopen(urllib.request.Request(closed.url, None, headers)) as answer:
        assert answer.status == 200
    wire.close()


def test_only_tokens_open_the_server(closed: HttpServer, agents: Agents) -> None:
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    for token in ("", "Bearer wrong", "Bearer " + ANN[:-1], "Basic " + ANN):
        request = urllib.request.Request(closed.url, body, {**headers, "Authorization": token})
        assert refusal(request) == 401
    foreign = {**headers, "Authorization": f"Bearer {ANN}", "Host": "evil.example"}
    assert refusal(urllib.request.Request(closed.url, body, foreign)) == 421
    page = {**headers, "Authorization": f"Bearer {ANN}", "Origin": "http://evil.example"}
    assert refusal(urllib.request.Request(closed.url, body, page)) == 403
    large = {**headers, "Authorization": f"Bearer {ANN}", "Content-Length": str(10**8)}
    assert refusal(urllib.request.Request(closed.url, body, large)) == 413


def test_pages_for_administrators(closed: HttpServer, agents: Agents) -> None:
    agents.http(closed.url, ANN).says("1 + 1")
    assert refusal(urllib.request.Request(closed.url.replace("/mcp", "/metrics"))) == 401
    assert closed.page("/healthz", ADMIN) == "ok\n"
    metrics = closed.page("/metrics", ADMIN)
    assert 'wasm_kernel_cells_total{outcome="ok"}' in metrics
    assert 'wasm_kernel_sessions{state="idle"}' in metrics
    assert "of ann" in agents.http(closed.url, ADMIN).call("list_active_sessions").text
    assert agents.http(closed.url, ANN).call("list_active_sessions").failed


@pytest.mark.parametrize(
    "options",
    [
        ["--http", "0.0.0.0:0"],
        ["--http", "8811"],
        ["--http", ""],
        ["--http", "http://127.0.0.1:0"],
        ["--token-file", "x"],
        ["--admin", "--http", "127.0.0.1:0"],
        ["--sessions", "0"],
        ["--memory", "1"],
        ["--workspace", "/dev/null"],
        ["--expire-seconds", "inf"],
        ["--mount", "/nowhere:/data"],
        ["--mount", "/:/all"],
    ],
)
def test_options_that_cannot_be_are_refused_in_one_line(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mcp", *options]) == 1
    said = capsys.readouterr().err
    begins = ("wasm-kernel: --", "wasm-kernel: HOST:PORT ", "wasm-kernel: mounts /all can't be")
    assert said.startswith(begins)
    assert len(said.splitlines()) == 1


def test_a_folder_that_can_not_be_written_to_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Formerly, each call failed, with the words of another setting."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert main(["mcp", "--workspace", str(tmp_path)]) == 1
    why = "--workspace must be a folder that you can write to (Permission denied"
    assert why in capsys.readouterr().err


def test_an_address_that_can_not_be_served_is_refused_with_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Formerly, an empty one was standard input, and others the system's words alone."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(TOKENS)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for address, why in (
            (f"127.0.0.1:{port}", f"port {port} already. Name another port."),
            ("", "as in 127.0.0.1:8811, not ''"),
            (f"http://localhost:{port}", "as in 127.0.0.1:8811, not 'http:"),
            (f"192.0.2.1:{port}", "can't be 192.0.2.1"),
        ):
            assert main(["serve", address, "--token-file", str(tokens)]) == 1
            said = capsys.readouterr().err
            assert why in said
            assert said.startswith("wasm-kernel: HOST:PORT ")


def test_no_client_ends_a_session_that_another_has_used(agents: Agents) -> None:
    """Formerly, sleeping sessions of others were deleted to make room for too many new ones."""
    with serving(agents.environment, "--sessions", "4", "--idle-seconds", "0.1") as server:
        owner, evil = (agents.http(server.url, mode=MODERN) for _ in range(2))
        owner.says("x = 1")
        wait_for(lambda: 'state="asleep"} 1.0' in server.page("/metrics"), "sleep")
        for _ in range(8):
            evil.begin("execute_code", code="x = 2").result()
        made = [evil.begin("create_session").result() for _ in range(4)]
        assert "destroy_session" in made[-1].content[0].text
        assert owner.says("x") == "1"
        owner.call("destroy_session")
        gone = owner.call("execute_code", code="x")
        assert gone.text == "destroy_session ended this session."
        # the server's end waits for no client
        evil.begin("execute_code", code="import time; time.sleep(500)")
        wait_for(lambda: 'state="busy"} 1.0' in server.page("/metrics"), "a running cell")
    assert "Traceback" not in server.said()


def test_tokens_are_checked(tmp_path: Path) -> None:
    for text in ("", 'token = "short"', "token = 1", 'tokens = "x"', "owners = 1", "[owners]\na=1"):
        file = tmp_path / "tokens.toml"
        file.write_text(text)
        with pytest.raises(PolicyError, match=r"tokens\.toml"):
            Tokens.from_file(file)


def test_a_first_call_begins_a_session_unless_it_lists_or_ends_sessions_or_cells(
    http: HttpServer, agents: Agents
) -> None:
    agent = agents.http(http.url)
    for tool in ("cancel_execution", "destroy_session", "list_sessions"):
        assert "no session yet" in agent.call(tool).text
    assert agent.call("list_files").text == "No files yet in your python session."
    assert "automatic, python" in agent.call("list_sessions").text
    assert not agent.call("checkpoint", name="empty").failed
    agent.says("x = 1")
    assert not agent.call("restore", name="empty").failed
    assert "NameError" in agent.call("execute_code", code="x").text
    assert not agent.call("reset_session", language="javascript").failed


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
