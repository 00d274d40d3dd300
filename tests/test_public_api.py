"""The public names, their types and the cost of importing them; the fields and words of errors."""

from __future__ import annotations

import ast
import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import wasm_kernel
from wasm_kernel import errors
from wasm_kernel.errors import (
    BATCH_OPTIONS,
    CALL_SECONDS,
    CellTimeout,
    Door,
    ForkError,
    FrameError,
    GuestClosed,
    GuestCrashed,
    GuestExited,
    GuestStopped,
    HostFailed,
    Interrupted,
    OutOfFuel,
    PolicyError,
    StackExhausted,
    WasmKernelError,
)
from wasm_kernel.policy import POLICY_FIELDS

NAMES = set(wasm_kernel.__all__)
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


def test_all_and_the_type_checker_see_the_public_names() -> None:
    assert wasm_kernel.__all__ == sorted(NAMES)
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


def test_imports_load_nothing_heavy_and_a_sandbox_no_jupyter(steps: list[set[str]]) -> None:
    assert steps[0] >= NAMES
    assert [loaded & HEAVY for loaded in steps[1:4]] == [set()] * 3
    assert not steps[4] & {"zmq", "IPython", "ipykernel", "jupyter_client", "traitlets", "tornado"}


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


STOPS: list[GuestStopped] = [
    OutOfFuel(1_000_000),
    CellTimeout(2.5),
    StackExhausted(),
    GuestClosed(),
    GuestCrashed("unreachable"),
    GuestExited(3),
    Interrupted(2.0),
]
by_class = pytest.mark.parametrize("stop", STOPS, ids=lambda stop: type(stop).__name__)


def test_every_error_has_the_one_root_and_is_public() -> None:
    found = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert len(found) >= 14
    assert all(issubclass(error, WasmKernelError | Warning) for error in found)
    assert {error.__name__ for error in found} <= {*wasm_kernel.__all__}


@by_class
def test_a_stop_says_what_happened_was_kept_and_can_be_set(stop: GuestStopped) -> None:
    stop.kept = "The variables are as they were before the cell."
    for door in Door:
        advice = stop.advice(door)
        assert stop.text(door) == " ".join(filter(None, (stop.happened, stop.kept, advice)))
    assert not stop.setting or stop.setting in POLICY_FIELDS
    assert stop.setting in stop.advice(Door.PROGRAM)
    assert not stop.setting or f"WasmKernel.{stop.setting} " in stop.advice(Door.KERNEL)
    named = BATCH_OPTIONS.get(stop.setting, f"WasmKernel.{stop.setting}")
    assert not stop.setting or f"{named} " in stop.advice(Door.BATCH)
    assert not stop.advice(Door.AGENT)  # an agent can set nothing


def test_errors_name_the_limit_that_was_hit_and_what_would_help() -> None:
    stop = CellTimeout(2.5)
    stop.setting = CALL_SECONDS
    assert {stop.advice(door) for door in Door} == {"Raise timeout_seconds to allow more."}
    assert "1,000,000" in str(OutOfFuel(1_000_000))
    assert "2.5 seconds" in str(CellTimeout(2.5))
    assert "status 3" in str(GuestExited(3))
    assert "unreachable" in str(GuestCrashed("unreachable"))
    assert "2 seconds" in str(Interrupted(2.0))
    assert str(HostFailed("no memory")).endswith("closing other sandboxes, and try again.")
    assert str(HostFailed("too much", "Show less.")).endswith("files are as they are. Show less.")


@pytest.mark.parametrize(
    "error",
    [*STOPS, PolicyError("env", "takes text"), FrameError("it is not JSON"), ForkError("full")],
    ids=repr,
)
def test_an_error_survives_the_way_between_processes(error: WasmKernelError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert vars(back) == vars(error)
    assert str(back) == str(error)


def test_f7_a_cell_that_could_not_begin_is_not_told_to_raise_a_limit() -> None:
    for stopped in (errors.Interrupted(2.0), errors.OutOfFuel(10**9), errors.NeverBegan(5.0)):
        stopped.setting, stopped.kept = "", "Kept."
        assert str(stopped).endswith(" Kept.")


def test_a_problem_is_described_in_words_without_its_path() -> None:
    missing = "No such file or directory"
    for problem, words in (
        (FileNotFoundError(2, missing, "/home/ada/x"), missing),
        (OSError("the disk is gone"), "the disk is gone"),
        (WasmKernelError("It is closed."), "It is closed."),
        (MemoryError(), "no memory is left"),
        (KeyError(), "KeyError"),
    ):
        assert errors.describe(problem) == words
