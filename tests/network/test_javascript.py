"""`fetch` in JavaScript cells, under the same rules as the clients of Python."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.faces import error_of, wait_for
from tests.guests.javascript.conftest import value
from tests.network.servers import Server
from wasm_kernel import ExecutionPolicy, create_sandbox
from wasm_kernel.network_rules import NetworkRule
from wasm_kernel.service.sandbox import Sandbox

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
