"""The user's own file of rules: `@NAME` stands for a list in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from wasm_kernel import ExecutionPolicy
from wasm_kernel.errors import PolicyError

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
