"""Clients of HTTP in cells, unmodified, against servers of HTTP and HTTPS."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faces import error_of, says, wait_for
from tests.network.servers import Server
from wasm_kernel import ExecutionPolicy, create_sandbox
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


def test_clients_work_unmodified(sandbox: Sandbox) -> None:
    for code, expected in WORKING.items():
        assert says(sandbox, code) == expected, code


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


def test_a_time_out_of_the_client_ends_the_wait(sandbox: Sandbox) -> None:
    code = "import requests; requests.get(S + '/slow/30', timeout=0.5)"
    assert error_of(sandbox.execute(code)).startswith("ReadTimeout")
    assert says(sandbox, "print(requests.get(S + '/csv').status_code)") == "200"


def test_an_interrupt_amid_a_transfer_keeps_the_variables(sandbox: Sandbox, http: Server) -> None:
    says(sandbox, "kept = 42; import requests")
    future = sandbox.submit("for _ in requests.get(H + '/chunks/100000', stream=True): pass")
    wait_for(lambda: any(path == "/chunks/100000" for _, path, _ in http.seen))
    sandbox.interrupt()
    assert error_of(future.result()).startswith("KeyboardInterrupt")
    assert says(sandbox, "print(kept, requests.get(S + '/csv').status_code)") == "42 200"


def test_a_refused_connection_is_one_in_the_cell(sandbox: Sandbox) -> None:
    result = sandbox.execute("import urllib.request as u; u.urlopen('http://localhost:1')")
    assert "localhost can't be reached on port 1" in error_of(result)
    assert "The setting is network." in error_of(result)
    assert result.stderr.count("[wasm-kernel]") == 1


def test_a_request_whose_connection_is_reset_is_not_sent_again(
    sandbox: Sandbox, http: Server
) -> None:
    before = len(http.seen)
    code = "import urllib.request; urllib.request.urlopen(H + '/reset')"
    assert "ConnectionResetError" in error_of(sandbox.execute(code))
    assert len(http.seen) == before + 1


def test_a_client_that_does_not_block_sees_the_end_of_its_connection(
    sandbox: Sandbox, http: Server
) -> None:
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


def test_session_info_shows_the_rules(sandbox: Sandbox) -> None:
    assert "https://localhost" in says(sandbox, "info = %session_info\nprint(info['network'])")


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
