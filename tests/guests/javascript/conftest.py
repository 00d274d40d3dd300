"""A sandbox of JavaScript cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.faces import error_of, put_back
from tests.private import kept_sandbox, opening
from wasm_kernel import BaseSandbox, SandboxResult
from wasm_kernel.policy import ExecutionPolicy, RuntimeType

Opening = Callable[..., BaseSandbox]


@pytest.fixture(scope="module")
def module_javascript(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseSandbox]:
    folder = tmp_path_factory.mktemp("javascript")
    policy = ExecutionPolicy(grace_seconds=0.5)
    with kept_sandbox(RuntimeType.JAVASCRIPT, folder, policy) as sandbox:
        yield sandbox


@pytest.fixture
def javascript(module_javascript: BaseSandbox) -> BaseSandbox:
    """The file's only sandbox, with its first variables and files."""
    return put_back(module_javascript)


@pytest.fixture
def opened(tmp_path: Path, ending: ExitStack) -> Opening:
    """Opens sandboxes of JavaScript; they are closed after the test."""
    return opening(ending, tmp_path, "javascript")


def shown(result: SandboxResult) -> str:
    """The text of a cell's value."""
    assert result.success, result.error
    results = [output.data["text/plain"] for output in result.outputs if output.kind == "result"]
    return str(results[0]) if results else ""


def value(sandbox: BaseSandbox, code: str) -> str:
    return shown(sandbox.execute(code))


def problem(sandbox: BaseSandbox, code: str) -> str:
    """The name and the text of the error with which the cell ends."""
    return error_of(sandbox.execute(code))
