"""Sandboxes on a folder that several servers share, one after the other or at once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2b.conftest import ANN, BOB, COMMAND, TOKENS, Api, SandboxOf
from tests.faces import PATIENCE, wait_for
from tests.forking import forked
from tests.mcp.clients import Agents, Answer, HttpServer, server_environment, serving
from wasm_kernel.frontends.http.callers import ENDING


@contextlib.contextmanager
def server(folder: Path, *options: str) -> Iterator[HttpServer]:
    """A server on a folder; it leaves its sandboxes there."""
    tokens = folder / "tokens.toml"
    tokens.write_text(TOKENS)
    kept = ("--keep", "--workspace", str(folder / "sessions"), "--token-file", str(tokens))
    with serving(server_environment(folder), *kept, *options, begin=forked("serve")) as running:
        yield running


def client(server: HttpServer, key: str = ANN) -> Api:
    """A client of a server."""
    return Api(server.url, {"X-API-Key": key})


def at(server: HttpServer, sandbox: SandboxOf) -> SandboxOf:
    """Returns the same sandbox, as another server serves it."""
    return SandboxOf(client(server), sandbox.name, sandbox.headers["X-Access-Token"])


def is_refused(sandbox: SandboxOf) -> bool:
    """Returns whether a cell is refused, since another server has the sandbox awake."""
    answer = sandbox.call("POST", "/execute", {"code": "x"})
    return "Another server has this session awake" in answer.words


def is_there(server: HttpServer) -> bool:
    with contextlib.suppress(OSError):
        return client(server).call("GET", "/openapi.json").status == 200
    return False


def ids(answer: Api) -> set[str]:
    """Returns the ids of a client's sandboxes."""
    return {each["sandboxID"] for each in answer.call("GET", "/v2/sandboxes").json}


@pytest.mark.parametrize("kept", [(), ("--keep",)])
def test_clients_of_an_ending_server_read_so(tmp_path: Path, kept: tuple[str, ...]) -> None:
    """Formerly, clients read that their sandbox was killed, or that "the service is closed"."""
    code = "import time\nprint('began', flush=True)\ntime.sleep(600)"
    with (
        ExitStack() as ending,
        serving(server_environment(tmp_path), *kept, begin=forked("serve")) as running,
    ):
        line = client(running).made().begin("POST", "/execute", {"code": code})
        answer = ending.enter_context(closing(line)).getresponse()
        assert json.loads(answer.readline())["text"] == "began\n"
        began = threading.Event()
        agent = Agents({}, ending).http(running.url)
        call = agent.begin("execute_code", on_progress=raised(began), code=code)
        assert began.wait(PATIENCE)
        os.kill(running.pid, signal.SIGTERM)
        assert json.loads(answer.read().splitlines()[-1])["value"] == ENDING
        assert "server is ending" in Answer(call.result(PATIENCE)).text


def raised(event: threading.Event) -> Callable[..., Awaitable[None]]:
    """Returns a function for progress that sets an event."""

    async def heard(*_: object) -> None:
        event.set()

    return heard


