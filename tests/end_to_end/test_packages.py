"""%pip in a kernel as people start it: walls around its process, the porter outside of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.end_to_end.driving import opened
from tests.guests.python.packages.conftest import make_wheel


@pytest.fixture(scope="module", autouse=True)
def _installed(warm: None, installed_kernelspec: Path) -> None:
    """The kernel is found by its name."""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose pip reads one small index."""
    folder = tmp_path / "index" / "one"
    folder.mkdir(parents=True)
    name = make_wheel(folder, "one").name
    (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {(tmp_path / 'index').as_uri()}\n")
    told = {name: "" for name in os.environ if name.startswith("PIP_")}
    return told | {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PIP_NO_CACHE_DIR": "1"}


@pytest.mark.parametrize("walls", ["auto", "off"])
def test_a_package_is_there_at_once_and_after_a_restart(
    tmp_path: Path, env: dict[str, str], walls: str
) -> None:
    named = ("--WasmKernel.session_id=packages-" + walls, f"--WasmKernel.confinement={walls}")
    with opened(*named, cwd=tmp_path, **env) as notebook:
        shown = notebook.run("%pip install one\nimport one\none.version")
        assert shown.data("text/plain") == ["'1.0'"], shown.stream("stderr")
        assert "Successfully installed one-1.0" in shown.stream()
        assert str(tmp_path) not in shown.stream()
    with opened(*named, cwd=tmp_path, **env) as notebook:
        assert notebook.run("import one\none.version").data("text/plain") == ["'1.0'"]


def test_whoever_runs_the_kernel_can_switch_it_off(tmp_path: Path, env: dict[str, str]) -> None:
    with opened("--WasmKernel.pip=False", cwd=tmp_path, **env) as notebook:
        shown = notebook.run("%pip install one")
        assert "switched off in this kernel" in shown.stream("stderr")
        assert shown.reply["status"] == "error"
