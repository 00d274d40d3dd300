"""The public names: which they are, their types at run time, and the cost of importing them."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import wasm_kernel

NAMES = {
    *("create_sandbox", "BaseSandbox", "Checkpoint", "Listener", "NoListener", "Stream"),
    *("create_session_sandbox", "get_session_sandbox", "delete_session_workspace"),
    *("prune_sessions", "PruneResult", "PruneError", "NoWorkspaceRoot"),
    *("export_session", "import_session", "Exported", "Imported", "ArchiveError", "SessionExists"),
    *("list_session_files", "read_session_file", "write_session_file", "delete_session_path"),
    *("SessionIdError", "SessionInUse", "SessionPathError", "WorkspaceError"),
    "CellFuture",
    *("ExecutionPolicy", "Mount", "RuntimeType", "SandboxResult", "CellError", "SandboxLogger"),
    *("WasmKernelError", "PolicyError", "SandboxClosed", "BundleError", "CompileError"),
    *("ImageError", "HistoryError", "TravelError", "Travelled", "ForkError", "PackageError"),
    *("FrameError", "CacheWarning", "GuestStopped", "OutOfDescriptors", "OutOfFuel"),
    *("OutOfMemory", "CellTimeout", "StackExhausted", "GuestClosed", "GuestCrashed"),
    *("GuestExited", "Interrupted", "AsyncService", "AsyncSession", "Service", "ServiceLimits"),
    *("SessionInfo", "Sandbox", "HostFunction", "LimitReached", "WorkerLost"),
    *("run_notebooks", "Outcome", "Budgets", "BatchError", "BatchStopped"),
    *("grade_notebooks", "Grade", "TestGrade"),
    *("NeverBegan", "HostFailed", "OverlapError", "PlantedLinkError", "PrivateFolderError"),
}
HEAVY = {"wasmtime", "zmq", "IPython", "ipykernel", "jupyter_client", "traitlets"}
HEAVY |= {"structlog", "asyncio", "tornado"}

SHOW = "; print(*{name.partition('.')[0] for name in sys.modules})"
STEPS = ["import sys, wasm_kernel; print(*dir(wasm_kernel))", "pass"]
FLOOR_0 = "ExecutionPolicy, SandboxResult, SandboxLogger, OutOfFuel, RuntimeType"
FURTHER = (FLOOR_0, "read_session_file", "create_sandbox")
STEPS += [f"from wasm_kernel import {names}" for names in FURTHER]


@pytest.fixture(scope="module")
def steps() -> list[set[str]]:
    """The names of the package, then the top-level modules that each further import adds up to."""
    code = "\n".join([STEPS[0], *(step + SHOW for step in STEPS[1:])])
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_all_lists_the_public_names() -> None:
    assert set(wasm_kernel.__all__) == NAMES
    assert wasm_kernel.__all__ == sorted(wasm_kernel.__all__)


def test_dir_shows_the_names_before_they_are_loaded(steps: list[set[str]]) -> None:
    assert steps[0] >= NAMES


def test_the_package_its_values_and_file_operations_load_nothing_heavy(
    steps: list[set[str]],
) -> None:
    assert [loaded & HEAVY for loaded in steps[1:4]] == [set()] * 3


def test_a_sandbox_needs_no_jupyter(steps: list[set[str]]) -> None:
    assert not steps[4] & {"zmq", "IPython", "ipykernel", "jupyter_client", "traitlets", "tornado"}


def test_the_type_checker_sees_the_same_names() -> None:
    tree = ast.parse(Path(inspect.getfile(wasm_kernel)).read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    homes = {
        alias.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(homes) == NAMES
    assert {name: getattr(wasm_kernel, name).__module__ for name in NAMES} == homes


def test_every_name_is_fully_annotated_for_tools_that_read_the_types() -> None:
    for name in NAMES:
        value = getattr(wasm_kernel, name)
        functions = [value] if inspect.isfunction(value) else [m for _, m in public_methods(value)]
        for function in functions:
            parameters = set(inspect.signature(function).parameters) - {"self", "cls"}
            hints = set(get_type_hints(function))
            assert hints == {*parameters, "return"}, f"{name}: {function.__qualname__}"


def public_methods(owner: type | Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods and properties that a class defines itself."""
    for name, value in vars(owner).items() if inspect.isclass(owner) else ():
        function = getattr(value, "__func__", getattr(value, "fget", value))
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function
