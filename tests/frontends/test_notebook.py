"""Which session belongs to a notebook."""

from __future__ import annotations

from pathlib import Path

import pytest

from wasm_kernel.frontends.jupyter.settings import SESSION_NAME, session_of_notebook
from wasm_kernel.sessions import ids


def session(name: str | Path) -> str | None:
    return session_of_notebook({SESSION_NAME: str(name)})


def test_a_notebook_has_the_same_session_each_time(tmp_path: Path) -> None:
    found = session(tmp_path / "a.ipynb")
    assert found is not None
    assert ids.checked(found) == session(tmp_path / "a.ipynb")


@pytest.mark.parametrize("other", ["b.ipynb", "sub/a.ipynb", "A.ipynb", "a.py"])
def test_another_path_is_another_session(tmp_path: Path, other: str) -> None:
    assert session(tmp_path / other) not in (None, session(tmp_path / "a.ipynb"))


@pytest.mark.parametrize("way", ["./a.ipynb", "sub/../a.ipynb", "linked/a.ipynb"])
def test_every_way_to_a_notebook_leads_to_its_session(tmp_path: Path, way: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path)
    assert session(f"{tmp_path}/{way}") == session(tmp_path / "a.ipynb")


def test_a_notebook_without_a_suffix_is_one_where_it_is_a_file(tmp_path: Path) -> None:
    assert session(tmp_path / "notes") is None
    (tmp_path / "notes").touch()
    assert session(tmp_path / "notes") is not None


@pytest.mark.parametrize("name", ["", "a.ipynb", "console-1-1b4e28ba", "/srv/console-1-1b4e28ba"])
def test_what_is_no_notebook_s_path_has_none(name: str) -> None:
    assert session(name) is None


def test_without_a_server_there_is_none() -> None:
    assert session_of_notebook({}) is None


def test_a_name_that_is_no_text_is_carried(tmp_path: Path) -> None:
    assert session(f"{tmp_path}/\udcff.ipynb") is not None
