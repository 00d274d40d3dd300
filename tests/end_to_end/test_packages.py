"""`%pip` in a kernel with its usual walls; the broker outside them runs pip."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.end_to_end.real_kernel import RealKernel
from tests.guests.python.packages.conftest import make_wheel


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


def test_a_package_is_there_at_once_and_in_a_kernel_that_may_not_install(
    tmp_path: Path, env: dict[str, str]
) -> None:
    with RealKernel(session_id="packages", cwd=tmp_path, variables=env) as notebook:
        shown = notebook.run("%pip install one\nimport one\none.version")
        assert shown.data("text/plain") == ["'1.0'"], shown.stderr
        assert "Successfully installed one-1.0" in shown.stdout
        assert str(tmp_path) not in shown.stdout
    with RealKernel(session_id="packages", pip="False", cwd=tmp_path, variables=env) as notebook:
        assert notebook.run("import one\none.version").data("text/plain") == ["'1.0'"]
        shown = notebook.run("%pip install one")
        assert "switched off in this kernel" in shown.stderr
        assert shown.reply["status"] == "error"
