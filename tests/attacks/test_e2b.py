"""Clients of E2B's API that attack each other or the server."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from asyncio import Future
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from starlette.types import Message

from tests.e2b.conftest import Api, SandboxOf, ann, bob, server
from tests.faces import PATIENCE
from tests.forking import forked
from tests.mcp.clients import HttpServer, server_environment, serving
from tests.peak import Peak
from wasm_kernel import ExecutionPolicy
from wasm_kernel.frontends.e2b import app as app_module
from wasm_kernel.frontends.e2b.app import SandboxApi
from wasm_kernel.frontends.e2b.sandboxes import Sandboxes
from wasm_kernel.frontends.http import limits
from wasm_kernel.frontends.http.limits import BURST, ClientLimits
from wasm_kernel.frontends.http.metrics import Metrics
from wasm_kernel.frontends.http.serving import Address
from wasm_kernel.frontends.http.session_files import HostWork
from wasm_kernel.service.service import AsyncService

__all__ = ["ann", "bob", "server"]
MIB = 1024 * 1024


def test_no_key_but_its_own_reaches_a_sandbox(ann: Api, bob: Api) -> None:
    sandbox, other = ann.made(), bob.made()
    body = {"timeout": 5, "count": 1, "duration": 5}
    for method, path in (
        *(("GET", ""), ("DELETE", ""), ("GET", "/metrics")),
        *(("POST", "/connect"), ("POST", "/timeout"), ("POST", "/pause")),
        *(("POST", "/resume"), ("POST", "/fork")),
    ):
        refused = bob.call(method, f"{sandbox.path}{path}", body if method == "POST" else None)
        assert refused.status == 404, path
        assert sandbox.headers["X-Access-Token"] not in refused.words
    for token in ("", other.headers["X-Access-Token"], "\xff" * 8, "the token of ann herself"):
        headers = {"X-Access-Token": token}
        assert sandbox.call("POST", "/execute", {"code": "1"}, headers).status == 401
        assert sandbox.call("GET", "/files?path=a", None, headers).status == 401
        stat = sandbox.call("POST", "/filesystem.Filesystem/Stat", {"path": "."}, headers)
        assert (stat.status, stat.json["code"]) == (401, "unauthenticated")
    for key in ("", "wrong", "the token of ann"):
        assert bob.call("GET", "/v2/sandboxes", None, {"X-API-Key": key}).status == 401
    context = sandbox.call("GET", "/contexts").json[0]["id"]
    stolen = other.call("POST", "/execute", {"code": "1", "context_id": context})
    assert stolen.status == 404
    assert other.call("DELETE", f"/contexts/{context}").status == 404
    assert sandbox.value("1") == "1"


def test_an_owner_has_no_more_sandboxes_than_allowed(ann: Api, bob: Api) -> None:
    answers = [ann.call("POST", "/v2/sandboxes", {"templateID": "base"}) for _ in range(14)]
    assert [each.status for each in answers].count(201) == 12
    refused = answers[-1]
    assert (refused.status, refused.headers["should-retry"]) == (429, "false")
    assert "An owner may have 12 sessions" in refused.json["message"]
    assert bob.made().value("1") == "1"


def test_large_and_strange_requests_are_refused(ann: Api) -> None:
    sandbox = ann.made()
    assert sandbox.call("POST", "/files?path=a", b"x" * (33 * MIB)).status == 413
    assert sandbox.call("POST", "/execute", {"code": "x" * (17 * MIB)}).status == 413
    told = {"templateID": "base", "metadata": dict.fromkeys("abc", "x" * 30_000)}
    assert ann.call("POST", "/v2/sandboxes", told).status == 413
    many = json.dumps({"code": "1", "x": [0] * 20_000}).encode()
    assert sandbox.call("POST", "/execute", many).status == 413
    process = b'{"process": {"cmd": "ls", "args": [%s]}}' % (b'"",' * 20_000 + b'""')
    start = struct.pack(">BI", 0, len(process)) + process
    stream = {"Content-Type": "application/connect+json"}
    assert sandbox.call("POST", "/process.Process/Start", start, stream).status == 413
    deep = b'{"code":' + b"[" * 9_000 + b"]" * 9_000 + b"}"
    assert sandbox.call("POST", "/execute", deep).status == 400
    for path in ("/files?path=" + "a" * 9_000, "/files?path=" + "a/" * 2_500, "/contexts/%2e%2e"):
        assert 400 <= sandbox.call("GET", path).status < 500
    assert ann.call("GET", "/v2/sandboxes?startedAfter=x").status == 400
    assert ann.call("GET", "/v2/sandboxes?limit=-1&nextToken=99999999999999").json == []


def test_clients_that_read_nothing_lose_their_cells(server: HttpServer, ann: Api, bob: Api) -> None:
    """The client's outputs wait in its own share of memory, and other clients go on."""
    sandbox, other = ann.made(), bob.made()
    code = "data = {'text/plain': 'x' * 1_000_000}\nfor i in range(60): display(data, raw=True)"
    memory = Peak(server.pid)
    lines = [_silent(sandbox, code) for _ in range(4)]
    time.sleep(2)
    assert other.value("1 + 1") == "2"
    assert memory.grown < 400 * MIB
    for each in lines:
        each.close()
    assert sandbox.value("1 + 1") == "2"


