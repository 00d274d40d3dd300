"""`ExecutionPolicy`: sound by default, checked when made, frozen after."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from wasm_kernel.errors import PolicyError
from wasm_kernel.frontends.cli.main import main
from wasm_kernel.policy import (
    MEMORY_MIN,
    MIB,
    POLICY_FIELDS,
    ExecutionPolicy,
    Mount,
    field_meanings,
    size_of,
)

WRONG: dict[str, list[Any]] = {
    "fuel_budget": [-1, False, 2**63, 1.5, True, "9"],
    "memory_bytes": [0, -1, MEMORY_MIN - 1, 4096 * MIB + 1, 1e9, None, False],
    "cell_timeout": [-1, False, float("inf"), float("nan"), "9", True],
    "grace_seconds": [0, -0.1, float("nan"), float("inf"), None, "2"],
    "query_seconds": [0, -0.1, float("nan"), None],
    "stdout_bytes": [-1, 1.0, None, True],
    "stderr_bytes": [-1, 1.0, None, True],
    "display_bytes": [-1, 1.0, None],
    "display_count": [-1, 1.0, None],
    "open_files": [0, 15, 65_537, None],
    "workspace_bytes": [-1, 1.0, None, True],
    "workspace_files": [-1, 1.0, None, True],
    "network_mode": ["both", None],
}


def made(field: str, value: Any) -> ExecutionPolicy:
    return ExecutionPolicy(**{field: value})


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_value_is_refused_with_its_field(field: str) -> None:
    for value in WRONG[field]:
        with pytest.raises(PolicyError) as caught:
            pytest.fail(f"{value!r} is taken: {made(field, value)}")
        assert caught.value.field == field
    assert str(caught.value).startswith(field)
    assert isinstance(caught.value, ValueError)


BOUNDS: dict[str, list[Any]] = {
    "fuel_budget": [1, 2**62],
    "memory_bytes": [MEMORY_MIN, 4096 * MIB],
    "cell_timeout": [None, 1],
    "display_count": [0],
    "open_files": [16, 65_536],
    "workspace_bytes": [0, 2**50],
}


def test_a_policy_is_frozen_documented_and_may_have_the_bounds_themselves() -> None:
    for field, values in BOUNDS.items():
        assert [getattr(made(field, value), field) for value in values] == values
    for field in POLICY_FIELDS:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(ExecutionPolicy(), field, None)
    assert set(field_meanings()) >= set(POLICY_FIELDS)
    assert all(meaning.endswith(".") for meaning in field_meanings().values())


@pytest.mark.parametrize("field", ["cell_timeout", "fuel_budget"])
@pytest.mark.parametrize("nothing", [0, 0.0, None])
def test_none_and_0_mean_no_limit(field: str, nothing: float | None) -> None:
    """Zero and None have this meaning in traits and TOML, too."""
    assert getattr(made(field, nothing), field) is None
    assert made(field, nothing) == made(field, None)


def test_the_environment_is_a_copy_that_can_not_be_changed() -> None:
    given = {"LANG": "C"}
    policy = ExecutionPolicy(env=given)
    given["LANG"] = "de"
    assert policy.env["LANG"] == "C"
    with pytest.raises(TypeError):
        policy.env["LANG"] = "fr"  # type: ignore[index]


@pytest.mark.parametrize("env", [{"": "x"}, {"a=b": "x"}, {"a\0": "x"}, {"a": "x\0"}, {"a": 1}])
def test_a_broken_environment_is_refused(env: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        ExecutionPolicy(env=env)
    assert caught.value.field == "env"


@pytest.mark.parametrize(
    ("text", "host", "guest", "writable"),
    [
        ("/srv/data:/data", "/srv/data", "/data", False),
        ("/srv/data:/data:ro", "/srv/data", "/data", False),
        ("/srv/data:/data:rw", "/srv/data", "/data", True),
        ("/srv/a:b:/data", "/srv/a:b", "/data", False),
        ("C:/data:/data:rw", "C:/data", "/data", True),
    ],
)
def test_a_mount_is_read_from_text(text: str, host: str, guest: str, writable: bool) -> None:
    assert Mount.parse(text) == Mount(Path(host), guest, writable)


@pytest.mark.parametrize("text", ["", ":", "/srv", "/srv:", ":/data", "/srv::rw"])
def test_a_text_that_is_not_a_mount_is_refused(text: str) -> None:
    with pytest.raises(PolicyError, match="HOST:GUEST"):
        Mount.parse(text)


def test_a_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert Mount.parse("~/data:/data").host == tmp_path / "data"


HERE = Path(__file__).parent
NOT_PLAIN = ("data", "", "/", "/data/", "//data", "/data/../app", "/./data", Path("/data"))
NOT_FREE = ("/app", "/app/x", "/usr/lib", "/tmp", "/tmp/x", "/dev")
NOT_THERE = ("nothing", "n" * 256, "n/" * 3000, "nul\0", "\ud800")
WRONG_MOUNTS: list[tuple[str, Any]] = [
    *(("guest", Mount(HERE, guest)) for guest in (*NOT_PLAIN, *NOT_FREE)),  # type: ignore[arg-type]
    # formerly, a long name raised an `OSError`
    *(("for /data that is not there", Mount(HERE / name, "/data")) for name in NOT_THERE),
    # formerly, an empty text was the current folder, and other values raised a `TypeError`
    *(("needs a host path for /data, not", Mount(host, "/data")) for host in (None, 0, b"/", "")),  # type: ignore[arg-type]
    ("has a wrong writable for /data: 'ro'", Mount(HERE, "/data", "ro")),  # type: ignore[arg-type]
    ("not there", "~no-such-user/x:/data"),  # formerly a `RuntimeError`
    ("HOST:GUEST", 5),
]


@pytest.mark.parametrize(("why", "mount"), WRONG_MOUNTS)
def test_a_wrong_mount_is_refused_without_naming_the_host_path(why: str, mount: Any) -> None:
    with pytest.raises(PolicyError, match=why) as caught:
        ExecutionPolicy(mounts=[mount])
    assert caught.value.field == "mounts"
    assert str(HERE) not in str(caught.value)


def test_one_guest_path_is_mounted_once() -> None:
    with pytest.raises(PolicyError, match="twice"):
        ExecutionPolicy(mounts=(Mount(HERE, "/data"), Mount(HERE, "/data", True)))


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
def test_wrong_value_is_refused_with_its_key(file: Path, text: str, field: str, words: str) -> None:
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
