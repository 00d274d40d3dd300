"""A policy from a TOML file: the same checks as anywhere, and errors that name file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from wasm_kernel.errors import PolicyError
from wasm_kernel.frontends.cli.main import main
from wasm_kernel.policy import MIB, POLICY_FIELDS, ExecutionPolicy, Mount, size_of

WHOLE = """
fuel_budget = 500_000_000
memory_bytes = 1_073_741_824
deterministic = true
cell_timeout = 90
grace_seconds = 1.5
query_seconds = 0.5
stdout_bytes = 1000
stderr_bytes = 1001
display_bytes = 1002
display_count = 7
open_files = 20
workspace_bytes = 1003
workspace_files = 8
history_cells = 5
history_bytes = 67_108_864
network = ["https://example.org"]
network_mode = "record"
mounts = ["data:/data", { host = "data", guest = "/more", writable = true }]

[env]
LANG = "C"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "limits.toml"


def refused(file: Path, text: str) -> PolicyError:
    file.write_text(text, encoding="latin-1")
    with pytest.raises(PolicyError) as caught:
        ExecutionPolicy.from_toml(file)
    assert str(file.parent) not in str(caught.value)
    return caught.value


def test_every_field_can_be_written(file: Path) -> None:
    default = ExecutionPolicy()
    others = [name for name in POLICY_FIELDS if f"\n{name} = " not in WHOLE and name != "env"]
    more = "".join(f"{name} = {getattr(default, name) + 1}\n" for name in others)
    file.write_text(more + WHOLE)
    policy = ExecutionPolicy.from_toml(str(file))
    same = [n for n in POLICY_FIELDS if getattr(policy, n) == getattr(default, n)]
    assert same == []
    assert policy.fuel_budget == 500_000_000
    assert policy.cell_timeout == 90
    assert dict(policy.env) == {"LANG": "C"}
    data = file.parent / "data"
    assert policy.mounts == (Mount(data, "/data"), Mount(data, "/more", True))


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("memory_bytes = 1", "memory_bytes", "limits.toml, line 1: memory_bytes must be from"),
        ("cell_timeout = nan", "cell_timeout", "finite"),
        ("open_files = 1979-05-27", "open_files", "whole number"),
        ("env = 3", "env", "names with their values"),
        ("env = { A = 1 }", "env", "text"),
        ("mounts = '/a:/b'", "mounts", "takes a list"),
        ("mounts = [3]", "mounts", "HOST:GUEST"),
        ("mounts = ['nowhere:/data']", "mounts", "not there"),
        ("mounts = [{ host = 'data', gest = '/data' }]", "mounts", "a table of host and guest"),
        ("mounts = [{ host = 'data', guest = '/d', writeable = true }]", "mounts", "writable?"),
        (
            "fuel_buget = 3",
            "fuel_buget",
            "limits.toml, line 1: fuel_buget is not a limit; did you mean fuel_",
        ),
        ("colour = 3", "colour", "there are fuel_budget, memory_bytes"),
        ("[policy]\nfuel_budget = 3", "policy", "is not a limit"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key(
    file: Path, text: str, field: str, words: str
) -> None:
    problem = refused(file, text)
    assert problem.field == field
    assert problem.where == "limits.toml, line 1"
    assert words in str(problem)


@pytest.mark.parametrize("text", ["fuel_budget", "a = 1\na = 2", "# \xff", "a = " + "[" * 5000])
def test_a_file_that_is_not_toml_is_refused_by_name(file: Path, text: str) -> None:
    why = "is not text in UTF-8" if "\xff" in text else "is not a TOML file"
    assert str(refused(file, text)).startswith(f"limits.toml {why}")


def test_a_file_that_is_not_there_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"^gone\.toml can't be read \(No such file"):
        ExecutionPolicy.from_toml(tmp_path / "gone.toml")


def test_sizes_are_read_as_people_write_them() -> None:
    told = ("512M", "1.5 GiB", "10", "2kb", "10 B")
    sizes = [size_of(each) for each in told]
    assert sizes == [512 * MIB, 3 * 512 * MIB, 10, 2048, 10]
    assert [size_of(each, plain=MIB) for each in told] == [*sizes[:2], 10 * MIB, *sizes[3:]]
    with pytest.raises(ValueError, match="not a size"):
        size_of("much")


@pytest.mark.parametrize("option", ["--memory", "--disk"])
def test_a_server_for_agents_takes_sizes_in_the_same_forms(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["mcp", option, "much"])
    assert "'much' is not a size such as 512M" in capsys.readouterr().err
    for good in ("2G", "2048"):
        assert main(["mcp", option, good, "--token-file", "x"]) == 1
        assert "--token-file is for --http alone" in capsys.readouterr().err
