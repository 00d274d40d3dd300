"""The owner's proxy: requests go through it, and the certificate is still checked."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.faces import PATIENCE
from tests.network.servers import Server
from tests.network.test_attacks import exchange, get, network
from wasm_kernel.network.judge import NetworkRefused
from wasm_kernel.network_rules import NetworkRule

Heads = list[bytes]


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _serve(client: socket.socket, server: Server, heads: Heads) -> None:
    """Connects a client of the proxy to the server, whatever it asks for."""
    head = b""
    while b"\r\n\r\n" not in head:
        head += client.recv(65536)
    heads.append(head)
    with client, socket.create_connection(("127.0.0.1", server.port)) as target:
        if head.startswith(b"CONNECT"):
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            target.sendall(head)
        other = threading.Thread(target=_pass_on, args=(target, client), daemon=True)
        other.start()
        _pass_on(client, target)
        other.join()


@contextlib.contextmanager
def proxy_to(server: Server, patch: pytest.MonkeyPatch) -> Iterator[Heads]:
    """Runs a proxy, and names it in the environment; yields the heads that it gets."""
    heads: Heads = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    args = (client, server, heads)
                    threading.Thread(target=_serve, args=args, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        address = f"http://me:pass%20word@127.0.0.1:{listening.getsockname()[1]}"
        for name in ("http_proxy", "https_proxy"):
            patch.setenv(name, address)
        patch.delenv("no_proxy", raising=False)
        yield heads
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_requests_go_through_the_owners_proxy(
    scheme: str, rule: NetworkRule, http: Server, https: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = https if scheme == "https" else http
    with proxy_to(server, monkeypatch) as heads:
        data = get(server.port, "GET /csv HTTP/1.1")
        found = asyncio.run(exchange(network(rule), server.port, data, is_secure=scheme == "https"))
        with pytest.raises(NetworkRefused):
            asyncio.run(
                network(NetworkRule("127.0.0.2", deny=True)).connect("127.0.0.2", 80, PATIENCE)
            )
    assert b"200 OK" in found
    target = f"localhost:{server.port}".encode()
    assert heads[0].startswith(
        b"CONNECT " + target if scheme == "https" else b"GET http://" + target
    )
    assert b"Proxy-Authorization: Basic" in heads[0]
