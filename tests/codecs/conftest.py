"""One sandbox for each file of tests."""

from __future__ import annotations

import shutil

import pytest

from wasm_kernel import BaseSandbox


@pytest.fixture(scope="module")
def sandbox(module_sandbox: BaseSandbox, request: pytest.FixtureRequest) -> BaseSandbox:
    """The file's sandbox after its `SETUP`, with copies of its `FILES` in the workspace."""
    begun = module_sandbox.execute(request.module.SETUP)
    folder = getattr(request.module, "FILES", None)
    for path in folder.iterdir() if folder is not None else ():
        shutil.copy(path, begun.workspace_path)
    return module_sandbox
