"""Clients of HTTP in cells, unmodified, against servers of HTTP and HTTPS, and by a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faces import PATIENCE, error_of, says, wait_for
from tests.guests.javascript.conftest import value
from tests.network.servers import Server
from tests.network.test_attacks import exchange, get, network
from wasm_kernel import ExecutionPolicy, create_sandbox
from wasm_kernel.network.judge import NetworkRefused
from wasm_kernel.network_rules import NetworkRule
from wasm_kernel.service.sandbox import Sandbox

CUT = """
try: requests.get(S + '/cut')
except requests.RequestException as problem: print(type(problem).__name__)
"""
KEPT_ALIVE = """
import http.client
c = http.client.HTTPConnection(H.removeprefix('http://'))
for path in '/csv', '/csv':
    c.request('GET', path)
    print(len(c.getresponse().read()))
"""
AWAITED = """
async with httpx.AsyncClient() as c:
    print((await c.get(S + '/csv')).text[:3])
    print((await c.post(H, content=b'abc')).text)
"""
STREAMS = """
import asyncio
place = S.removeprefix('https://')
r, w = await asyncio.open_connection(*place.split(':'), ssl=True)
w.write(f'GET /csv HTTP/1.1\\r\\nHost: {place}\\r\\n\\r\\n'.encode())
print(await r.readline())
w.close()
"""
WORKING = {
    "import urllib.request as u; print(u.urlopen(S + '/csv').read())": "b'a,b\\n1,2\\n3,4\\n'",
    "import pandas; print(pandas.read_csv(S + '/csv').b.sum())": "6",
    "import requests; print(requests.get(S + '/csv').text[:3])": "a,b",
    "print(requests.post(H, json={'a': 1}).text)": "8",
    "print(*requests.get(S + '/chunks/2', stream=True).iter_content(5))": "b'hello' b'hello'",
    "print(requests.get(S + '/status/404').status_code)": "404",
    "print(requests.get(S + '/gzip').text[:6])": "hello",
    "print(requests.head(S + '/csv').status_code)": "501",
    CUT: "ChunkedEncodingError",
    "import httpx; print(httpx.get(S + '/csv').text[:3])": "a,b",
    "print(httpx.post(H, content=iter([b'a'] * 3)).text)": "3",
    AWAITED: "a,b\n3",
    KEPT_ALIVE: "12\n12",
    STREAMS: "b'HTTP/1.1 200 OK\\r\\n'",
}


def test_clients_work_unmodified_and_session_info_shows_the_rules(sandbox: Sandbox) -> None:
    for code, expected in WORKING.items():
        assert says(sandbox, code) == expected, code
    assert "https://localhost" in says(sandbox, "info = %session_info\nprint(info['network'])")


@pytest.mark.parametrize("scheme", ["H", "S"])
@pytest.mark.parametrize("size", [2_000_000, pytest.param(100_000_000, marks=pytest.mark.soak)])
def test_large_bodies_pass_both_ways(sandbox: Sandbox, scheme: str, size: int) -> None:
    got = says(
        sandbox, f"import requests; print(len(requests.get({scheme} + '/zeros/{size}').content))"
    )
    put = says(sandbox, f"print(requests.post({scheme}, data=bytes({size})).text)")
    assert got == put == str(size)


def test_a_session_keeps_its_connection_also_over_cells(sandbox: Sandbox, https: Server) -> None:
    before = https.connections
    code = (
        "import requests\n"
        "with requests.Session() as session:\n"
        "    print(*(session.get(S + '/csv').status_code for _ in range(5)))"
    )
    assert says(sandbox, code) == "200 200 200 200 200"
    assert https.connections == before + 1
    says(sandbox, "import httpx; client = httpx.AsyncClient(); await client.get(S + '/csv')")
    assert says(sandbox, "print((await client.get(S + '/csv')).status_code)") == "200"


def test_a_clients_time_out_and_a_refused_connection_reach_the_cell(sandbox: Sandbox) -> None:
    code = "import requests; requests.get(S + '/slow/30', timeout=0.5)"
    assert error_of(sandbox.execute(code)).startswith("ReadTimeout")
    assert says(sandbox, "print(requests.get(S + '/csv').status_code)") == "200"
    result = sandbox.execute("import urllib.request as u; u.urlopen('http://localhost:1')")
    assert "localhost can't be reached on port 1" in error_of(result)
    assert "The setting is network." in error_of(result)
    assert result.stderr.count("[wasm-kernel]") == 1


def test_an_interrupt_amid_a_transfer_keeps_the_variables(sandbox: Sandbox, http: Server) -> None:
    says(sandbox, "kept = 42; import requests")
    future = sandbox.submit("for _ in requests.get(H + '/chunks/100000', stream=True): pass")
    wait_for(lambda: any(path == "/chunks/100000" for _, path, _ in http.seen))
    sandbox.interrupt()
    assert error_of(future.result()).startswith("KeyboardInterrupt")
    assert says(sandbox, "print(kept, requests.get(S + '/csv').status_code)") == "42 200"


def test_a_request_upon_a_reset_connection_is_sent_once(sandbox: Sandbox, http: Server) -> None:
    before = len(http.seen)
    code = "import urllib.request; urllib.request.urlopen(H + '/reset')"
    assert "ConnectionResetError" in error_of(sandbox.execute(code))
    assert len(http.seen) == before + 1


def test_clients_that_never_block_see_their_connections_end(sandbox: Sandbox, http: Server) -> None:
    code = f"""
