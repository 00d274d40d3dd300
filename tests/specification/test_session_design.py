"""The decisions and promises of session management that no scenario of other documents holds."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import wasm_kernel
import wasm_kernel.sessions
from tests.sessions.other_process import Other
from tests.specification.conftest import Creating
from wasm_kernel import (
    BaseSandbox,
    RuntimeType,
    SandboxLogger,
    create_sandbox,
    delete_session_path,
    get_session_sandbox,
    list_session_files,
    read_session_file,
    write_session_file,
)

# Decision 1


def test_stateless_session_helpers(create: Creating) -> None:
    """A session is its folder: any process that knows the id can continue it."""
    session_id, sandbox = create()
    sandbox.execute("x = [1, 2]; open('file', 'w').write('kept')")
    sandbox.close()
    other = Other(Path("workspace").absolute(), session_id)
    told = other.run("x.append(3); print(x, open('file').read())")
    other.end()
    assert told["stdout"] == "[1, 2, 3] kept\n"
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


Created = tuple[str, BaseSandbox]
SIGNATURES: dict[str, tuple[str, object]] = {
    "create_session_sandbox": ("runtime policy workspace_root logger", Created),
    "get_session_sandbox": ("session_id runtime policy workspace_root logger", BaseSandbox),
    "delete_session_workspace": ("session_id workspace_root", type(None)),
    "list_session_files": ("session_id workspace_root pattern", list[str]),
    "read_session_file": ("session_id relative_path workspace_root", bytes),
    "write_session_file": ("session_id relative_path data workspace_root overwrite", type(None)),
    "delete_session_path": ("session_id relative_path workspace_root recursive", type(None)),
}


def test_exports_of_the_public_api() -> None:
    assert set(SIGNATURES) <= set(wasm_kernel.sessions.__all__) <= set(wasm_kernel.__all__)
    for name in SIGNATURES:
        assert getattr(wasm_kernel, name) is getattr(wasm_kernel.sessions, name)


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_of_the_api(name: str) -> None:
    function, (parameters, returns) = getattr(wasm_kernel, name), SIGNATURES[name]
    assert " ".join(inspect.signature(function).parameters).startswith(parameters)
    hints = get_type_hints(function)
    assert hints["return"] == returns
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
