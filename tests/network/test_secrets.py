"""Secrets of the owner: cells have placeholders, and no way to the values."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.documented import Heard
from tests.faces import says
from tests.network.servers import DROPPED, Server
from tests.network.test_attacks import Events, exchange, get, limited, network
from wasm_kernel import ExecutionPolicy, create_sandbox
from wasm_kernel.errors import PolicyError
from wasm_kernel.network.judge import NetworkRefused
from wasm_kernel.network.secrets import RequestSecrets
from wasm_kernel.network_rules import NetworkRule, Secret, placeholder

VALUE = "sk-abcabcabd-0123456789"
MARK = placeholder("API_KEY")


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", VALUE)


@pytest.fixture
def secret_rule(rule: NetworkRule, https: Server) -> NetworkRule:
    """A rule with a secret."""
    return limited(rule, schemes=("https",), ports=(https.port,), secrets=("API_KEY",))


def sent(
    rule: NetworkRule, server: Server, more: str, events: Events | None = None
) -> dict[str, str]:
    """Sends a request with some headers; returns those that the server got."""
    data = get(server.port, "GET /csv HTTP/1.1", more)
    is_secure = server.url.startswith("https")
    asyncio.run(exchange(network(rule, events=events), server.port, data, is_secure=is_secure))
    return dict(server.seen[-1][2])


def test_a_placeholder_in_a_header_becomes_the_value(
    secret_rule: NetworkRule, https: Server
) -> None:
    basic = base64.b64encode(f"user:{MARK}".encode()).decode()
    events: Events = []
    more = f"Authorization: Bearer {MARK}\r\nX-Key: {MARK}\r\nAccept-Encoding: gzip\r\n"
    got = sent(secret_rule, https, more, events)
    assert (got["Authorization"], got["X-Key"]) == (f"Bearer {VALUE}", VALUE)
    assert "Accept-Encoding" not in got
    assert events[0]["placeholder"] is None
    got = sent(secret_rule, https, f"Authorization: Basic {basic}\r\n")
    assert base64.b64decode(got["Authorization"].split()[1]) == f"user:{VALUE}".encode()


def test_a_placeholder_stays_one_under_another_rule(
    rule: NetworkRule, http: Server, https: Server
) -> None:
    for server in (http, https):
        events: Events = []
        got = sent(rule, server, f"Authorization: Bearer {MARK}\r\n", events)
        assert got["Authorization"] == f"Bearer {MARK}"
        assert events[0]["placeholder"] is True


def test_a_secret_that_is_not_set_is_refused_by_name(
    secret_rule: NetworkRule, https: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (None, "", "a\r\nX: b", "ä", "x" * 5000):
        monkeypatch.delenv("API_KEY", raising=False)
        if value is not None:
            monkeypatch.setenv("API_KEY", value)
        said = "API_KEY can't stand" if value is not None else "API_KEY is not set"
        with pytest.raises(NetworkRefused, match=said):
            sent(secret_rule, https, f"X: {MARK}\r\n")


def given(rule: NetworkRule, **more: Any) -> NetworkRule:
    """Returns the rule with more facts about its secret."""
    return replace(rule, secrets=(Secret("API_KEY", **more),))


def test_a_value_comes_from_a_file(
    secret_rule: NetworkRule, https: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("API_KEY")
    file = tmp_path / "key"
    rule = given(secret_rule, file=str(file))
    with pytest.raises(NetworkRefused, match=r"API_KEY .* can't be read .No such file") as caught:
        sent(rule, https, f"X: {MARK}\r\n")
    assert str(file) not in str(caught.value)
    file.write_text(f"{VALUE}\n")
    assert sent(rule, https, f"X: {MARK}\r\n")["X"] == VALUE


def test_a_value_comes_from_a_keyring(
    secret_rule: NetworkRule, https: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rule = given(secret_rule, keyring="some:service:me")
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(PolicyError, match=r"API_KEY in a keyring, .*'wasm-kernel\[keyring\]'"):
        create_sandbox(workspace=tmp_path, policy=ExecutionPolicy(network=[rule]))
    kept = {("some:service", "me"): VALUE}
    fake = SimpleNamespace(get_password=lambda service, user: kept.get((service, user)))
    monkeypatch.setitem(sys.modules, "keyring", fake)
    assert sent(rule, https, f"X: {MARK}\r\n")["X"] == VALUE
    kept.clear()
    with pytest.raises(NetworkRefused, match="API_KEY is not in the keyring"):
        sent(rule, https, f"X: {MARK}\r\n")


def test_a_secret_may_be_for_one_header(secret_rule: NetworkRule, https: Server) -> None:
    rule = given(secret_rule, headers=["authorization"])
    got = sent(rule, https, f"Authorization: Bearer {MARK}\r\nUser-Agent: {MARK}\r\n")
    assert (got["Authorization"], got["User-Agent"]) == (f"Bearer {VALUE}", MARK)


def test_a_secret_may_be_for_a_parameter_of_the_query(
    secret_rule: NetworkRule, https: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "a&b c%")
    rule, events = given(secret_rule, query="key"), Events()
    data = get(https.port, f"GET /{MARK}?a={MARK}&key={MARK}&monkey={MARK} HTTP/1.1")
    asyncio.run(exchange(network(rule, events=events), https.port, data, is_secure=True))
    assert https.seen[-1][1] == f"/{MARK}?a={MARK}&key=a%26b%20c%25&monkey={MARK}"
    assert events[0]["path"] == f"/{MARK}"


ECHOES = ["body", "pieces", "header", "name", "reason", "line", "later", "basic", "query", "json"]
ECHOES += [*DROPPED]


@pytest.mark.parametrize("kind", ECHOES)
def test_neither_cells_nor_records_get_a_value_that_a_server_repeats(
    kind: str, secret_rule: NetworkRule, https: Server, tmp_path: Path, monkeypatch: Any
) -> None:
    value = 'sk-"abc' if kind == "json" else VALUE
    monkeypatch.setenv("API_KEY", value)
    rule = given(secret_rule, query="key" if kind == "query" else "")
    basic = base64.b64encode(f"me:{MARK}".encode()).decode()
    shown = {"basic": f"Basic {basic}"}.get(kind, f"Bearer {MARK}")
    more = f"Authorization: {shown}\r\n"
    requests = [get(https.port, f"GET /tell/{kind}?key={MARK} HTTP/1.1", more)]
    if kind == "later":
        requests += [get(https.port, "GET /tell/later HTTP/1.1")]
    found, said = b"", ""
    net = network(rule, folder=tmp_path, network_mode="record")
    for data in requests:
        try:
            found += asyncio.run(exchange(net, https.port, data, is_secure=True))
        except OSError as problem:
            said += str(problem)
    assert found or said
    written = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    token = base64.b64encode(f"me:{value}".encode())
    for form in (value.encode(), json.dumps(value)[1:-1].encode(), token):
        assert form not in found + said.encode() + written
    if kind not in ("line", "switch"):
        assert found.startswith(b"HTTP/1.1 200")
        assert (b"*****" in found) == (kind not in DROPPED)
        assert written


@pytest.mark.parametrize("seed", range(5))
def test_an_echo_in_pieces_is_hidden(seed: int) -> None:
    chance = random.Random(seed)
    secrets = RequestSecrets([Secret("API_KEY")])
    asyncio.run(secrets.fill([(b"x", MARK.encode())], "/"))
    whole = "".join(
        chance.choice([VALUE, VALUE[:5], "sk-", "abc", "."]) for _ in range(40)
    ).encode()
    shown_parts, at = [], 0
    while at < len(whole):
        step = chance.randint(1, 9)
        shown_parts.append(secrets.hide(whole[at : at + step]))
        at += step
    found = b"".join([*shown_parts, secrets.hide(b"", is_last=True)])
    assert found == whole.replace(VALUE.encode(), b"*" * len(VALUE))


def test_held_back_bytes_tell_nothing_of_the_value() -> None:
    def shown(part: str) -> list[bytes]:
        secrets = RequestSecrets([Secret("API_KEY")])
        asyncio.run(secrets.fill([(b"x", MARK.encode())], "/"))
        return [secrets.hide(b"data: a\n"), secrets.hide(part.encode())]

    guessed, other = shown("." * 200 + VALUE[:6]), shown("." * 200 + "?" * 6)
    assert guessed == other
    assert guessed[0] == b"data: a\n"  # whole lines are not late


def test_cells_never_see_the_value(
    secret_rule: NetworkRule, https: Server, clients: Path, tmp_path: Path, heard: Heard
) -> None:
    policy = ExecutionPolicy(network=[secret_rule])
    with create_sandbox(workspace=tmp_path / "w", policy=policy, logger=heard.logger) as made:
        code = (
            "import json, os, urllib.request as u\n"
            "key = os.environ['API_KEY']\n"
            "sent = {'Authorization': f'Bearer {key}'}\n"
            f"asked = u.Request('{https.url}/echo', headers=sent)\n"
            "print(key, u.urlopen(asked).read().decode())"
        )
        text = says(made, code)
        made.checkpoint("here")
    assert dict(https.seen[-1][2])["Authorization"] == f"Bearer {VALUE}"
    assert text.startswith(MARK)
    assert dict(json.loads(text.split(" ", 1)[1]))["Authorization"] == f"Bearer {'*' * len(VALUE)}"
    assert VALUE not in str(heard.events)
    for file in (each for each in tmp_path.rglob("*") if each.is_file()):
        assert VALUE.encode() not in file.read_bytes()


@pytest.mark.parametrize(
    "given",
    [
        {"host": "a.org", "secrets": [7]},
        {"host": "a.org", "secrets": [{"name": "KEY", "path": "/key"}]},
        {"host": "a.org", "secrets": [{"name": "KEY", "file": "key"}]},
        {"host": "a.org", "secrets": [{"name": "KEY", "keyring": "key"}]},
        {"host": "a.org", "secrets": [{"name": "KEY", "headers": "Authorization"}]},
        {"host": "a.org", "secrets": [{"name": "KEY", "headers": ["a b"]}]},
        {"host": "a.org", "secrets": [{"name": "KEY", "query": "a=b"}]},
        {"host": "a.org", "secrets": ["KEY"], "schemes": ["http", "https"]},
        {"host": "a.org", "secrets": ["KEY"], "deny": True},
    ],
)
def test_a_rule_with_a_wrong_secret_is_refused(given: Any) -> None:
    with pytest.raises(PolicyError):
        NetworkRule.parse(given)