import socket, time
plain = socket.create_connection(("localhost", {http.port}))
plain.sendall(b"GET /csv HTTP/1.0\\r\\nHost: localhost:{http.port}\\r\\n\\r\\n")
plain.setblocking(False)
parts, end = [], time.monotonic() + 60
while b"" not in parts and time.monotonic() < end:
    try:
        parts.append(plain.recv(100))
    except BlockingIOError:
        time.sleep(0.01)
print(b"".join(parts)[-4:], parts[-1])
"""
    assert says(sandbox, code) == r"b'3,4\n' b''"


def test_an_owner_can_take_the_network_away(
    clients: Path, rule: NetworkRule, http: Server, tmp_path: Path
) -> None:
    get = f"import urllib.request as u; print(len(u.urlopen('{http.url}/csv').read()))"
    with create_sandbox(workspace=tmp_path, policy=ExecutionPolicy(network=[rule])) as made:
        assert says(made, get) == "12"
        made.reconfigure(ExecutionPolicy(), None)
        assert "the sandbox has no network" in error_of(made.execute(get))
        made.reconfigure(ExecutionPolicy(network=[rule]), None)
        assert says(made, get) == "12"


def test_undo_says_that_requests_stay_sent_and_clients_go_on(sandbox: Sandbox) -> None:
    says(sandbox, "import requests; requests.get(S + '/csv')")
    says(sandbox, "quiet = 1")
    assert "stay sent" not in says(sandbox, "%undo")
    assert "Requests that were sent to the network stay sent" in says(sandbox, "%undo")
    says(sandbox, "import requests; kept = requests.Session(); kept.get(S + '/csv')")
    says(sandbox, "kept.get(S + '/csv'); kept.get(S + '/csv')")
    sandbox.undo()
    assert says(sandbox, "print(kept.get(S + '/csv').text[:3])") == "a,b"


@pytest.mark.parametrize("client", ["requests", "httpx"])
def test_a_server_that_leaves_amid_an_upload_ends_it(sandbox: Sandbox, client: str) -> None:
    body = "content" if client == "httpx" else "data"
    code = f"import {client}; {client}.put(H + '/x', {body}=bytes(10_000_000))"
    began = time.monotonic()
    result = sandbox.execute(code)
    assert error_of(result).partition(":")[0] in {
        "ConnectionError",
        "ReadError",
        "WriteError",
        "RemoteProtocolError",
    }
    assert time.monotonic() - began < 60
    assert says(sandbox, f"print({client}.get(S + '/csv').status_code)") == "200"


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


IN_PIECES = """
const sizes = []
for await (const piece of (await fetch(S + '/chunks/3')).body) sizes.push(piece.length)
sizes.join()
"""
AT_ONCE = """
const all = await Promise.all([...Array(10)].map(() => fetch(S + '/slow/1')))
all.filter((each) => each.ok).length
"""
PARTS = """
const answer = await fetch(S + '/status/404'), copy = (await fetch(S + '/csv')).clone()
;[answer.status, answer.ok, copy.headers.get('Content-Length'), (await copy.text()).length]
"""
AGAIN = """
const sent = await fetch(`${S}/to?${H}/echo`, { headers: { Authorization: 'x', 'X-Kept': 'y' } })
;[sent.redirected, (await sent.json()).map(([name]) => name).join()]
"""


@pytest.fixture(scope="module")
def javascript(
    rule: NetworkRule, http: Server, https: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandbox]:
    """A sandbox of JavaScript, whose cells know both servers as H and S."""
    folder, policy = tmp_path_factory.mktemp("javascript"), ExecutionPolicy(network=[rule])
    with create_sandbox("javascript", folder, policy, pip=True) as made:
        assert made.execute(f"const H = {http.url!r}, S = {https.url!r}").success
        yield made


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("(await (await fetch(H + '/echo', { headers: { A: 'b' } })).json())[1].join()", "'a,b'"),
        ("(await (await fetch(S + '/zeros/1000000')).arrayBuffer()).byteLength", "1000000"),
        (
            ("await (await fetch(S, { method: 'POST', body: new Uint8Array(1_000_000) })).text()"),
            "'1000000'",
        ),
        (IN_PIECES, "'5,5,5'"),
        (AT_ONCE, "10"),
        (PARTS, "[ 404, false, '12', 12 ]"),
        (AGAIN, "[ true, 'Host,x-kept' ]"),
        ("Object.getOwnPropertyNames(globalThis).filter((name) => /network/.test(name))", "[]"),
    ],
)
def test_fetch_works(javascript: Sandbox, code: str, shown: str) -> None:
    assert value(javascript, code) == shown


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "await fetch('https://example.org/')",
            (
                "example.org can't be reached on port 443: no rule of this sandbox's network "
                "allows it. The setting is network."
            ),
        ),
        ("await fetch('http://2130706433/')", "127.0.0.1 can't be reached"),
        ("await fetch(S + '/to?http://169.254.169.254/')", "169.254.169.254 can't be reached"),
        ("await fetch('https://user:word@localhost/')", "has no user"),
        ("await fetch(S, { headers: { A: 'b\\r\\nHost: c' } })", "is not valid"),
        ("await fetch(S, { method: 'GET / HTTP/1.1\\r\\nA: b' })", "is not valid"),
        ("await (await fetch(S + '/cut')).text()", "fetch failed"),
        ("await fetch(S + '/slow/9', { signal: AbortSignal.timeout(100) })", "time is over"),
    ],
)
def test_fetch_says_why_it_failed(javascript: Sandbox, code: str, words: str) -> None:
    assert words in error_of(javascript.execute(code))


def test_an_interrupt_ends_a_fetch_and_keeps_the_variables(
    javascript: Sandbox, http: Server, https: Server
) -> None:
    future = javascript.submit("const kept = 42\nawait fetch(S + '/slow/60')")
    wait_for(lambda: any(path == "/slow/60" for _, path, _ in https.seen))
    javascript.interrupt()
    assert error_of(future.result()).startswith("KeyboardInterrupt")
    for number in range(12):  # some interrupts come as a fetch begins a call
        before = len(http.seen)
        future = javascript.submit("while (true) await (await fetch(H + '/csv')).text()")
        while len(http.seen) == before:
            time.sleep(0.0002 * number)
        javascript.interrupt()
        assert error_of(future.result()).startswith("KeyboardInterrupt")
    assert value(javascript, "[kept, (await fetch(S + '/csv')).status]") == "[ 42, 200 ]"


@pytest.mark.soak
def test_a_client_of_npm_works(javascript: Sandbox) -> None:
    assert javascript.execute("%npm install ky@1").success
    assert value(javascript, "import ky from 'ky'; await ky(S + '/csv').text()")[:4] == "'a,b"
