"""The errors: one root, fields for front ends, sentences for people."""

from __future__ import annotations

import pickle

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
def test_a_stop_says_what_happened_then_what_was_kept_then_what_to_do(stop: GuestStopped) -> None:
    stop.kept = "The variables are as they were before the cell."
    for door in Door:
        advice = stop.advice(door)
        assert stop.text(door) == " ".join(filter(None, (stop.happened, stop.kept, advice)))


@by_class
def test_the_setting_that_a_stop_names_exists(stop: GuestStopped) -> None:
    assert not stop.setting or stop.setting in POLICY_FIELDS
    assert stop.setting in stop.advice(Door.PROGRAM)
    assert not stop.setting or f"WasmKernel.{stop.setting} " in stop.advice(Door.KERNEL)
    named = BATCH_OPTIONS.get(stop.setting, f"WasmKernel.{stop.setting}")
    assert not stop.setting or f"{named} " in stop.advice(Door.BATCH)
    assert not stop.advice(Door.AGENT)  # an agent can set nothing


def test_a_limit_that_a_call_lowered_can_be_raised_by_its_caller() -> None:
    stop = CellTimeout(2.5)
    stop.setting = CALL_SECONDS
    assert {stop.advice(door) for door in Door} == {"Raise timeout_seconds to allow more."}


def test_stops_name_the_limit_that_was_hit() -> None:
    assert "1,000,000" in str(OutOfFuel(1_000_000))
    assert "2.5 seconds" in str(CellTimeout(2.5))
    assert "status 3" in str(GuestExited(3))
    assert "unreachable" in str(GuestCrashed("unreachable"))
    assert "2 seconds" in str(Interrupted(2.0))


def test_a_host_that_failed_says_what_would_help() -> None:
    """A cell that shows too much needs other advice than a host without memory."""
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
