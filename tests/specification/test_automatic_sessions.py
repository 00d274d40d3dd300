"""Capability: automatic sessions. Through the official client, over each transport.

Scenarios that also hold without a server are tested with sandboxes, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faces import wait_for
from tests.mcp.clients import MODERN, Agent, Agents, HttpServer, server_environment, serving
from tests.sampled import but_for

POLICY = "memory_bytes = 536870912\nfuel_budget = 500000000\n"
LIMITS = ("--owner-sessions", "4", "--sessions", "20")
SHORT_LIVED = ("--idle-seconds", "0.5", "--expire-seconds", "1.5")
TRANSPORTS = ["stdio", "http by session header", "http by handle"]


class Servers:
    """The servers of this file, and the folders of their sessions."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        self._folder = folder
        self._ending = ending
        self.agents = Agents(server_environment(folder), ending)
        self.policy = folder / "policy.toml"
        self.policy.write_text(POLICY)
        self._http: dict[tuple[str, ...], HttpServer] = {}
        self._shared: dict[str, Agent] = {}

    def client(self, transport: str, *options: str) -> Agent:
        """A client of a server with these options; over HTTP the server may be shared."""
        options = (*options, "--policy", str(self.policy))
        if transport == "stdio":
            return self.agents.stdio(*options)
        mode = "auto" if "header" in transport else MODERN
        return self.agents.http(self.http(*options).url, mode=mode)

    def http(self, *options: str) -> HttpServer:
        """The server over HTTP with these options."""
        if options not in self._http:
            server = serving(self.agents.environment, *options)
            self._http[options] = self._ending.enter_context(server)
        return self._http[options]

    def shared(self, transport: str) -> Agent:
        """A client for tests that need no variables; over stdio, an administrator's."""
        if transport not in self._shared:
            more = ["--admin"] * (transport == "stdio")
            self._shared[transport] = self.client(transport, *LIMITS, *more)
        return self._shared[transport]

    @property
    def folders(self) -> list[str]:
        """The names of the sessions' folders."""
        root = self._folder / "data" / "wasm-kernel" / "mcp" / "sessions"
        return [each.name for each in root.iterdir()] if root.is_dir() else []


