"""Attacks of a hostile cell by the network reach no forbidden address, and take bounded memory.

The functions of the host are called directly, as a guest that was taken over could call them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faces import PATIENCE
from tests.network.servers import Server
from wasm_kernel import ExecutionPolicy
from wasm_kernel.linux.folders import Folder
from wasm_kernel.network import upstream
from wasm_kernel.network.connection import PIECE_BYTES, SESSION_BYTES
from wasm_kernel.network.exchanges import Exchanges
from wasm_kernel.network.judge import NetworkRefused
from wasm_kernel.network.network import Network
from wasm_kernel.network_rules import NetworkRule

Events = list[dict[str, Any]]


def network(
    *rules: NetworkRule, events: Events | None = None, folder: Path = Path(), **limits: Any
) -> Network:
    """Returns a network with some rules, which keeps exchanges in a folder."""
    log = [] if events is None else events
    policy = ExecutionPolicy(network=rules, **limits)
    exchanges = Exchanges(policy, lambda: Folder.open(folder), lambda: (0, 0))
    return Network(policy, lambda **facts: log.append(facts), exchanges)


async def exchange(net: Network, port: int, data: bytes, *, is_secure: bool = False) -> bytes:
    """Sends bytes on a new connection to localhost; returns the answer."""
    number = await net.connect("localhost", port, PATIENCE)
    try:
        if is_secure:
            await net.secure(number, "localhost")
        await net.send(number, 0, data)
        found = b""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            answer = await net.receive(number, len(found), 0.1)
            found += answer["data"]
            if answer["ended"] or (found and net._connections[number].is_idle):
                break
        return found
    finally:
        await net.close_all()


def get(port: int, head: str = "GET / HTTP/1.1", more: str = "") -> bytes:
    """Returns the bytes of a request to localhost."""
    return f"{head}\r\nHost: localhost:{port}\r\n{more}\r\n".encode("latin-1")


@pytest.mark.parametrize(
    "host",
    [
        *("2130706433", "0x7f000001", "0x7f.1", "127.1", "0177.0.0.1", "127.0.0.1.", "0", "1."),
        *("user@localhost", "localhost#a", "local host", "localhost\0", "localhost:80", "", "."),
        *(
            "[::1]",
            "::1%lo",
            "ⓛocalhost",
            "locaⅼhost",
            "a" * 64,
            ".".join(["a"] * 200),
            "-a.b",
            "*",
        ),
        *("localhost/", "localhost\\", "%6cocalhost", "evil.localhost", "localhost.evil.org"),
    ],
)
async def test_other_spellings_of_a_host_reach_nothing(host: str) -> None:
    net = network(NetworkRule("localhost", ports=(80,), addresses=("127.0.0.0/8",)))
    with pytest.raises(NetworkRefused):
        await net.connect(host, 80, PATIENCE)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.100.100.200", "168.63.129.16", "224.0.0.1", "255.255.255.255", "198.18.0.1"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1"),
        *("::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:7f00::1"),
        *("fec0::1", "3ffe::1", "3fff::1", "4000::1"),
    ],
)
async def test_a_name_that_leads_to_an_inner_address_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found(*_: Any) -> list[str]:
        return [address]

    monkeypatch.setattr(upstream, "_addresses", found)
    net = network(NetworkRule("example.org"))
    with pytest.raises(NetworkRefused, match="no public address"):
        await net.connect("example.org", 443, PATIENCE)


async def test_the_connection_goes_to_the_address_that_was_judged(
    http: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second look-up of the name would give another address."""
    looks: list[str] = []

    async def found(host: str, *_: Any) -> list[str]:
        looks.append(host)
        return ["127.0.0.1"] if len(looks) == 1 else ["127.0.0.2"]

    monkeypatch.setattr(upstream, "_addresses", found)
    net = network(
        NetworkRule("name.test", schemes=("http",), ports=(http.port,), addresses=("127.0.0.1",))
    )
    number = await net.connect("name.test", http.port, PATIENCE)
    await net.send(number, 0, b"GET /echo HTTP/1.1\r\nHost: name.test:%d\r\n\r\n" % http.port)
    assert b"200 OK" in (await net.receive(number, 0, PATIENCE))["data"]
    await net.close_all()
    assert looks == ["name.test"]


