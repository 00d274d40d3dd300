"""`fork`: further sandboxes that begin where one stands, with files and variables of their own."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Self, TypeVar

from wasm_kernel.errors import ForkError, describe
from wasm_kernel.execution.keeper import Home, Keeper
from wasm_kernel.execution.runner import GuestRunner
from wasm_kernel.execution.wishes import Promise
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.state.branch import Branch, branch
from wasm_kernel.state.plan import NOT_SAVED, Plan, planned

T = TypeVar("T")


class Forking(abc.ABC):
    """A sandbox that can be forked."""

    folders: SandboxFolders
    _runner: GuestRunner
    _keeper: Keeper | None

    @abc.abstractmethod
    def _between_cells(self, job: Callable[[], T]) -> T:
        """Run a job on the guest's thread when no cell runs."""

    @abc.abstractmethod
    def start(self) -> Future[None]:
        """Get the guest ready."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give everything back."""

    @abc.abstractmethod
    def _twin(self, home: Home, keeper: Keeper | None, branch: Branch) -> Self:
        """A sandbox like this one that lives elsewhere."""

    def fork(self, n: int = 1, *, deterministic: bool = False) -> list[Self]:
        """Further sandboxes with the same variables and copies of the files; this one goes on.

        Each fork of a session is a session with an id of its own; that of a sandbox outside of
        sessions lives in a folder beside this one's, `NAME-fork-1` and so on. Both go their own
        ways from here: no variable and no file of the one is seen by the other, but for mounted
        folders. A fork has its parent's past, too: `undo`, `redo` and named checkpoints lead to the
        same states. Waits until the running cell is over.

        Args:
            n: How many.
            deterministic: Keep the state of every random generator. Otherwise `random`,
                `numpy.random`, all generators that cells made of either, seeded or not, SQLite's
                and what UUIDs and temporary names are made of begin anew in a fork, also where it
                goes back to a state from before it was forked.

        Returns:
            The forks, ready for a cell; close each. What could not be copied (a file without
            permission to read, a socket) is named in the stderr of a fork's first cell.

        Raises:
            ForkError: a fork can't be made, for lack of disk space, say; none was.
            ValueError: `n` is less than 1.
            WasmKernelError: a new session can't be made, or a guest not be started.
        """
        if n < 1:
            raise ValueError(f"fork makes one sandbox or more, not {n}")
        made: list[Self] = []
        try:
            self._between_cells(lambda: self._make(n, made, reseed=not deterministic))
            for started in [one.start() for one in made]:
                started.result()
        except BaseException:
            for one in made:
                one.close()
                one.folders.discard()
            raise
        return made

    def promise(self, promise: Promise) -> None:
        """Have something done when the running cell is over. For errands: on the guest's thread."""
        self._runner.wishes.promises.append(promise)

    def check_fork(self) -> None:
        """See that a fork could be planned. For errands: in the midst of a cell.

        Raises:
            ForkError: this session's variables have no place on disk.
        """
        if not self._runner.timeline.history.on_disk:
            raise ForkError(NOT_SAVED)

    @contextlib.contextmanager
    def plan_fork(self, *, deterministic: bool = False) -> Iterator[Plan]:
        """How another process makes a fork of what is on disk, while a block lasts.

        For promises: on the guest's thread, between two cells.

        Raises:
            ForkError: the session can't be forked.
        """
        timeline = self._runner.settle()
        with planned(timeline, reseed=not deterministic) as plan:
            yield plan

    def _make(self, n: int, made: list[Self], *, reseed: bool) -> None:
        for number in range(n):
            home, keeper = self._new_home()
            try:
                timeline = self._runner.settle(copies=n - number)
                grown = branch(timeline, home.folders, reseed=reseed)
                made.append(self._twin(home, keeper, grown))
            except BaseException:
                if keeper is not None:
                    keeper.closed()
                home.folders.discard()
                raise

    def _new_home(self) -> tuple[Home, Keeper | None]:
        if self._keeper is None:
            return Home(_beside(self.folders), ""), None
        home = self._keeper.new_home()
        return home, self._keeper.keeper_of(home)


def _beside(folders: SandboxFolders) -> SandboxFolders:
    """The folders of a new workspace next to another one, named after it."""
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
