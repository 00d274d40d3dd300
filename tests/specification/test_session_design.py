"""The design of session management: those of its decisions and promises that no scenario of the
other documents holds.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import wasm_kernel
import wasm_kernel.sessions
from tests.specification.conftest import Creating
from wasm_kernel import (
    BaseSandbox,
    RuntimeType,
    SandboxLogger,
    create_sandbox,
    create_session_sandbox,
    delete_session_path,
    delete_session_workspace,
    get_session_sandbox,
    list_session_files,
    read_session_file,
    write_session_file,
)

STORE = """
import sys
from wasm_kernel import get_session_sandbox
with get_session_sandbox(sys.argv[1]) as sandbox:
    print(sandbox.execute(sys.argv[2]).stdout, end="")
"""


def in_another_process(session_id: str, code: str) -> str:
    command = [sys.executable, "-c", STORE, session_id, code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


# Decision 1


def test_stateless_session_helpers(create: Creating) -> None:
    """A session is its folder: any process that knows the id can continue it."""
    session_id, sandbox = create()
    sandbox.execute("x = [1, 2]; open('file', 'w').write('kept')")
    sandbox.close()
    told = in_another_process(session_id, "x.append(3); print(x, open('file').read())")
    assert told == "[1, 2, 3] kept\n"
    again = get_session_sandbox(session_id)
    with again:
        assert again.execute("print(x)").stdout == "[1, 2, 3]\n"
    assert not [name for name in wasm_kernel.__all__ if "Manager" in name]


# Decision 3


def test_file_operations_as_standalone_functions(create: Creating) -> None:
    session_id, sandbox = create()
    write_session_file(session_id, "in.txt", "from outside")
    assert list_session_files(session_id) == ["in.txt"]  # listing files starts no guest
    assert sandbox.execute("print(open('in.txt').read())").stdout == "from outside\n"
    sandbox.execute("open('out.txt', 'w').write('from inside')")
    sandbox.close()
    assert read_session_file(session_id, "out.txt") == b"from inside"
    delete_session_path(session_id, "out.txt")
    assert not [name for name in dir(BaseSandbox) if name.endswith(("_file", "_files"))]


# API surface


FUNCTIONS: dict[str, tuple[Callable[..., Any], list[str], Any]] = {
    "create_session_sandbox": (
        create_session_sandbox,
        ["runtime", "policy", "workspace_root", "logger"],
        tuple[str, BaseSandbox],
    ),
    "get_session_sandbox": (
        get_session_sandbox,
        ["session_id", "runtime", "policy", "workspace_root", "logger"],
        BaseSandbox,
    ),
    "delete_session_workspace": (
        delete_session_workspace,
        ["session_id", "workspace_root"],
        type(None),
    ),
    "list_session_files": (
        list_session_files,
        ["session_id", "workspace_root", "pattern"],
        list[str],
    ),
    "read_session_file": (
        read_session_file,
        ["session_id", "relative_path", "workspace_root"],
        bytes,
    ),
    "write_session_file": (
        write_session_file,
        ["session_id", "relative_path", "data", "workspace_root", "overwrite"],
        type(None),
    ),
    "delete_session_path": (
        delete_session_path,
        ["session_id", "relative_path", "workspace_root", "recursive"],
        type(None),
    ),
}


def test_exports_of_the_public_api() -> None:
    assert set(FUNCTIONS) <= set(wasm_kernel.__all__)
    for name, (function, _, _) in FUNCTIONS.items():
        assert getattr(wasm_kernel, name) is function
        assert getattr(wasm_kernel.sessions, name) is function
    assert set(FUNCTIONS) <= set(wasm_kernel.sessions.__all__)
    assert set(wasm_kernel.sessions.__all__) <= set(wasm_kernel.__all__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_of_the_api(name: str) -> None:
    function, parameters, returns = FUNCTIONS[name]
    assert list(inspect.signature(function).parameters)[: len(parameters)] == parameters
    hints = get_type_hints(function)
    assert get_origin(hints["return"]) == get_origin(returns)
    assert get_args(hints["return"]) == get_args(returns) or hints["return"] == returns
    if "logger" in parameters:
        assert set(get_args(hints["logger"])) == {SandboxLogger, type(None)}


# Backwards compatibility


def test_both_patterns_work_simultaneously(create: Creating, root: Path) -> None:
    with create_sandbox(runtime=RuntimeType.PYTHON) as plain:
        session_id, sandbox = create(runtime=RuntimeType.PYTHON)
        plain.execute("x = 'plain'; open('/app/plain.txt', 'w').write(x)")
        sandbox.execute("x = 'session'; open('/app/session.txt', 'w').write(x)")
        assert plain.execute("print(x)").stdout == "plain\n"
        assert sandbox.execute("print(x)").stdout == "session\n"
    assert (root / "plain.txt").exists()
    assert (root / session_id / "session.txt").exists()
