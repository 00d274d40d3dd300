"""Hostile clients of the server for agents: what is not theirs, too much, too often."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from tests.faces import PATIENCE
from tests.mcp.clients import HEADERS, Agents, HttpServer, Wire, server_environment, serving
from wasm_kernel.frontends.mcp.http import BURST, Rates

TOKENS = '[owners]\nann = "the token of ann herself"\neve = "the token of eve, who is evil"\n'
ANN, EVE = "the token of ann herself", "the token of eve, who is evil"
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def agents(warm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    with ExitStack() as ending:
        yield Agents(server_environment(tmp_path_factory.mktemp("mcp")), ending)


@pytest.fixture(scope="module")
def server(agents: Agents, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    file = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    file.write_text(TOKENS)
    with serving(agents.environment, "--token-file", str(file), "--sessions", "6") as server:
        yield server


def test_a_session_header_is_of_no_use_to_others(server: HttpServer) -> None:
    ann, eve = Wire(server, ANN), Wire(server, EVE)
    mine = ann.begin()
    call = {"name": "execute_code", "arguments": {"code": "x = 'secret'"}}
    for who, header in ((eve, mine), (ann, "0" * 32), (eve, "../../x")):
        answer = who.send("tools/call", call, header)
        assert answer.status == 404
        answer.read()
    answer = eve.send("", None, mine, verb="DELETE")
    assert answer.status == 404
    answer.read()
    answer = ann.send("tools/call", call, mine)
    assert answer.status == 200
    assert b"cell 1" in answer.read()
    ann.close()
    eve.close()


def test_a_request_of_any_length_takes_no_memory(server: HttpServer) -> None:
    line = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=PATIENCE)
    headers = {**HEADERS, "Authorization": f"Bearer {EVE}", "Transfer-Encoding": "chunked"}
    line.putrequest("POST", "/mcp")
    for name, value in headers.items():
        line.putheader(name, value)
    line.endheaders()
    chunk = b"%x\r\n" % MIB + b" " * MIB + b"\r\n"
    sent = 0
    try:
        while sent < 100:
            line.send(chunk)
            sent += 1
        line.send(b"0\r\n\r\n")
        assert line.getresponse().status == 413
    except OSError:
        assert sent < 100  # it has answered and hung up
    line.close()
    assert "wasm_kernel_memory_bytes" in server.page("/metrics")


def test_too_many_sessions_are_refused_in_words(server: HttpServer, agents: Agents) -> None:
    ann, eve = agents.http(server.url, ANN), agents.http(server.url, EVE)
    ann.says("x = 1")
    answers = [eve.call("create_session") for _ in range(20)]
    assert sum(not each.failed for each in answers) < 6
    assert "Nothing was changed" in answers[-1].text
    assert ann.says("x") == "1"
    eve_s_own = [each.handle for each in answers if not each.failed]
    assert all(ann.call("destroy_session", session=each).failed for each in eve_s_own)
    assert not any(eve.call("destroy_session", session=each).failed for each in eve_s_own)


def test_too_many_requests_are_refused() -> None:
    """One client has a share of its own, and takes nobody else's."""
    rates = Rates()
    evil = [rates.allows("eve") for _ in range(2 * int(BURST))]
    assert all(evil[: int(BURST)])
    assert not evil[-1]
    assert rates.allows("ann")


def test_huge_arguments_over_stdio_are_refused(agents: Agents) -> None:
    stdio = agents.stdio()
    stdio.says("x = 1")
    long = stdio.call("execute_code", code="#" * (20 * MIB))
    assert long.failed
    assert len(long.text) < 1000
    assert stdio.call("write_file", path="a", content="x", session="y" * MIB).failed
    assert stdio.call("read_file", path="x" * MIB).failed
    assert stdio.says("x") == "1"
