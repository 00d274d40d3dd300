"""Hostile clients of the server for agents: other clients' sessions, too much, too often."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
import uvicorn
from mcp.shared.exceptions import MCPError
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send
from uvicorn.server import ServerState

from tests.faces import PATIENCE, wait_for
from tests.mcp.clients import HEADERS, Agents, HttpServer, Wire, server_environment, serving
from tests.peak import of_process
from wasm_kernel import ExecutionPolicy
from wasm_kernel.frontends.http import serving as http_serving
from wasm_kernel.frontends.http.callers import HELD_BYTES, LEASE_KEY, Caller
from wasm_kernel.frontends.http.limits import BURST, ClientLimits, Refusal
from wasm_kernel.frontends.http.metrics import Metrics
from wasm_kernel.frontends.http.serving import Address, HttpConnection
from wasm_kernel.frontends.http.session_files import HostWork
from wasm_kernel.frontends.mcp import http as mcp_http
from wasm_kernel.frontends.mcp import request_limiter, results
from wasm_kernel.frontends.mcp.callers import SESSION_HEADER
from wasm_kernel.frontends.mcp.request_limiter import RequestLimiter
from wasm_kernel.frontends.mcp.server import WorkspaceServer
from wasm_kernel.frontends.mcp.sessions import AgentSessions
from wasm_kernel.result import Output, SandboxResult

TOKENS = '[owners]\nann = "the token of ann herself"\neve = "the token of eve, who is evil"\n'
ANN, EVE = "the token of ann herself", "the token of eve, who is evil"
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    with ExitStack() as ending:
        yield Agents(server_environment(tmp_path_factory.mktemp("mcp")), ending)


@pytest.fixture(scope="module")
def server(agents: Agents, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    file = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    file.write_text(TOKENS)
    with serving(agents.environment, "--token-file", str(file), "--sessions", "6") as server:
        yield server


def test_a_session_header_is_of_no_use_to_others(server: HttpServer) -> None:
    ann, eve = Wire(server, ANN), Wire(server, EVE)
    mine = ann.begin()
    call = {"name": "execute_code", "arguments": {"code": "x = 'secret'"}}
    for who, header in ((eve, mine), (ann, "0" * 32), (eve, "../../x")):
        answer = who.send("tools/call", call, header)
        assert answer.status == 404
        answer.read()
    answer = eve.send("", None, mine, verb="DELETE")
    assert answer.status == 404
    answer.read()
    answer = ann.send("tools/call", call, mine)
    assert answer.status == 200
    assert b"cell 1" in answer.read()
    ann.close()
    eve.close()


def test_a_request_of_any_length_takes_no_memory(server: HttpServer) -> None:
    line = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=PATIENCE)
    headers = {**HEADERS, "Authorization": f"Bearer {EVE}", "Transfer-Encoding": "chunked"}
    line.putrequest("POST", "/mcp")
    for name, value in headers.items():
        line.putheader(name, value)
    line.endheaders()
    chunk = b"%x\r\n" % MIB + b" " * MIB + b"\r\n"
    sent = 0
    try:
        while sent < 100:
            line.send(chunk)
            sent += 1
        line.send(b"0\r\n\r\n")
        assert line.getresponse().status == 413
    except OSError:
        assert sent < 100  # the server has answered and hung up
    line.close()
    assert "wasm_kernel_memory_bytes" in server.page("/metrics")


def test_a_connection_keeps_no_large_request_when_it_is_served(server: HttpServer) -> None:
    """The SDK keeps each connection's last request, and a client may have a thousand of them."""
    pid = server.pid
    large = 2 * MIB
    text = "\N{GRINNING FACE}" * (large // 4)
    call = {"name": "list_sessions", "arguments": {}, "_meta": {"x": text}}
    with ExitStack() as ending:

        def send_large(connections: int) -> None:
            for _ in range(connections):
                wire = Wire(server, EVE)
                ending.callback(wire.close)
                assert wire.send("tools/call", call, wire.begin()).read()

        send_large(4)  # the allocator keeps memory for the next request: that is not a kept request
        before = of_process(pid, "VmRSS")
        send_large(6)
        kept = 6 * large  # kept requests take four times as much, as bytes, text and reply
        wait_for(lambda: of_process(pid, "VmRSS") - before < kept, "memory that is free again")


def test_too_many_sessions_are_refused_in_words(server: HttpServer, agents: Agents) -> None:
    ann, eve = agents.http(server.url, ANN), agents.http(server.url, EVE)
    ann.says("x = 1")
    answers = [eve.call("create_session") for _ in range(20)]
    assert sum(not each.failed for each in answers) < 6
    assert "Nothing was changed" in answers[-1].text
    assert ann.says("x") == "1"
    eve_s_own = [each.handle for each in answers if not each.failed]
    assert all(ann.call("destroy_session", session=each).failed for each in eve_s_own)
    assert not any(eve.call("destroy_session", session=each).failed for each in eve_s_own)


def test_a_client_without_a_token_uses_up_no_rate_of_other_connections() -> None:
    async def attack() -> list[int]:
        sender = Sender()
        assert await sender.send() == 200  # begins connection c1
        evil = [await sender.send() for _ in range(int(BURST) + 100)]
        assert 429 in evil
        return [await sender.send(connection="c1") for _ in range(10)]

    assert asyncio.run(attack()) == [200] * 10


def test_a_client_that_sent_too_much_may_go_on_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    now, limits = [0.0], ClientLimits(None, Metrics())
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with pytest.raises(Refusal, match="Too many requests"):
        for _ in range(int(BURST) + 1):
            limits.count("eve")
    now[0] += 1
    limits.count("eve")


def test_a_request_that_has_ended_takes_no_memory() -> None:
    """Memory that it takes would never be given back."""
    limits = ClientLimits(None, Metrics())
    lease = limits.lease("eve")
    lease.end()
    assert not lease.reserve(1)
    assert limits.lease("eve").reserve(HELD_BYTES)


class Application:
    """Stands in for the SDK's application: each request without a connection gets a new one."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, int]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = Headers(scope=scope).get(SESSION_HEADER, "")
        content = (await receive())["body"]
        self.requests.append((scope["method"], named, len(content)))
        answer = PlainTextResponse("", headers={SESSION_HEADER: named or f"c{len(self.requests)}"})
        await answer(scope, receive, send)


class Sender:
    """Sends requests to a limiter and collects the status of each answer."""

    def __init__(self) -> None:
        self.app = Application()
        self.sessions = AgentSessions(Future(), ExecutionPolicy(), keep=False)
        self.metrics = Metrics()
        self.limiter = RequestLimiter(self.app, self.sessions, ClientLimits(None, self.metrics))

    async def send(
        self, content: bytes = b"", *, host: str = "one", last: bool = True, connection: str = ""
    ) -> int:
        found: list[int] = []
        parts: list[Message] = [{"type": "http.request", "body": content, "more_body": not last}]

        async def receive() -> Message:
            return parts.pop() if parts else await asyncio.Future()

        async def take(message: Message) -> None:
            found.append(message.get("status", 0))

        named = [(SESSION_HEADER.encode(), connection.encode())] if connection else []
        scope = {"type": "http", "method": "POST", "client": (host, 1), "headers": named}
        await self.limiter(scope, receive, take)
        return found[0]


async def test_one_client_holds_no_more_than_its_share() -> None:
    sender = Sender()
    part = b" " * (request_limiter.REQUEST_BYTES - 1)
    sending = partial(sender.send, part, last=False, connection="c1")
    slow = [asyncio.ensure_future(sending()) for _ in range(8)]
    await asyncio.sleep(0)
    ended = [each.result() for each in slow if each.done()]
    assert ended == [503] * 4
    assert await sender.send(b"x", host="two") == 200
    assert await sender.send(b" " * 60_000) == 200  # another client at the same address
    large = b" " * (request_limiter.REQUEST_BYTES + 1)
    assert await sender.send(large, host="two", connection="c2") == 413
    assert await sender.send(b" " * 70_000, host="two") == 413  # a connection would keep it
    for each in slow:
        each.cancel()
    assert [size for _, _, size in sender.app.requests] == [1, 60_000]
    assert b'refusals_total{limit="request_bytes"} 6' in sender.metrics.page([])


def values(text: str, encoding: str = "utf-8") -> bytes:
    return json.dumps({"a": text}, ensure_ascii=False).encode(encoding)


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"a": [' + b'{"":{}},' * 2 * MIB + b"1]}", 413),
        (b'{"a": "\\\\", "b": [' + b"[],[]," * MIB + b'"\\""]}', 413),
        (b"[" * 2 * MIB, 413),
        (values("[],", "utf-16") * 10_000, 413),
        (values('1,2,"{[]}"\\\n' * (MIB // 2)), 200),
    ],
    ids=["objects", "behind escapes", "deep", "utf-16", "a text full of marks"],
)
def test_a_request_of_many_values_is_not_read(content: bytes, status: int) -> None:
    """Formerly, reading it blocked the loop of all clients for seconds. Texts may be as long."""
    sender = Sender()
    assert asyncio.run(sender.send(content, connection="c1")) == status
    assert [size for *_, size in sender.app.requests][:1] == [len(content)] * (status == 200)


async def test_a_text_of_many_values_is_not_read_as_json() -> None:
    """The SDK looks for JSON values inside texts, because some models send values as texts."""
    server = WorkspaceServer(Sender().sessions, Metrics())
    for tool, argument in (("execute_code", "session"), ("install_packages", "packages")):
        call = {argument: "[" + "[]," * MIB + "1]", "code": "1"}
        if tool == "install_packages":
            del call["code"]
        answer = await server.call_tool(tool, call)
        assert "Nothing was done" in answer.content[0].text  # type: ignore[union-attr]


def test_updates_of_many_displays_take_time_in_proportion() -> None:
    """Formerly, each update searched all displays: one cell blocked all clients for minutes."""
    kinds = ["display"] * 20_000 + ["update"] * 20_000
    outputs = [
        Output(kind, {"text/plain": kind}, {}, {"display_id": str(number % 20_000)})
        for number, kind in enumerate(kinds)
    ]
    begun = time.process_time()
    shown = results._shown(outputs)
    assert [each.data["text/plain"] for each in shown] == ["update"] * 20_000
    assert time.process_time() - begun < 2


def test_a_resource_that_holds_up_all_clients_is_refused_or_sent_in_base64(
    server: HttpServer, agents: Agents
) -> None:
    """Formerly, a resource of 30 MB with 180 MB of JSON took 4 s of the loop, and 2 GB."""
    eve = agents.http(server.url, EVE)
    eve.says(
        "open('large.txt', 'w').write('x' * 9_000_000); open('odd.txt', 'w').write('\\0a' * 9)"
    )
    handle = eve.call("list_sessions").handle
    with pytest.raises(MCPError, match=r"8\.0 MiB.*read_file"):
        eve.ask("read_resource", f"workspace://{handle}/large.txt")
    (content,) = eve.ask("read_resource", f"workspace://{handle}/odd.txt").contents
    assert base64.b64decode(content.blob) == b"\0a" * 9
    eve.call("destroy_session")


def test_the_images_of_a_reply_have_a_size_together() -> None:
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 9, 9)
    data = base64.b64encode(png + bytes(2_500_000) + b"IEND\xae\x42\x60\x82").decode()
    blocks, files = reply_to([{"image/png": data}] * 5)
    assert len(files) == 5
    assert sum(each.type == "image" for each in blocks) == 2


class SessionOfFiles:
    """Stands in for a session and counts the files that are written."""

    name, handle = "it", "it"

    def __init__(self) -> None:
        self.files: list[str] = []

    async def work(self, work: Any) -> Any:
        return await anyio.to_thread.run_sync(work)

    async def write_new(self, path: str, data: bytes | str) -> str:
        self.files.append(path)
        return path

    def take_notes(self) -> list[str]:
        return []


def reply_to(outputs: list[dict[str, Any]]) -> tuple[list[Any], list[str]]:
    """The reply to a cell that shows these outputs, and the files that were written."""
    shown = tuple(Output("display", each, {}, {}) for each in outputs)
    session: Any = SessionOfFiles()
    result = SandboxResult(True, "", "", 0, None, None, 0, 0.0, (), (), (), Path(), shown)
    return asyncio.run(results.CellReply(session, result, 20_000).blocks()), session.files


def text_of(blocks: list[Any]) -> str:
    return "\n".join(getattr(each, "text", "") for each in blocks)


@pytest.mark.parametrize(
    "data", [{"application/x-odd": "x"}, {"image/png": "iVBORw0KGgo="}, {"text/html": "x"}]
)
def test_outputs_that_no_reply_shows_make_few_files_and_lines(data: dict[str, Any]) -> None:
    """Formerly, a cell of 0.3 s made the host write files for 48 s, and a reply of 296 kB."""
    blocks, files = reply_to([data] * 3_000)
    text = text_of(blocks)
    assert len(files) <= 50
    assert len(text) < 10_000
    assert "2,950 more" in text


def test_the_names_in_a_reply_are_short_and_do_nothing_to_a_terminal() -> None:
    """Formerly, a reply had 50 names of types whole, of a million characters each."""
    named = f"application/x-\x1b]0;owned\x07{'x' * 1_000_000}"
    blocks, _ = reply_to([{named: "y"}] * 50)
    assert len(text_of(blocks)) < 20_000
    session: Any = SessionOfFiles()
    made = ("a\x1b[2Jb.csv",)
    reply = {"execution_count": 10**4_000}
    result = SandboxResult(True, "", "", 0, None, None, 0, 0.0, made, (), (), Path(), (), reply)
    blocks += asyncio.run(results.CellReply(session, result, 20_000).blocks())
    names = [getattr(each, "name", "") for each in blocks]
    assert "ab.csv" in text_of(blocks) and "ab.csv" in names
    assert "\x1b" not in text_of(blocks) + "".join(names) and len(text_of(blocks)) < 20_000


async def test_unread_replies_hold_no_more_than_a_share() -> None:
    """A client asks for large files again and again, and never reads the answers."""
    sender, given = Sender(), list[bool]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        given.append(scope[LEASE_KEY].reserve(30 * MIB))
        await asyncio.Future()

    sender.limiter = RequestLimiter(app, sender.sessions, ClientLimits(None, sender.metrics))
    for host in ("one", "one", "one", "two"):
        slow = asyncio.ensure_future(sender.send(host=host))
        await asyncio.sleep(0)
    assert given == [True, True, False, True]
    slow.cancel()
    await asyncio.wait([slow])
    later = [asyncio.ensure_future(sender.send(host="two")) for _ in range(2)]
    await asyncio.sleep(0)
    assert given[4:] == [True, True]
    assert not any(each.done() for each in later)


async def test_work_on_files_takes_turns_also_when_its_client_hangs_up() -> None:
    """Formerly, a hundred threads at once blocked the loop of all clients for seconds."""
    running: list[str] = []
    most: Counter[str] = Counter()
    may_end = threading.Event()

    def work(client: str) -> None:
        running.append(client)
        most.update({client: 0, "all": 0})
        most[client] = max(most[client], running.count(client))
        most["all"] = max(most["all"], len(running))
        may_end.wait(PATIENCE)
        running.remove(client)

    async def call(host: HostWork, client: str, scope: anyio.CancelScope) -> None:
        with scope:
            await host.work(Caller("", "", client), partial(work, client))

    host, scopes = HostWork(), [anyio.CancelScope() for _ in range(100)]
    async with anyio.create_task_group() as calls:
        for number, scope in enumerate(scopes):
            calls.start_soon(call, host, f"client {number % 20}", scope)
        while len(running) < 8:
            await anyio.sleep(0)
        for scope in scopes[:40]:  # work that has begun goes on, and keeps its turn
            scope.cancel()
        for _ in range(100):
            await anyio.sleep(0)
        may_end.set()
    assert most.pop("all") == 8
    assert set(most.values()) == {1}


async def test_a_client_that_connects_again_and_again_ends_its_own_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_limiter, "CONNECTIONS", 2)
    sender = Sender()
    for host in ("one", "two", "one", "one", "one"):
        assert await sender.send(host=host) == 200
    assert [named for verb, named, _ in sender.app.requests if verb == "DELETE"] == ["c1", "c3"]


def test_no_web_page_reads_the_pages_by_a_name_of_its_own() -> None:
    server = WorkspaceServer(Sender().sessions, Metrics())
    mcp_http.add_pages(server, Address("127.0.0.1", 1), needs_admin=False)
    client = TestClient(server.streamable_http_app(), base_url="http://evil.example")
    assert [client.get(path).status_code for path in ("/metrics", "/healthz")] == [421, 421]


async def answer_to(request: bytes, host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


def test_a_request_whose_head_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_serving, "_HEAD_SECONDS", 0.05)

    async def attack() -> None:
        config = uvicorn.Config(PlainTextResponse("fine"), http=HttpConnection, lifespan="off")
        config.load()
        listening = await asyncio.get_running_loop().create_server(
            lambda: HttpConnection(config, ServerState(), {}), "127.0.0.1", 0
        )
        place = listening.sockets[0].getsockname()
        for begun in (b"", b"GET / HTTP/1.1\r\nHost: x\r\nA: "):
            assert await answer_to(begun, *place) == b""
        whole = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        assert b"fine" in await answer_to(whole, *place)
        listening.close()
        await listening.wait_closed()

    asyncio.run(asyncio.wait_for(attack(), PATIENCE))


def test_huge_arguments_over_stdio_are_refused(agents: Agents) -> None:
    stdio = agents.stdio()
    stdio.says("x = 1")
    for tool, arguments in (
        ("install_packages", {"packages": [1] * 50_000}),
        ("list_files", {"pattern": "[" * MIB}),
        ("execute_code", {"code": "#" * MIB}),
        ("execute_code", {"code": "x", "y" * MIB: 1}),
        ("write_file", {"path": "a", "content": "x" * (33 * MIB)}),
    ):
        refused = stdio.call(tool, **arguments)
        assert refused.failed
        assert len(refused.text) < 3_000
    assert stdio.call("write_file", path="a", content="x", session="y" * MIB).failed
    assert stdio.call("read_file", path="x" * MIB).failed
    assert stdio.says("x") == "1"
