"""Secrets of the owner: cells have placeholders, and no way to the values."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.network.servers import Server
from tests.network.test_attacks import Events, exchange, get, limited, network, run
from tests.network.test_clients import shown
from wasm_kernel import ExecutionPolicy, create_sandbox
from wasm_kernel.errors import PolicyError
from wasm_kernel.events import SandboxLogger
from wasm_kernel.network.judge import Refused
from wasm_kernel.network.secrets import RequestSecrets
from wasm_kernel.network_rules import NetworkRule, placeholder

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
    run(lambda: exchange(network(rule, events=events), server.port, data, is_secure=is_secure))
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


def test_it_stays_one_under_another_rule(rule: NetworkRule, http: Server, https: Server) -> None:
    for server in (http, https):
        events: Events = []
        got = sent(rule, server, f"Authorization: Bearer {MARK}\r\n", events)
        assert got["Authorization"] == f"Bearer {MARK}"
        assert events[0]["placeholder"] is True


def test_it_stays_one_in_a_path_and_a_body(secret_rule: NetworkRule, https: Server) -> None:
    data = get(https.port, f"GET /echo/{MARK}?{MARK} HTTP/1.1")
    run(lambda: exchange(network(secret_rule), https.port, data, is_secure=True))
    assert VALUE not in str(https.seen[-1])


def test_a_secret_that_is_not_set_is_refused_by_name(
    secret_rule: NetworkRule, https: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (None, "", "a\r\nX: b", "ä", "x" * 5000):
        monkeypatch.delenv("API_KEY", raising=False)
        if value is not None:
            monkeypatch.setenv("API_KEY", value)
        with pytest.raises(Refused, match="API_KEY"):
            sent(secret_rule, https, f"X: {MARK}\r\n")


@pytest.mark.parametrize("seed", range(20))
def test_an_echo_in_pieces_is_hidden(seed: int) -> None:
    chance = random.Random(seed)
    secrets = RequestSecrets(["API_KEY"])
    secrets.fill([(b"x", MARK.encode())])
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


def test_cells_never_see_the_value(
    secret_rule: NetworkRule, https: Server, clients: Path, tmp_path: Path
) -> None:
    heard: list[Any] = []

    class Log:
        def info(self, event: str, /, *args: Any, **fields: Any) -> None:
            heard.append((event, fields))

        warning = info

    policy = ExecutionPolicy(network=[secret_rule])
    with create_sandbox(
        workspace=tmp_path / "w", policy=policy, logger=SandboxLogger(Log())
    ) as made:
        code = (
            "import json, os, urllib.request as u\n"
            "key = os.environ['API_KEY']\n"
            "sent = {'Authorization': f'Bearer {key}'}\n"
            f"asked = u.Request('{https.url}/echo', headers=sent)\n"
            "print(key, u.urlopen(asked).read().decode())"
        )
        text = shown(made, code)
        made.checkpoint("here")
    assert dict(https.seen[-1][2])["Authorization"] == f"Bearer {VALUE}"
    assert text.startswith(MARK)
    assert dict(json.loads(text.split(" ", 1)[1]))["Authorization"] == f"Bearer {'*' * len(VALUE)}"
    assert VALUE not in str(heard)
    for file in (each for each in tmp_path.rglob("*") if each.is_file()):
        assert VALUE.encode() not in file.read_bytes()


@pytest.mark.parametrize(
    "given",
    [
        {"host": "a.org", "secrets": ["a b"]},
        {"host": "a.org", "secrets": ["KEY"], "schemes": ["http", "https"]},
        {"host": "a.org", "secrets": ["KEY"], "deny": True},
    ],
)
def test_a_rule_with_secrets_is_for_https_alone(given: Any) -> None:
    with pytest.raises(PolicyError):
        NetworkRule.parse(given)