@pytest.fixture(scope="module")
def servers(warm_metered: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with ExitStack() as ending:
        yield Servers(tmp_path_factory.mktemp("servers"), ending)


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(servers: Servers, transport: str) -> Agent:
    return servers.shared(transport)


@pytest.fixture
def one_client(servers: Servers) -> Agent:
    """A client over stdio, for what a cell gets over any transport."""
    return servers.shared("stdio")


def test_session_creation_on_first_use(servers: Servers, transport: str) -> None:
    client = servers.client(transport, *LIMITS) if transport != "stdio" else servers.shared("stdio")
    before = len(servers.folders)
    first = client.call("get_workspace_info")  # any call that needs a session begins one
    assert (first.failed, "variables: none" in first.text) == (False, True), first.text
    assert len(servers.folders) == before + 1
    client.says("mine = 1")
    assert client.says("mine += 1; print(mine)") == "2"
    assert len(servers.folders) == before + 1


def test_session_persistence(one_client: Agent) -> None:
    one_client.says("import math; x = 6")
    assert one_client.says("print(math.factorial(x))") == "720"
    assert one_client.says("x += 1; math.factorial(x)") == "5040"


def test_per_language_sessions(client: Agent) -> None:
    client.says("x = 'automatic'")
    python, client.handle = client.handle, ""
    client.says("x = 'python'; open('mine.txt', 'w').write('x'); None", **_named(python))
    named = client.call("list_sessions", **_named(python)).handle
    refused = client.call("execute_code", code="let x = 1", language="javascript", session=named)
    assert "runs python, not javascript" in refused.text
    answer = client.call("execute_code", code="let x = 'javascript'; x", language="javascript")
    assert "'javascript'" in answer.text
    javascript, client.handle = client.handle, ""
    assert client.says("x", **_named(python)) == "'python'"
    second = {"language": "javascript", **_named(javascript)}
    assert client.says("x", **second) == "'javascript'"
    assert "x: string" in client.call("get_workspace_info", **_named(javascript)).text
    listed = client.call("list_files", **(_named(javascript) or {"language": "javascript"}))
    assert listed.text.startswith("No files yet")
    client.call("destroy_session", **_named(javascript))
    client.handle = python
    assert client.says("x") == "'python'"


def _named(handle: str) -> dict[str, str]:
    """The argument that names a session, if the client must name it."""
    return {"session": handle} if handle else {}


def test_stdio_session_binding(servers: Servers) -> None:
    """A server process has one session; another process has another."""
    client = servers.shared("stdio")
    client.says("whose = 'mine'")
    assert client.says("whose") == "'mine'"
    assert "automatic" in client.call("list_sessions").text


def test_http_session_binding(servers: Servers) -> None:
    """An `Mcp-Session-Id` has one session across requests; a handle has, too."""
    first, second = (servers.client("http by session header", *LIMITS) for _ in range(2))
    third = servers.client("http by handle", *LIMITS)
    for number, client in enumerate((first, second, third)):
        client.says(f"whose = {number}")
    for number, client in enumerate((first, second, third)):
        assert client.says("print(whose)") == str(number)
    assert "no session" in second.fails("whose", session="0" * 32)


@pytest.mark.parametrize(
    "transport", but_for({each: each for each in TRANSPORTS}, "stdio", "http by handle")
)
def test_session_timeout(servers: Servers, transport: str) -> None:
    client = servers.client(transport, *SHORT_LIVED)
    before = set(servers.folders)
    client.says("x = 1")
    wait_for(lambda: not set(servers.folders) - before, "the end of an idle session")
    client.handle = ""
    later = client.call("execute_code", code="x")
    assert "NameError" in later.text
    if transport != "http by handle":  # there it is just another session
        assert "it had not been used" in later.text


def test_explicit_session_management(client: Agent) -> None:
    client.says("x = 'automatic'")
    made = client.call("create_session").handle
    assert "NameError" in client.call("execute_code", code="x", session=made).text
    client.says("x = 'explicit'", session=made)
    assert client.says("x") == "'automatic'"
    client.call("reset_session")
    assert client.says("x", session=made) == "'explicit'"
    assert not client.call("destroy_session", session=made).failed
    assert client.call("execute_code", code="x", session=made).failed
    assert client.says("1 + 1") == "2"


def test_session_cleanup(servers: Servers) -> None:
    """The sessions of a client that leaves are deleted, and its workers end."""
    before = set(servers.folders)
    with ExitStack() as leaving:
        agents = Agents(servers.agents.environment, leaving)
        one = agents.stdio()
        two = agents.http(servers.http(*LIMITS, "--policy", str(servers.policy)).url, mode="legacy")
        for client in (one, two):
            client.says("import os; open('left.txt', 'w').write('x'); None")
        explicit = two.call("create_session").handle
        assert len(set(servers.folders) - before) == 3
    wait_for(lambda: len(set(servers.folders) - before) == 1, "the end of their sessions")
    third = servers.client("http by handle", *LIMITS)  # an explicit session outlives its connection
    assert third.says("6 * 7", session=explicit) == "42"
    third.call("destroy_session", session=explicit)


def test_workspace_information(one_client: Agent) -> None:
    one_client.says("numbers = [1, 2, 3]")
    one_client.call("write_file", path="notes.txt", content="hello")
    one_client.call("execute_code", code="1 / 0")
    info = one_client.call("get_workspace_info").text
    assert "numbers: list (3 items)" in info
    assert "1 / 0 -> ZeroDivisionError" in info
    assert "notes.txt" in info
    assert "of 512.0 MiB" in info


def test_session_listing(servers: Servers) -> None:
    admin = servers.shared("stdio")
    admin.says("x = 1")
    listed = admin.call("list_active_sessions").text
    assert "guest memory" in listed
    assert "processor" in listed
    other = servers.shared("http by session header")
    assert other.call("list_active_sessions").failed
    names = [each.name for each in other.ask("list_tools").tools]
    assert "list_active_sessions" not in names
    assert "list_sessions" in names


def test_memory_limits(one_client: Agent) -> None:
    one_client.says("x = 1")
    assert "MemoryError" in one_client.fails("y = bytearray(10**9)")
    stopped = one_client.fails("y = []\nwhile True: y.append(bytearray(10**7))")
    assert "OutOfMemory" in stopped
    assert "The variables are as they were before this cell" in stopped
    assert one_client.says("y = bytearray(10**8)\nprint(x)") == "1"


def test_concurrent_session_limits(servers: Servers, transport: str) -> None:
    """The number is limited for each client and for all together; no other session is touched."""
    client = servers.shared(transport)
    client.says("x = 1")
    made: list[str] = []
    while not (answer := client.call("create_session")).failed:
        made.append(answer.handle)
        assert len(made) < 20
    assert "Nothing was changed" in answer.text
    assert "destroy_session" in answer.text
    assert client.says("print(x)") == "1"
    for handle in made:
        client.call("destroy_session", session=handle)
    again = client.call("create_session")
    assert not again.failed
    client.call("destroy_session", session=again.handle)


def test_fuel_budget_enforcement(one_client: Agent) -> None:
    one_client.says("x = 41")
    stopped = one_client.fails("while True: x += 1")
    assert "OutOfFuel" in stopped
    assert "The variables are as they were before this cell" in stopped
    assert one_client.says("x += 1; print(x)") == "42"