def test_sandboxes_and_sessions_outlive_their_server(tmp_path: Path) -> None:
    with server(tmp_path) as first, ExitStack() as ending:
        sandbox = client(first).made(metadata={"user": "ann"}, envVars={"COLOUR": "red"})
        sandbox.run("x = 41")
        sandbox.upload("a.txt", b"from outside")
        own = sandbox.call("POST", "/contexts", {}).json["id"]
        sandbox.run("x = 'other'", context_id=own)
        sandbox.run("let y = 6", language="javascript")
        asleep = client(first).made()
        asleep.run("z = 1")
        assert asleep.owner.call("POST", f"{asleep.path}/pause", {}).status == 204
        gone = client(first).made()
        gone.owner.call("DELETE", gone.path)
        agent = Agents({}, ending).http(first.url, ANN)
        handle = agent.call("create_session").handle
        agent.says("x = 41", session=handle)
        ends = client(first).made(timeout=1)
        pauses = client(first).made(timeout=600, autoPause=True)
        pauses.run("x = 1")
        pauses.owner.call("POST", f"{pauses.path}/timeout", {"timeout": 1})
    time.sleep(1.1)  # the time of sandboxes goes on without a server
    with server(tmp_path) as second, ExitStack() as ending:
        ann, bob = client(second), client(second, BOB)
        assert ids(ann) == {sandbox.name, asleep.name, pauses.name}
        assert ids(bob) == set()
        assert bob.call("GET", sandbox.path).status == 404
        for each in (gone, ends):
            assert at(second, each).call("GET", "/health").status == 502
        found = ann.call("GET", sandbox.path).json
        assert (found["metadata"], found["state"]) == ({"user": "ann"}, "running")
        again = at(second, sandbox)
        assert again.value("import os; x + 1, os.environ['COLOUR']") == "(42, 'red')"
        assert again.value("open('a.txt').read()") == "from outside"
        assert again.value("x", context_id=own) == "other"
        assert again.value("y * 7", language="javascript") == "42"
        for each in (asleep, pauses):
            assert ann.call("GET", each.path).json["state"] == "paused"
        assert at(second, asleep).call("GET", "/health").status == 502
        assert ann.call("POST", f"{asleep.path}/connect", {}).status == 201
        assert at(second, asleep).value("z") == "1"
        stranger = SandboxOf(ann, sandbox.name, "x" * 43)
        assert stranger.call("POST", "/execute", {"code": "1"}).status == 401
        agent, other = (Agents({}, ending).http(second.url, key) for key in (ANN, BOB))
        assert agent.says("x + 1", session=handle) == "42"
        for user, session in ((other, handle), (agent, sandbox.name)):  # neither is the user's
            said = user.call("execute_code", code="x", session=session).text
            assert "There is no session" in said


def test_one_server_at_a_time_has_a_sandbox_awake_until_it_is_killed(tmp_path: Path) -> None:
    with server(tmp_path) as first, server(tmp_path, "--idle-seconds", "3") as second:
        sandbox = client(second).made()
        sandbox.run("x = 1")
        elsewhere = at(first, sandbox)
        assert is_refused(elsewhere)
        kept = elsewhere.owner.call("DELETE", sandbox.path)
        assert kept.status == 503, kept.words
        assert sandbox.value("x") == "1"
        wait_for(lambda: not is_refused(elsewhere))
        assert elsewhere.value("x + 1") == "2"
        assert is_refused(sandbox)
        made = elsewhere.call("POST", "/contexts", {}).json["id"]
        assert elsewhere.value("1", context_id=made) == "1"
        paused = elsewhere.owner.call("POST", f"{sandbox.path}/pause", {})
        assert paused.status == 204, paused.words
        assert sandbox.owner.call("GET", sandbox.path).json["state"] == "paused"
        assert sandbox.owner.call("POST", f"{sandbox.path}/connect", {}).status == 201
        assert sandbox.value("x + 1") == "2"
        assert made in [each["id"] for each in sandbox.call("GET", "/contexts").json]
        line = sandbox.begin("POST", "/execute", {"code": "print(1)\nx = 5\nwhile True: pass"})
        line.getresponse().readline()
        os.kill(second.pid, signal.SIGKILL)
        line.close()
        assert elsewhere.value("x + 1") == "2"


@pytest.mark.parametrize("begun", ["", "POST /v2/sandboxes HTTP/1.1\r\nContent-Length: 9999"])
def test_more_connections_than_descriptors_keep_no_client_out(tmp_path: Path, begun: str) -> None:
    """Clients that send nothing, or go on to send single bytes after a refusal."""
    head = f"{begun}\r\nHost: 127.0.0.1\r\n\r\n".encode() if begun else b""
    (tmp_path / "tokens").write_text(TOKENS)
    command = (*COMMAND, "--token-file", str(tmp_path / "tokens"))
    begin = ("bash", "-c", 'ulimit -n 600; exec "$@"', "-", *command)
    with serving(server_environment(tmp_path), begin=begin) as server, ExitStack() as opened:
        place, lines = urlsplit(server.url), []
        for _ in range(900):
            line = opened.enter_context(socket.socket())
            line.setblocking(False)
            line.connect_ex((place.hostname, place.port))
            lines.append(line)
        wait_for(lambda: len([*Path(f"/proc/{server.pid}/fd").iterdir()]) > 250)
        for _ in range(3):
            for line in lines:
                with contextlib.suppress(OSError):
                    line.send(head or b"G")
            time.sleep(1)
            head = b"x"
            wait_for(lambda: is_there(server))
