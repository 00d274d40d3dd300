"""The official client for tests without asyncio, and servers for it."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp_types import CallToolResult, ImageContent, ResourceLink, TextContent

from tests.faces import PATIENCE
from tests.forking import forked

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-P", "-m", "wasm_kernel.frontends.cli.main", "mcp"]
HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
MODERN = "2026-07-28"
"""A protocol without sessions: requests don't tell whether they come from one client."""
_NUMBERS = itertools.count(1)  # request numbers
_SERVER = re.compile(r"server (\d+)\n")
_SERVING = re.compile(r"serving (http://\S+/mcp)")


class Answer:
    """A tool's answer."""

    def __init__(self, result: CallToolResult) -> None:
        blocks = result.content
        self.failed = bool(result.is_error)
        self.text = "\n".join(each.text for each in blocks if isinstance(each, TextContent))
        self.images = [each for each in blocks if isinstance(each, ImageContent)]
        self.links = [each for each in blocks if isinstance(each, ResourceLink)]

    @property
    def handle(self) -> str:
        """The first handle in the text."""
        found = re.search(r'session="([\w-]+)"', self.text)
        assert found, self.text
        return found[1]


class Agent:
    """A client that calls tools. Any thread may use it.

    Args:
        portal: Runs the client's event loop.
        client: The official client.
        keeps_handle: If it passes on the handle from earlier answers, as a model does.
    """

    def __init__(
        self, portal: BlockingPortal, client: Client, *, keeps_handle: bool = False
    ) -> None:
        self._portal = portal
        self.client = client
        self._keeps_handle = keeps_handle
        self.handle = ""

    def begin(self, tool: str, /, on_progress: Any = None, **arguments: Any) -> Future[Any]:
        """Calls a tool and does not wait; cancelling the future cancels the call."""
        call = partial(self.client.call_tool, tool, arguments, progress_callback=on_progress)
        return self._portal.start_task_soon(call)

    def call(self, tool: str, /, **arguments: Any) -> Answer:
        """Calls a tool, whatever it answers."""
        if self.handle and tool not in ("create_session", "list_runtimes"):
            arguments = {"session": self.handle, **arguments}
        answer = Answer(self.begin(tool, **arguments).result(PATIENCE * 3))
        if self._keeps_handle and not self.handle:
            if "create_session begins another one on purpose" in answer.text:  # among others
                language = {"language": arguments.get("language", "python")}
                made = Answer(self.begin("create_session", **language).result(PATIENCE))
                self.handle = made.handle
                return self.call(tool, **arguments)
            if answer.text.startswith("[note] This is session="):
                self.handle = answer.handle
        return answer

    def says(self, code: str, **arguments: Any) -> str:
        """The blocks of a cell that must succeed, without the line about its number and time."""
        answer = self.call("execute_code", code=code, **arguments)
        assert not answer.failed, answer.text
        notes = ("[cell ", "[note]", "[stdout]", "[result]")
        return "\n".join(line for line in answer.text.splitlines() if not line.startswith(notes))

    def fails(self, code: str, **arguments: Any) -> str:
        """The text of a cell that must fail."""
        answer = self.call("execute_code", code=code, **arguments)
        assert answer.failed, answer.text
        return answer.text

    def ask(self, method: str, /, *arguments: Any) -> Any:
        """Calls a method of the client, such as `list_tools`."""
        return self._portal.call(partial(getattr(self.client, method), *arguments))


class Agents:
    """Makes clients, which are closed at the end.

    Args:
        environment: The environment of the servers that they start.
        ending: Closes the clients.
    """

    def __init__(self, environment: Mapping[str, str], ending: ExitStack) -> None:
        self.environment = dict(environment)
        self._ending = ending
        self._portal = ending.enter_context(start_blocking_portal())

    def stdio(self, *options: str, mode: str = "auto") -> Agent:
        """A client with its own server process."""
        return self.command(forked("mcp", *options), mode=mode)

    def command(self, command: Sequence[str], mode: str = "auto") -> Agent:
        """A client of any server that a command starts."""
        server = StdioServerParameters(
            command=command[0], args=[*command[1:]], env=self.environment
        )
        log = self._ending.enter_context(Path(os.devnull).open("w"))  # noqa: SIM115 - it does
        return self._connected(Client(stdio_client(server, log), mode=mode))

    def http(self, url: str, token: str = "", mode: str = "auto") -> Agent:
        """A client of a running server."""
        found = self._connected(Client(_transport(url, token), mode=mode))
        return Agent(self._portal, found.client, keeps_handle=mode == MODERN)

    def _connected(self, client: Client) -> Agent:
        manager = self._portal.wrap_async_context_manager(client)
        return Agent(self._portal, self._ending.enter_context(manager))


@asynccontextmanager
async def _transport(url: str, token: str) -> AsyncIterator[Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        create_mcp_http_client(headers) as http,
        streamable_http_client(url, http_client=http) as streams,
    ):
        yield streams


class HttpServer:
    """A server over HTTP, in a process of its own.

    Attributes:
        url: The server's address.
        pid: The number of its process.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = self._wait()

    def _read(self) -> None:
        for line in self._process.stderr or ():
            self._lines.put(line)
        self._lines.put("")

    def _wait(self) -> str:
        while line := self._lines.get(timeout=PATIENCE):
            if found := _SERVER.match(line):
                self.pid = int(found[1])
            if found := _SERVING.search(line):
                return found[1]
        raise AssertionError("the server has ended")

    def page(self, path: str, token: str = "") -> str:
        """The text of a page beside `/mcp`."""
        request = urllib.request.Request(self.url.replace("/mcp", path))
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return str(answer.read().decode())

    def said(self) -> str:
        """The text that it has written since the last call; after its end, all of it."""
        self._reader.join(0 if self._process.poll() is None else PATIENCE)
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._lines.get_nowait())
        return "".join(found)


class Wire:
    """Plain HTTP to a server, with a token."""

    def __init__(self, server: HttpServer, token: str) -> None:
        self._line = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=PATIENCE)
        self._headers = {**HEADERS, "Authorization": f"Bearer {token}"}

    def send(
        self, method: str, params: object, session: str = "", verb: str = "POST"
    ) -> http.client.HTTPResponse:
        """Sends a request of the older protocol; does not read the answer."""
        call = {"jsonrpc": "2.0", "id": next(_NUMBERS), "method": method, "params": params}
        body = json.dumps(call)
        more = {"Mcp-Session-Id": session} if session else {}
        self._line.request(verb, "/mcp", body, {**self._headers, **more})
        return self._line.getresponse()

    def begin(self, version: str = "2025-06-18") -> str:
        """Shakes hands; returns the session's header."""
        told = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "wire", "version": "1"},
        }
        answer = self.send("initialize", told | {"protocolVersion": version})
        answer.read()
        return str(answer.headers["Mcp-Session-Id"])

    def close(self) -> None:
        self._line.close()


@contextlib.contextmanager
def serving(
    environment: Mapping[str, str], *options: str, begin: Sequence[str] = ()
) -> Iterator[HttpServer]:
    """A server on a free port, by the command that begins so, else for agents."""
    command = [*(begin or forked("mcp", "--http")), "127.0.0.1:0", *options]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield HttpServer(process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)


def server_environment(folder: Path) -> dict[str, str]:
    """The environment of servers whose sessions lie in a folder. They run the code of this tree."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    homes = {"XDG_STATE_HOME": str(folder / "state"), "XDG_DATA_HOME": str(folder / "data")}
    return {**kept, "PYTHONPATH": str(ROOT), **homes}
