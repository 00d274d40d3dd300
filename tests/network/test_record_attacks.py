"""Attacks on recorded requests: by cells, by records of strangers, and through a replay."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.faces import PATIENCE, says
from tests.network.servers import Server, rule_for
from tests.network.test_attacks import exchange, get, network
from wasm_kernel import ExecutionPolicy, create_session_sandbox
from wasm_kernel.network import upstream
from wasm_kernel.network.exchanges import Exchange
from wasm_kernel.network.judge import NetworkRefused
from wasm_kernel.network_rules import NetworkRule, Secret, placeholder

MARK = placeholder("API_KEY")


def asked(server: Server, folder: Path, mode: str, head: str = "GET /csv HTTP/1.1") -> Any:
    """Sends a request; returns the answer's bytes."""
    net = network(rule_for(server), folder=folder, network_mode=mode)
    return asyncio.run(exchange(net, server.port, get(server.port, head)))


def no_way_out(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Closes the ways out; returns the attempts to take one."""
    tried: list[Any] = []

    async def noted(*args: Any, **_: Any) -> Any:
        tried.append(args)
        raise OSError("the test allows none")

    monkeypatch.setattr(upstream, "_addresses", noted)
    monkeypatch.setattr(upstream._backend, "connect_tcp", noted)
    return tried


def test_a_cell_finds_no_record(server: Server, tmp_path: Path) -> None:
    policy = ExecutionPolicy(network=[rule_for(server)], network_mode="record")
    _, made = create_session_sandbox(workspace_root=tmp_path, policy=policy)
    with made:
        says(made, f"import urllib.request as u; u.urlopen('{server.url}/csv?marked=1').read()")
        private = made.worker.opened.folders
        assert private is not None
        records = [each.name for each in Path(private.private, "exchanges").iterdir()]
        assert len(records) == 2
        code = "import os; print({n for _, d, f in os.walk('/') for n in (*d, *f)} & {*%r})"
        assert says(made, code % [*records, "exchanges"]) == "set()"
        for path in (private.private, f"/app/../{Path(private.private).name}"):
            assert says(made, f"import os; print(os.path.exists({path!r}))") == "False"


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1",
        "GET /csv?a HTTP/1.1",
        "POST /csv HTTP/1.1",
        "GET http://169.254.169.254/ HTTP/1.1",
        "CONNECT 169.254.169.254:80 HTTP/1.1",
        "GET /csv HTTP/1.1\r\nRange: bytes=0-1",
    ],
)
def test_a_replay_reaches_nothing(
    head: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(server, tmp_path, "record")
    tried = no_way_out(monkeypatch)
    with pytest.raises((NetworkRefused, ConnectionError)):
        asked(server, tmp_path, "replay", head)
    assert b"1,2" in asked(server, tmp_path, "replay")
    with pytest.raises(NetworkRefused, match="no rule"):
        asyncio.run(
            network(rule_for(server), network_mode="replay").connect("a.org", 443, PATIENCE)
        )
    assert not tried
    assert server.connections == 1


def test_a_replay_reads_no_secret(https: Server, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("API_KEY", "sk-0123456789")
    rule = NetworkRule("localhost", ports=(https.port,), secrets=(Secret("API_KEY"),))
    data = get(https.port, "GET /csv HTTP/1.1", f"X-Key: {MARK}\r\n")
    for mode in ("record", "replay"):
        net = network(rule, folder=tmp_path, network_mode=mode)
        assert b"1,2" in asyncio.run(exchange(net, https.port, data, is_secure=True))
        monkeypatch.delenv("API_KEY", raising=False)


@pytest.mark.parametrize(
    "change",
    [
        {"body": "../../../etc/passwd"},
        {"body": "/etc/passwd"},
        {"status": 100},
        {"status": "200"},
        {"size": -1},
        {"size": 2**70},
        {"headers": [["X", "a\r\nSet-Cookie: b"]]},
        {"headers": [["X: a\r\nY", "b"]]},
        {"headers": [["X", "\u2603"]]},
        {"headers": [["Content-Length", "5"], ["Content-Length", "6"]]},
        {"reason": "OK\r\nX: y"},
        {"request": "x" * 2_000_000},
    ],
)
def test_wrong_record_of_a_stranger_is_refused(change: Any, server: Server, tmp_path: Path) -> None:
    asked(server, tmp_path, "record")
    [record] = [each for each in tmp_path.iterdir() if "." in each.name]
    changed = json.loads(record.read_text()) | change
    with contextlib.suppress(msgspec.ValidationError):  # a value of a wrong type
        changed["check"] = msgspec.convert(changed, Exchange).digest
    record.write_text(json.dumps(changed))
    with pytest.raises((NetworkRefused, ConnectionError)):
        asked(server, tmp_path, "replay")


def test_a_replay_raises_the_failures_that_were_recorded(tmp_path: Path) -> None:
    """A connection that is refused, one that ends without an answer, and one that is refused."""

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def failures(mode: str, port: int, *, listens: bool) -> list[str]:
        rule = NetworkRule("localhost", schemes=("http",), ports=(port,))
        net, said = network(rule, folder=tmp_path, network_mode=mode), []
        for is_there in (False, True, False):
            async with contextlib.AsyncExitStack() as ending:
                if is_there and listens:
                    server = await asyncio.start_server(hang_up, "127.0.0.1", port)
                    await ending.enter_async_context(server)
                try:
                    number = await net.connect("localhost", port, PATIENCE)
                    await net.receive(number, 0, PATIENCE, get(port))
                except OSError as problem:
                    said.append(f"{type(problem).__name__}: {problem.strerror or problem}")
        await net.close_all()
        return said

    with socket.socket() as held:  # so that no other server gets the port
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        recorded = asyncio.run(failures("record", port, listens=True))
        assert [each.split(":")[0] for each in recorded] == [
            *("ConnectionRefusedError", "ConnectionError", "ConnectionRefusedError")
        ]
        assert asyncio.run(failures("replay", port, listens=False)) == recorded


def test_a_replay_raises_the_failure_of_a_certificate(https: Server, tmp_path: Path) -> None:
    async def failure(mode: str) -> str:
        rule = NetworkRule("127.0.0.1", ports=(https.port,))
        net = network(rule, folder=tmp_path, network_mode=mode)
        with pytest.raises(ssl.SSLCertVerificationError) as caught:
            await net.secure(await net.connect("127.0.0.1", https.port, PATIENCE), "127.0.0.1")
        await net.close_all()
        return str(caught.value.strerror or caught.value)

    assert asyncio.run(failure("record")) == asyncio.run(failure("replay"))
