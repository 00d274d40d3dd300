"""Every function that takes a root of sessions also takes the folder for private state."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

import wasm_kernel
from wasm_kernel import (
    delete_session_path,
    get_session_sandbox,
    list_session_files,
    read_session_file,
    write_session_file,
)
from wasm_kernel.folders.hiding import OverlapError

FILES: dict[str, Callable[..., object]] = {
    "list": list_session_files,
    "read": lambda name, **how: read_session_file(name, "f", **how),
    "write": lambda name, **how: write_session_file(name, "f", b"x", **how),
    "delete": lambda name, **how: delete_session_path(name, "f", **how),
}


def test_every_function_that_takes_a_root_takes_it() -> None:
    lacking = []
    for name in wasm_kernel.__all__:
        public = getattr(wasm_kernel, name)
        if inspect.isfunction(public):
            names = inspect.signature(public).parameters
            if {"workspace_root", "workspace"} & names.keys() and "private_root" not in names:
                lacking.append(name)
    assert "private_root" in inspect.signature(wasm_kernel.create_sandbox).parameters
    assert lacking == []


@pytest.mark.parametrize("act", FILES)
def test_file_functions_take_a_named_place(tmp_path: Path, act: str) -> None:
    own, root = tmp_path / "private", tmp_path / "root"
    get_session_sandbox("one", workspace_root=root, private_root=own).close()
    write_session_file("one", "f", b"y", root, private_root=own)
    FILES[act]("one", workspace_root=root, private_root=own)
    for inside in (root, root / "one", root / "one" / "below", tmp_path):
        with pytest.raises(OverlapError, match="workspace_root"):
            FILES[act]("one", workspace_root=root, private_root=inside)
    assert not (root / "one" / "below").exists()
