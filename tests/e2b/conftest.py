"""A server of E2B's API for a file of tests, and plain requests to it."""

from __future__ import annotations

import http.client
import json
import socket
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.faces import PATIENCE
from tests.mcp.clients import HttpServer, server_environment, serving

COMMAND = [sys.executable, "-P", "-m", "wasm_kernel.frontends.cli.main", "serve"]
TOKENS = """
admin = "an admin's token, long"
[owners]
ann = "the token of ann herself"
bob = "the token of bob himself"
"""
ADMIN, ANN, BOB = (line.split('"')[1] for line in TOKENS.splitlines() if '"' in line)


class Answer:
    """An answer: its status, headers and content."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status, self.headers = answer.status, answer.headers
        self.content = answer.read()

    @property
    def json(self) -> Any:
        """The content as JSON."""
        return json.loads(self.content)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The content as lines of JSON."""
        return [json.loads(line) for line in self.content.splitlines()]

    @property
    def words(self) -> str:
        """The words of a refusal."""
        return self.content.decode()


class Api:
    """Sends requests with a key, or with a sandbox's headers."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.place = urlsplit(url).netloc
        self.headers = headers

    def begin(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPConnection:
        """Sends a request, and does not read its answer, of which the system holds little."""
        line = http.client.HTTPConnection(self.place, timeout=PATIENCE)
        line.sock = socket.socket()
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            line.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.sock.settimeout(PATIENCE)
            line.sock.connect((line.host, line.port))
            line.request(method, path, content, {**self.headers, **(headers or {})})
        except OSError:  # a server that is not there yet
            line.close()
            raise
        return line

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Sends a request, and returns its answer."""
        line = self.begin(method, path, body, headers)
        try:
            return Answer(line.getresponse())
        finally:
            line.close()

    def refusal(self, status: int, method: str, path: str, body: Any = None) -> str:
        """Sends a request that must be refused with a status; returns the words."""
        answer = self.call(method, path, body)
        assert answer.status == status, answer.words
        return answer.words

    def made(self, **asked: Any) -> SandboxOf:
        """Makes a sandbox."""
        answer = self.call("POST", "/v2/sandboxes", {"templateID": "base", **asked})
        assert answer.status == 201, answer.words
        return SandboxOf(self, answer.json["sandboxID"], answer.json["envdAccessToken"])


class SandboxOf(Api):
    """Sends requests to a sandbox, as its owner does."""

    def __init__(self, owner: Api, name: str, token: str) -> None:
        headers = {"E2b-Sandbox-Id": name, "X-Access-Token": token}
        super().__init__(f"http://{owner.place}", headers)
        self.owner, self.name, self.path = owner, name, f"/sandboxes/{name}"

    def run(self, code: str, **options: Any) -> list[dict[str, Any]]:
        """Runs a cell, and returns its lines."""
        answer = self.call("POST", "/execute", {"code": code, **options})
        assert answer.status == 200, answer.words
        return answer.lines

    def value(self, code: str, **options: Any) -> str:
        """Runs a cell that must have a value, and returns its text."""
        lines = self.run(code, **options)
        found = [line["text"] for line in lines if line.get("is_main_result")]
        assert found, lines
        return str(found[-1])

    def files(self, call: str, **body: Any) -> Answer:
        """Calls the file service."""
        headers = {"Content-Type": "application/json"}
        return self.call("POST", f"/filesystem.Filesystem/{call}", body, headers)

    def upload(self, path: str, content: bytes, **headers: str) -> Answer:
        """Uploads a file."""
        plain = {"Content-Type": "application/octet-stream", **headers}
        return self.call("POST", f"/files?path={path}", content, plain)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """A server that takes tokens."""
    folder = tmp_path_factory.mktemp("e2b")
    file = folder / "tokens.toml"
    file.write_text(TOKENS)
    policy = folder / "policy.toml"
    policy.write_text("workspace_bytes = 4_000_000\ncell_timeout = 30\n")
    options = ("--token-file", str(file), "--owner-sessions", "12", "--policy", str(policy))
    with serving(server_environment(folder), *options, begin=COMMAND) as running:
        yield running


@pytest.fixture
def ann(server: HttpServer) -> Iterator[Api]:
    """A client; its sandboxes are killed after the test."""
    yield from _client(server, ANN)


@pytest.fixture
def bob(server: HttpServer) -> Iterator[Api]:
    """Another client."""
    yield from _client(server, BOB)


def _client(server: HttpServer, key: str) -> Iterator[Api]:
    client = Api(server.url, {"X-API-Key": key})
    yield client
    for each in client.call("GET", "/v2/sandboxes").json:
        client.call("DELETE", f"/sandboxes/{each['sandboxID']}")
