"""Which requests a policy's rules allow, and which of them get the values of secrets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
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
from wasm_kernel.errors import Door, PolicyError
from wasm_kernel.network.judge import Judge, NetworkRefused, plain_path
from wasm_kernel.network.secrets import RequestSecrets
from wasm_kernel.network_rules import NetworkRule, Secret, placeholder, plain_host


@pytest.mark.parametrize(
    "target",
    [
        *("/data/../admin", "/data/%2e%2e/admin", "/data/.%2E/admin", "/data%2f..%2fadmin"),
        "/data/%252e%252e/admin",
        *("/data/..\\admin", "/data/%5c../admin", "//admin", "/data//../admin", "/database"),
        *("/Data/a", "/data;/../admin", "/data/%00", "/%64ata/../x", "/"),
        *("/data/a%0a", "/data/a%09", "/data/a.", "/data/a%20/b", "/data/a%3fb"),
    ],
)
def test_a_rule_with_a_path_is_for_that_path_alone(target: str) -> None:
    judge = Judge((NetworkRule("a.org", paths=("/data",)),), Door.PROGRAM)
    with pytest.raises(NetworkRefused):
        judge.request("https", "a.org", 443, "GET", target)
    judge.request("https", "a.org", 443, "GET", "/%64ata/x?y=/../z")


@pytest.mark.parametrize(
    "target",
    [
        *("/admin", "/%61dmin/x", "/a/../admin", "//admin", "/x%2f..%2fadmin", "/%2561dmin"),
        *("/ADMIN", "/admin.", "/admin%20/x", "/admin%09", "/admin%0a", "/admin%3fx"),
    ],
)
def test_a_denied_path_wins(target: str) -> None:
    deny = NetworkRule("a.org", deny=True, paths=("/admin",))
    judge = Judge((NetworkRule("a.org"), deny), Door.PROGRAM)
    with pytest.raises(NetworkRefused, match="denied"):
        judge.request("https", "a.org", 443, "GET", target)
    judge.request("https", "a.org", 443, "GET", "/other")
    assert plain_path("/other/") == "/other/"


def test_a_denied_host_is_denied_on_all_ports_and_for_both_schemes() -> None:
    allow = NetworkRule("*.a.org", schemes=("http", "https"), ports=(80, 8443))
    for deny in (NetworkRule.parse("!b.a.org"), NetworkRule("b.a.org", deny=True)):
        judge = Judge((allow, deny), Door.PROGRAM)
        for port, scheme in ((80, "http"), (8443, "https")):
            assert judge.host("C.A.ORG.", port) == "c.a.org"
            for other in ("a.org", "xa.org"):
                with pytest.raises(NetworkRefused):
                    judge.host(other, port)
            with pytest.raises(NetworkRefused, match="denied"):
                judge.host("b.a.org", port)
            with pytest.raises(NetworkRefused, match="denied"):
                judge.request(scheme, "b.a.org", port, "GET", "/")


def test_a_plain_request_needs_a_rule_for_http_and_a_slip_in_a_url_is_told() -> None:
    judge = Judge((NetworkRule("a.org", ports=(443, 8443)),), Door.PROGRAM)
    with pytest.raises(NetworkRefused):
        judge.request("http", "a.org", 8443, "GET", "/")
    for slip in ("htp://a.org", "https:///x", "https://"):
        with pytest.raises(PolicyError, match=f"takes https://HOST/PATH, .*, not '{slip}'"):
            NetworkRule.parse(slip)


def test_methods_and_rates_are_limited() -> None:
    rule = NetworkRule("a.org", methods=("GET",), requests_a_minute=3)
    judge = Judge((rule,), Door.PROGRAM)
    for method in ("POST", "CONNECT", "TRACE", "get"):
        with pytest.raises(NetworkRefused):
            judge.request("https", "a.org", 443, method, "/")
    for _ in range(3):
        judge.request("https", "a.org", 443, "GET", "/")
    with pytest.raises(NetworkRefused, match="3 requests a minute"):
        judge.request("https", "a.org", 443, "GET", "/")


@pytest.mark.parametrize(
    "given",
    [
        *("", "*", "*.", "http://", "https://a.org?x", "https://u:p@a.org", "ftp://a.org", "a b"),
        *("bücher.example", "https://127.1", {"host": 3}, {"host": "a.org", "port": 3}, 7),
        *({"host": "a.org", "ports": [0]}, {"host": "a.org", "methods": ["get"]}),
        *({"host": "a.org", "paths": ["x"]}, {"host": "a.org", "seconds": 0}),
        *({"host": "a.org", "addresses": ["x"]}, {"host": "a.org", "schemes": "https"}),
    ],
)
def test_a_rule_that_means_nothing_is_refused(given: Any) -> None:
    with pytest.raises(PolicyError):
        NetworkRule.parse(given)


def test_hosts_have_one_spelling_and_localhost_is_this_machine_alone() -> None:
    assert plain_host("EXAMPLE.org.") == "example.org"
    assert plain_host("0:0:0:0:0:0:0:1") == "::1"
    assert not NetworkRule("127.0.0.1").leads_to(ipaddress.ip_address("127.0.0.2"))
    with contextlib.suppress(PolicyError):
        assert NetworkRule.parse("https://a.org:8443/data").paths == ("/data",)
    rule = NetworkRule("localhost")
    assert rule.leads_to(ipaddress.ip_address("127.0.0.1"))
    assert rule.leads_to(ipaddress.ip_address("::1"))
    assert not rule.leads_to(ipaddress.ip_address("10.0.0.1"))
    assert not NetworkRule("*.localhost").leads_to(ipaddress.ip_address("127.0.0.1"))


PRESETS = """
pypi = ["https://pypi.org/simple", "!evil.org"]
wrong = ["https://"]
[[data]]
host = "*.example.org"
methods = ["GET"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for the user's configuration."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    made = tmp_path / "wasm-kernel"
    made.mkdir()
    return made


def test_a_name_stands_for_a_list_of_rules(folder: Path, tmp_path: Path) -> None:
    (folder / "network.toml").write_text(PRESETS)
    assert ExecutionPolicy().network == ()  # no preset is on by itself
    policy = ExecutionPolicy(network=["@data", "https://a.org", "@pypi"])
    said = ["https://*.example.org (GET)", "https://a.org", "https://pypi.org (/simple)"]
    assert [str(rule) for rule in policy.network][:3] == said
    assert policy.network[3].deny
    (tmp_path / "policy.toml").write_text('network = ["@data"]')
    assert ExecutionPolicy.from_toml(tmp_path / "policy.toml").network == policy.network[:1]


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (None, "data", "no network.toml in wasm-kernel of your folder for configuration"),
        (PRESETS, "other", r"@other, but network.toml has no list of that name .pypi, wrong, data"),
        (PRESETS, "wrong", "takes https://HOST"),
        ("data = 1", "data", "no list of that name"),
        ("data = [", "data", "is not a TOML file"),
        ('data = ["@data"]', "data", "has the host '@data'|takes https"),
    ],
)
def test_a_wrong_preset_is_refused(text: str | None, name: str, said: str, folder: Path) -> None:
    if text is not None:
        (folder / "network.toml").write_text(text)
    with pytest.raises(PolicyError, match=said):
        ExecutionPolicy(network=[f"@{name}"])


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


def test_placeholder_in_a_header_becomes_the_value(secret_rule: NetworkRule, https: Server) -> None:
    basic = base64.b64encode(f"user:{MARK}".encode()).decode()
    events: Events = []
    more = f"Authorization: Bearer {MARK}\r\nX-Key: {MARK}\r\nAccept-Encoding: gzip\r\n"
    got = sent(secret_rule, https, more, events)
    assert (got["Authorization"], got["X-Key"]) == (f"Bearer {VALUE}", VALUE)
    assert "Accept-Encoding" not in got
    assert events[0]["placeholder"] is None
    got = sent(secret_rule, https, f"Authorization: Basic {basic}\r\n")
    assert base64.b64decode(got["Authorization"].split()[1]) == f"user:{VALUE}".encode()


def test_placeholders_stay_for_other_rules(rule: NetworkRule, http: Server, https: Server) -> None:
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
