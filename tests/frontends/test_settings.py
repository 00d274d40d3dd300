"""The kernel's traits: one for each limit, checked where they are set; the notebook of a kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from traitlets.config import Config

from wasm_kernel.errors import Door, PolicyError
from wasm_kernel.kernels.settings import LAUNCHER, SESSION_NAME, KernelSettings, notebook_of
from wasm_kernel.policy import POLICY_FIELDS, ExecutionPolicy
from wasm_kernel.sessions.ids import SessionIdError


def settings(**traits: Any) -> Any:
    return KernelSettings(config=Config({"WasmKernel": traits}))


def test_every_limit_is_a_trait_described_as_in_the_policy_and_listed_by_help() -> None:
    traits = KernelSettings.class_traits(config=True)
    assert set(POLICY_FIELDS) <= set(traits)
    assert all(traits[name].help for name in POLICY_FIELDS)
    assert settings().policy() == ExecutionPolicy(door=Door.KERNEL)
    assert settings(cell_timeout=0).policy().cell_timeout is None
    command = [sys.executable, "-m", "wasm_kernel", "--help-all"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert all(f"--WasmKernel.{name}=" in told for name in POLICY_FIELDS)


@pytest.mark.parametrize(
    ("name", "value"), [("fuel_budget", -1), ("mounts", ["nonsense"])], ids=str
)
def test_a_broken_rule_names_the_trait(name: str, value: Any) -> None:
    with pytest.raises(PolicyError, match=rf"WasmKernel\.{name}"):
        settings(**{name: value}).policy()


def test_the_environment_names_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WASM_KERNEL_WORKSPACE_ROOT", str(tmp_path))
    assert settings().root.named == tmp_path
    assert settings(workspace_root="~/x").root.named == Path("~/x").expanduser()


def test_limits_come_from_a_file_unless_a_trait_says_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    (tmp_path / "data").mkdir()
    file.write_text("cell_timeout = 9\nopen_files = 32\nmounts = ['data:/data']\n")
    default = ExecutionPolicy().open_files
    found = settings(policy_file=str(file), open_files=default, stdout_bytes=5).policy()
    assert found.cell_timeout == 9
    assert found.open_files == default  # a trait sets it, although only to the default
    assert found.stdout_bytes == 5
    assert found.mounts[0].host == tmp_path / "data"
    file.write_text("open_files = 1")
    with pytest.raises(PolicyError, match=r"^limits\.toml, line 1: open_files must be"):
        settings(policy_file=str(file)).policy()


def test_a_policy_file_in_the_notebooks_own_folder_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "limits.toml").write_text("cell_timeout = 0")
    with pytest.raises(PolicyError, match="absolute"):
        settings(policy_file="limits.toml").policy()


def test_published_files_lie_below_the_kernels_folder_and_obeyed_suffixes_are_named() -> None:
    assert settings(publish_folder="a/b c/").published_into() == ("a", "b c")
    for name in ("/tmp", "..", "a/../b", "~/x", ".git", "a//b", "."):
        with pytest.raises(PolicyError, match=r"WasmKernel\.publish_folder"):
            settings(publish_folder=name).published_into()
    with pytest.raises(PolicyError, match=r"WasmKernel\.publish_suffixes can't hold \.py"):
        settings(publish_suffixes=[".csv", ".py"]).check()


def test_published_files_lie_beside_the_notebook_that_the_server_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    for name in ("orders.ipynb", "a/b.ipynb", ".hidden.ipynb", "-x.ipynb"):
        (tmp_path / name).write_text("{}")
    monkeypatch.chdir(tmp_path)

    def into(name: object) -> tuple[str, ...]:
        monkeypatch.setenv("JPY_SESSION_NAME", str(name))
        return tuple(settings().published_into())

    assert into(tmp_path / "orders.ipynb") == ("orders.files",)
    for name in ("a/b.ipynb", ".hidden.ipynb", "-x.ipynb", "gone.ipynb", "a"):
        assert into(tmp_path / name) == ()
    assert into("orders.ipynb") == into("Console 1") == into("") == ()


def test_a_kernel_that_does_not_reopen_has_not_its_notebooks_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "orders.ipynb").write_text("{}")
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "orders.ipynb"))
    for reopen in (True, False):
        kernel = settings(reopen=reopen, workspace_root=str(tmp_path / "sessions"))
        with closing(kernel.choose_session(tmp_path / "kernel-x.json")) as choice:
            assert choice.is_of_notebook is reopen


def test_a_session_id_that_is_none_is_refused_also_if_there_are_sessions(tmp_path: Path) -> None:
    for name in ("../x", "a/b", "..", "a b"):
        with pytest.raises(SessionIdError):
            settings(session_id=name, workspace_root=str(tmp_path)).choose_session(tmp_path / "k")


def test_variables_of_the_host_are_passed_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGE", "test")
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.setenv("OTHER", "1")
    named = settings(pass_env=["STAGE", "EMPTY", "NOT_SET"], env={"EMPTY": "set here"})
    assert named.policy().env == {"STAGE": "test", "EMPTY": "set here"}
    for name in ("JPY_API_TOKEN", "JUPYTERHUB_API_TOKEN", "JUPYTER_TOKEN"):
        with pytest.raises(PolicyError, match=rf"WasmKernel\.pass_env can't hold {name}"):
            settings(pass_env=["STAGE", name]).policy()


HANDING_ON = """
import os
from wasm_kernel.kernels.settings import LAUNCHER, notebook_of
print(notebook_of(os.environ | {LAUNCHER: str(os.getpid())}))
"""


def test_the_notebook_is_the_one_that_the_server_names(tmp_path: Path) -> None:
    path = tmp_path / "\udcff.ipynb"
    assert notebook_of({SESSION_NAME: str(path)}) == path
    assert notebook_of({SESSION_NAME: str(path), LAUNCHER: str(os.getpid())}) == path


@pytest.mark.parametrize("name", ["", "a.ipynb", "console-1-1b4e28ba"])
def test_a_name_that_is_not_a_path_names_no_notebook(name: str) -> None:
    assert notebook_of({SESSION_NAME: name}) is None
    assert notebook_of({}) is None


def test_a_batch_run_that_a_notebook_starts_does_not_run_that_notebook(tmp_path: Path) -> None:
    env = os.environ | {SESSION_NAME: str(tmp_path / "outer.ipynb")}
    done = subprocess.run(
        [sys.executable, "-c", HANDING_ON], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "None\n"
