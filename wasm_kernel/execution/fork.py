"""Forks of a sandbox: the places that they live in, and what they inherit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from wasm_kernel.errors import ForkError, describe
from wasm_kernel.execution.face import NewSession, SessionHooks
from wasm_kernel.execution.runner import GuestRunner
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.state.fork import Fork, fork_history
from wasm_kernel.state.history import NOT_SAVED

T = TypeVar("T")


def make_forks(
    runner: GuestRunner,
    hooks: SessionHooks[Any] | None,
    n: int,
    make: Callable[[NewSession, Fork], T],
    *,
    reseed: bool,
) -> Iterator[T]:
    """Yields forks of a sandbox, one by one. On the guest's thread, between two cells.

    Args:
        runner: The sandbox's guest.
        hooks: The sandbox's session, if it has one.
        n: How many.
        make: Makes a sandbox in a new place, with what it inherits.
        reseed: Whether the forks' random generators begin anew.

    Raises:
        WasmKernelError: one can't be made; nothing is left of that one.
    """
    for number in range(n):
        new = hooks.new_session() if hooks else NewSession(_folders_beside(runner.folders))
        try:
            history = runner.wait_saved(copies=n - number).history
            fork = make(new, fork_history(history, runner.folders, new.folders, reseed=reseed))
        except BaseException:
            if new.hooks is not None:
                new.hooks.closed()
            new.folders.discard()
            raise
        yield fork


def check_fork(runner: GuestRunner) -> None:
    """Checks that a fork could be planned.

    Raises:
        ForkError: this session's variables have no place on disk.
    """
    if not runner.state.history.on_disk:
        raise ForkError(NOT_SAVED)


@contextlib.contextmanager
def frozen(runner: GuestRunner) -> Iterator[None]:
    """Keeps all that is on disk as it is while a block lasts, for somebody who forks it.

    Raises:
        ForkError: the session can't be forked.
    """
    with runner.wait_saved().history.frozen():
        yield


def _folders_beside(folders: SandboxFolders) -> SandboxFolders:
    """Makes a workspace next to another one, named after it; returns its folders.

    Raises:
        ForkError: it can't be made.
    """
    workspace, number = folders.real, 1
    while True:
        folder = workspace.with_name(f"{workspace.name}-fork-{number}")
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            number += 1
        except OSError as problem:
            raise ForkError(describe(problem)) from problem
        else:
            try:
                return folders.of_workspace(folder, folders.private_root)
            except BaseException:
                with contextlib.suppress(OSError):
                    folder.rmdir()
                raise
