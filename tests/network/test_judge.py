"""The requests that rules allow: hosts, paths and methods in all their spellings; rules by name."""

from __future__ import annotations

import contextlib
import ipaddress
from pathlib import Path
from typing import Any

import pytest

from wasm_kernel import ExecutionPolicy
from wasm_kernel.errors import Door, PolicyError
from wasm_kernel.network.judge import Judge, NetworkRefused, plain_path
from wasm_kernel.network_rules import NetworkRule, plain_host


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