@pytest.mark.parametrize(
    ("head", "more"),
    [
        ("GET http://169.254.169.254/ HTTP/1.1", ""),
        ("CONNECT 169.254.169.254:80 HTTP/1.1", ""),
        ("OPTIONS * HTTP/1.1", ""),
        ("GET //x HTTP/1.1\r\nHost: evil.org", ""),
        ("GET / HTTP/1.1\r\n folded", ""),
        ("GET / HTTP/1.1", "X: a\r\n b\r\n"),
        ("GET / HTTP/1.1", "X: a\r\n\tb\r\n"),
        ("GET / HTTP/1.1", "X: a\nHost: evil.org\r\n"),
        ("GET / HTTP/1.1", "X: a\rY: b\r\n"),
        ("GET / HTTP/1.1", "X: a\0b\r\n"),
        ("GET / HTTP/1.1", "X: a\x04b\r\n"),
        ("GET / HTTP/1.1", "X: a\x7f\r\n"),
        ("GET / HTTP/1.1", "X : a\r\n"),
        ("GET / HTTP/1.1", "Host: evil.org\r\n"),
        ("POST / HTTP/1.1", "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"),
        ("POST / HTTP/1.1", "Content-Length: 3\r\nContent-Length: 3\r\n"),
        ("POST / HTTP/1.1", "Content-Length: 3\r\nContent-Length: 4\r\n"),
        ("POST / HTTP/1.1", "Content-Length: +3\r\n"),
        ("POST / HTTP/1.1", "Content-Length: -3\r\n"),
        ("POST / HTTP/1.1", "Transfer-Encoding: chunked, identity\r\n"),
        ("POST / HTTP/1.1", "Transfer-Encoding: xchunked\r\n"),
        ("POST / HTTP/1.1", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        ("GET / HTTP/2.0", ""),
        ("PRI * HTTP/2.0", ""),
        ("GET /", ""),
        ("\x16\x03\x01", ""),
        ("GET / HTTP/1.1", "X: a\r\n" * 300),
        ("GET / HTTP/1.1", f"X: {'a' * 70_000}\r\n"),
        (f"GET /{'a' * 70_000} HTTP/1.1", ""),
    ],
)
async def test_a_request_that_can_be_read_in_two_ways_is_not_sent(
    rule: NetworkRule, http: Server, head: str, more: str
) -> None:
    seen = len(http.seen)
    with pytest.raises(ConnectionError):
        await exchange(network(rule), http.port, get(http.port, head, more))
    assert len(http.seen) == seen


async def test_requests_for_other_hosts_are_refused(rule: NetworkRule, http: Server) -> None:
    others = (f"localhost:{http.port + 1}", "localhost", f"a@localhost:{http.port}")
    for value in ("evil.org", *others):
        data = f"GET / HTTP/1.1\r\nHost: {value}\r\n\r\n".encode()
        with pytest.raises(ConnectionError, match="Host"):
            await exchange(network(rule), http.port, data)
    data = get(http.port, "POST /smuggled HTTP/1.1", "Content-Length: 1\r\n") + b"x"
    with pytest.raises(ConnectionError, match="before the answer"):
        await exchange(network(rule), http.port, data + get(http.port))


async def test_headers_for_the_next_hop_are_not_passed_on(rule: NetworkRule, http: Server) -> None:
    more = (
        "Connection: x-secret, keep-alive\r\nX-Secret: 1\r\nProxy-Authorization: a\r\n"
        "Upgrade: websocket\r\nTE: trailers\r\nX-Kept: 1\r\n"
    )
    await exchange(network(rule), http.port, get(http.port, more=more))
    names = {name for name, _ in http.seen[-1][2]}
    assert names == {"Host", "X-Kept"}


async def read_all(net: Network, port: int, data: bytes) -> None:
    """Sends bytes on a new connection to localhost, and reads the answer until a call fails."""
    number, received = await net.connect("localhost", port, PATIENCE), 0
    try:
        await net.send(number, 0, data)
        while True:
            received += len((await net.receive(number, received, PATIENCE))["data"])
    finally:
        await net.close_all()


def limited(rule: NetworkRule, **limits: Any) -> NetworkRule:
    """Returns a rule with other limits."""
    return NetworkRule.parse({**rule.table, **limits})


@pytest.mark.parametrize("limit", ["request_bytes", "session_bytes"])
async def test_bytes_are_limited(rule: NetworkRule, http: Server, limit: str) -> None:
    net = network(limited(rule, **{limit: 1_000_000}))
    with pytest.raises(PermissionError, match="1,000,000"):
        await read_all(net, http.port, get(http.port, "GET /zeros/50000000 HTTP/1.1"))
    assert net.used[1] < 2_000_000


async def test_uploads_and_answers_end_by_bytes_and_time(rule: NetworkRule, http: Server) -> None:
    net = network(limited(rule, request_bytes=1_000_000))
    head = get(http.port, "POST / HTTP/1.1", "Content-Length: 100000000\r\n")
    with pytest.raises(PermissionError, match="1,000,000"):
        number = await net.connect("localhost", http.port, PATIENCE)
        try:
            await net.send(number, 0, head)
            for _ in range(200):
                await asyncio.wait_for(net.send(number, 0, bytes(500_000)), PATIENCE)
        finally:
            await net.close_all()
    net = network(limited(rule, seconds=1.0))
    with pytest.raises(TimeoutError, match="1 seconds"):
        await read_all(net, http.port, get(http.port, "GET /chunks/100000 HTTP/1.1"))


async def test_unread_answers_wait_in_little_memory(rule: NetworkRule, http: Server) -> None:
    net = network(rule)
    count, part = 16, 512 * 1024
    for _ in range(count):
        number = await net.connect("localhost", http.port, PATIENCE)
        await net.send(number, 0, get(http.port, "GET /zeros/1500000 HTTP/1.1"))
    while net.waiting < SESSION_BYTES:
        await asyncio.sleep(0.01)
    for _ in range(20):
        await asyncio.sleep(0.01)
        assert net.waiting < SESSION_BYTES + count * part
    found = 0
    while not (answer := await net.receive(number, found, PATIENCE))["idle"]:
        found += len(answer["data"])
    assert found + len(answer["data"]) > 1_500_000
    await net.close_all()


async def test_many_connections_are_no_more_than_a_few(rule: NetworkRule, http: Server) -> None:
    net = network(rule)
    for start in range(0, 150, 50):
        calls = [net.connect("localhost", http.port, PATIENCE) for _ in range(50)]
        await asyncio.gather(*calls, return_exceptions=True)
        assert len(net._connections) <= 32, start
    await net.close_all()


async def test_many_small_chunks_keep_no_others_waiting(rule: NetworkRule, http: Server) -> None:
    net = network(rule)
    head = get(http.port, "POST / HTTP/1.1", "Transfer-Encoding: chunked\r\n")
    number, longest = await net.connect("localhost", http.port, PATIENCE), 0.0
    await net.send(number, 0, head)
    sending = asyncio.create_task(net.send(number, 0, b"1\r\nx\r\n" * 40_000))
    while not sending.done():
        before = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - before)
    await net.close_all()
    assert longest < 1.0


