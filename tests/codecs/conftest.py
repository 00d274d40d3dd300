"""One sandbox for each file of tests."""

from __future__ import annotations

import shutil

import pytest

from wasm_kernel import BaseSandbox


@pytest.fixture(scope="module")
def sandbox(module_sandbox: BaseSandbox, request: pytest.FixtureRequest) -> BaseSandbox:
    """The file's sandbox after its `SETUP`, with copies of the files of its `FOLDERS`."""
    begun = module_sandbox.execute(request.module.SETUP)
    for folder in getattr(request.module, "FOLDERS", ()):
        for path in folder.iterdir():
            shutil.copy(path, begun.workspace_path)
    return module_sandbox
