"""A sandbox outside of sessions hides the sessions in its workspace (case 39)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faces import A_UUID
from wasm_kernel.folders.hiding import SessionFoldersHidden
from wasm_kernel.linux.folders import Folder

with Folder.open(Path("/")) as _top:
    HIDDEN = SessionFoldersHidden(_top)


@pytest.mark.parametrize(
    ("depth", "name", "hidden"),
    [
        (0, ".metadata.json", True),
        (3, ".Metadata.JSON", True),
        (1, ".metadata.json~write-1", True),
        (0, A_UUID, True),
        (0, A_UUID.upper(), True),
        (0, f"{A_UUID}. ", True),
        (1, A_UUID, False),
        (0, "12345678-1234", False),
        (0, ".wasm_kernel-removed-x-01234567", True),
        (4, ".wasm_kernel-removed-x-01234567", True),
        (0, ".wasm_kernel", False),
        (0, "data.csv", False),
    ],
)
def test_names_that_sessions_have_are_hidden(depth: int, name: str, hidden: bool) -> None:
    assert HIDDEN.hides_name(depth, name) is hidden