async def test_bytes_of_other_connections_are_out_of_reach(rule: NetworkRule, http: Server) -> None:
    net = network(rule)
    number = await net.connect("localhost", http.port, PATIENCE)
    for received in (-1, 1, 2**40):
        with pytest.raises(ConnectionError):
            await net.receive(number, received, 0.0)
    with pytest.raises(ConnectionError):
        await net.receive(number + 1, 0, 0.0)
    with pytest.raises(ValueError, match="at most"):
        await net.send(number, 0, bytes(PIECE_BYTES + 1))
    await net.close_all()


async def test_the_certificate_is_checked(rule: NetworkRule, https: Server, http: Server) -> None:
    async def secured(host: str, name: str) -> None:
        net = network(limited(rule, host=host))
        try:
            await net.secure(await net.connect(host, https.port, PATIENCE), name)
        finally:
            await net.close_all()

    await secured("localhost", "localhost")
    with pytest.raises(OSError, match="certificate"):
        await secured("127.0.0.1", "127.0.0.1")
    with pytest.raises(ConnectionError, match="not the one"):
        await secured("localhost", "example.org")


async def test_used_connections_are_not_made_secure_ones(rule: NetworkRule, http: Server) -> None:
    """A rule for https may allow a secret, which would be sent in plain text."""
    net = network(rule)
    with pytest.raises(ConnectionError, match="in use"):
        number, received = await net.connect("localhost", http.port, PATIENCE), 0
        await net.send(number, 0, get(http.port, "GET /csv HTTP/1.1"))
        while not (received and net._connections[number].is_idle):
            received += len((await net.receive(number, received, PATIENCE))["data"])
        try:
            await net.secure(number, "localhost")
        finally:
            await net.close_all()


