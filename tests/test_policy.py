"""`ExecutionPolicy`: sound by default, checked when made, frozen after."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from wasm_kernel.errors import PolicyError
from wasm_kernel.policy import (
    MEMORY_MIN,
    MIB,
    POLICY_FIELDS,
    ExecutionPolicy,
    Mount,
    field_meanings,
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


def test_the_bounds_themselves_are_allowed() -> None:
    for field, values in BOUNDS.items():
        assert [getattr(made(field, value), field) for value in values] == values


@pytest.mark.parametrize("field", ["cell_timeout", "fuel_budget"])
@pytest.mark.parametrize("nothing", [0, 0.0, None])
def test_none_and_0_mean_no_limit(field: str, nothing: float | None) -> None:
    """Zero and None have this meaning in traits and TOML, too."""
    assert getattr(made(field, nothing), field) is None
    assert made(field, nothing) == made(field, None)


def test_a_policy_is_frozen() -> None:
    for field in POLICY_FIELDS:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(ExecutionPolicy(), field, None)


def test_every_field_is_documented() -> None:
    assert set(field_meanings()) >= set(POLICY_FIELDS)
    assert all(meaning.endswith(".") for meaning in field_meanings().values())


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