def _silent(sandbox: SandboxOf, code: str) -> socket.socket:
    host, port = sandbox.place.split(":")
    line = socket.create_connection((host, int(port)))
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    body = json.dumps({"code": code}).encode()
    head = "".join(f"{name}: {value}\r\n" for name, value in sandbox.headers.items())
    head = f"POST /execute HTTP/1.1\r\nHost: {sandbox.place}\r\n{head}"
    line.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return line


def test_many_streams_at_once_are_answered_or_refused(ann: Api, bob: Api) -> None:
    sandbox, other = ann.made(), bob.made()

    def run(number: int) -> int:
        return sandbox.call("POST", "/execute", {"code": f"{number}"}).status

    with ThreadPoolExecutor(60) as threads:
        statuses = [*threads.map(run, range(60))]
        assert {*statuses} <= {200, 429}
        assert statuses.count(200) >= 16
    assert other.value("1") == "1"
    assert sandbox.value("2") == "2"


def test_a_web_page_reaches_no_server_without_tokens(tmp_path: Path) -> None:
    with serving(server_environment(tmp_path), begin=forked("serve")) as open_server:
        one = Api(open_server.url, {"X-API-Key": "any"})
        two = Api(open_server.url, {"X-API-Key": "another"})
        sandbox = one.made()
        assert sandbox.value("1") == "1"
        assert two.call("GET", sandbox.path).status == 404
        assert two.call("GET", "/v2/sandboxes").json == []
        body = {"templateID": "base"}
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert one.call("POST", "/v2/sandboxes", body, headers).status in (403, 421)
            assert sandbox.call("POST", "/execute", {"code": "1"}, headers).status in (403, 421)


def application(root: Path) -> SandboxApi:
    """The application with a service that has no more than a folder."""

    async def service() -> AsyncService:
        return cast("AsyncService", SimpleNamespace(sync=SimpleNamespace(root=root)))

    address, clients = Address("127.0.0.1", 1), ClientLimits(None, Metrics())
    return SandboxApi(Sandboxes(service, ExecutionPolicy(), HostWork()), address, clients)


async def ask(app: SandboxApi, method: str, key: int, found: Counter[int]) -> None:
    """Asks with a key; the content never comes."""

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            found[message["status"]] += 1

    headers = [(b"host", b"127.0.0.1"), (b"x-api-key", b"%d" % key)]
    scope = {"type": "http", "method": method, "path": "/sandboxes", "headers": headers}
    await app({**scope, "query_string": b"", "client": ("1", 1)}, Future, send)


async def test_without_tokens_another_key_makes_no_other_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: 1.0))
    found: Counter[int] = Counter()
    app = application(tmp_path)
    for number in range(int(BURST) + 50):
        await ask(app, "GET", number, found)
    assert found == {200: BURST, 429: 50}


async def test_a_client_holds_a_bounded_number_of_requests_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(app_module, "REQUESTS", 5)
    found: Counter[int] = Counter()
    app = application(tmp_path)
    asked = [asyncio.ensure_future(ask(app, "POST", each, found)) for each in range(7)]
    async with asyncio.timeout(PATIENCE):
        while found[429] < 2:
            await asyncio.sleep(0.01)
    assert found == {429: 2}
    for each in asked:
        each.cancel()
    await asyncio.wait(asked)
    await ask(app, "GET", 1, found)
    assert found == {429: 2, 200: 1}