async def test_calls_at_once_on_a_connection_take_turns(rule: NetworkRule, https: Server) -> None:
    """A request that is sent while TLS begins waits for it, and is not sent in plain text."""
    net = network(rule)
    number = await net.connect("localhost", https.port, PATIENCE)
    data = get(https.port, "GET /csv HTTP/1.1")
    calls = [net.secure(number, "localhost"), net.send(number, 0, data)]
    assert await asyncio.gather(*calls, return_exceptions=True) == [None, None]
    assert b"200 OK" in (await net.receive(number, 0, PATIENCE))["data"]
    await net.close_all()


_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_ENDLESS = {
    "informational": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "chunks with extensions": (_CHUNKED, b"1;" + b"a" * 10_000 + b"\r\nx\r\n"),
    "chunk of any size": (_CHUNKED + b"f" * 20 + b"\r\n", b"x" * 10_000),
    "body without a length": (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 10_000),
    "header": (b"HTTP/1.1 200 OK\r\nX: ", b"a" * 10_000),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X: a\r\n" * 1000),
    "trailers": (_CHUNKED + b"0\r\n", b"X: a\r\n" * 1000),
    "chunk's size": (_CHUNKED + b"1;", b"a" * 10_000),
    "version 0.9": (b"", b"<p>hello</p>" * 1000),
    "upgrade": (b"HTTP/1.1 101 X\r\nUpgrade: a\r\nConnection: upgrade\r\n\r\n", b"x" * 1000),
    "control character": (b"HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n", b"x" * 1000),
    "two lengths": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n", b"x"),
}
_VALID = [*_ENDLESS][:4]  # no part of the other answers is passed on


@pytest.mark.parametrize("kind", _ENDLESS)
async def test_an_endless_or_broken_answer_ends(kind: str) -> None:
    first, more = _ENDLESS[kind]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(first)
            for _ in range(1_000):
                writer.write(more)
                await writer.drain()
        writer.close()

    with pytest.raises(OSError, match="200,000" if kind in _VALID else r"\w"):
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            rule = NetworkRule("localhost", schemes=("http",), ports=(port,))
            net = network(limited(rule, request_bytes=200_000, seconds=PATIENCE))
            await read_all(net, port, get(port))
    assert net.used[1] < 400_000


async def test_an_event_has_no_query_and_no_body(rule: NetworkRule, http: Server) -> None:
    events: Events = []
    data = get(http.port, "GET /csv?k=secret HTTP/1.1")
    await exchange(network(rule, events=events), http.port, data)
    assert [(e["method"], e["host"], e["path"], e["status"], e["size"]) for e in events] == [
        ("GET", "localhost", "/csv", 200, 12)
    ]
