"""Real sandboxes with small limits, and checks of the session after an attack."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import guest
from tests.engine.tiny import Guest
from tests.faces import PATIENCE, process_of, put_back, says
from tests.faults import faulty
from tests.listening import Page
from tests.peak import Peak
from wasm_kernel import BaseSandbox, ExecutionPolicy, SandboxResult, create_sandbox
from wasm_kernel.linux import trees
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state.file_versions import FileVersions

__all__ = ["guest"]

SMALL = ExecutionPolicy(
    cell_timeout=PATIENCE,  # an attack that should reach one of these three limits sets its own
    grace_seconds=PATIENCE,
    query_seconds=PATIENCE,
    stdout_bytes=1 << 20,
    stderr_bytes=1 << 20,
    display_bytes=8 << 20,
    display_count=1000,
    open_files=64,
    memory_bytes=768 << 20,
)


@dataclass
class Victim:
    """A sandbox under attack."""

    sandbox: BaseSandbox

    @property
    def app(self) -> Path:
        """The host folder behind `/app`."""
        return self.sandbox.workspace

    @property
    def process(self) -> int:
        """The process that its guest lives in."""
        return process_of(self.sandbox)

    def peak(self) -> Peak:
        """Measures the memory of the guest's process and of this one, from now on."""
        return Peak(*{os.getpid(), self.process})

    def run(self, code: str, *, interrupt: str = "", **options: Any) -> SandboxResult:
        """The result of a cell, which is interrupted each time it has printed this word."""
        if not interrupt:
            return self.sandbox.execute(code, **options)
        heard = options.setdefault("listener", Page())
        cell, interrupts = self.sandbox.submit(code, **options), 0
        while not cell.done():  # the cell's limits end it
            if heard.text.count(interrupt) > interrupts:
                interrupts += 1
                self.sandbox.interrupt()
            time.sleep(0.005)
        return cell.result()

    def says(self, code: str) -> str:
        """The output of a cell that must succeed."""
        return says(self.sandbox, code)

    def fails(self, code: str, **options: Any) -> str:
        """The name of the error that a cell must end with."""
        result = self.run(code, **options)
        assert result.error is not None, result.stdout
        return result.error.ename

    def lives(self) -> None:
        """Check that the session goes on: the next cell runs, and its variables are kept."""
        assert self.says("kept = 40 + 2; print(kept)") == "42"
        assert self.says("print(kept)") == "42"


Making = Callable[..., Victim]


class Shared:
    """The sandboxes for the attacks of a file: one under `SMALL`, and the last with other limits.

    A sandbox keeps the variables and files of earlier attacks, unless `anew` asks for those before
    the first attack.
    """

    def __init__(self, make: Callable[[ExecutionPolicy], BaseSandbox]) -> None:
        self._make = make
        self._made: dict[str, BaseSandbox] = {}
        self._spoilt = ""

    def victim(self, *, anew: bool = False, **limits: Any) -> Victim:
        """The sandbox under these limits."""
        key = repr(limits)
        if key not in self._made:
            for other in {*self._made} - {repr({})}:
                self._made.pop(other).close()
            self._made[key] = put_back(self._make(small(**limits)))
        elif anew or self._spoilt == key:
            put_back(self._made[key])
        self._spoilt = key if anew else ""
        return Victim(self._made[key])

    def close(self) -> None:
        """Closes them."""
        for sandbox in self._made.values():
            sandbox.close()


def small(**limits: Any) -> ExecutionPolicy:
    """The policy of an attack, with some limits set by the test."""
    return replace(SMALL, **limits)


@pytest.fixture(scope="module")
def hasty_workers() -> Iterator[None]:
    """The workers of the file count a guest sooner as unable to begin a cell."""
    with faulty(engine__clock__BEGIN_LEAST=0.4, engine__clock__BEGIN_SECONDS=0.7):
        yield


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """The sandboxes for all tests of a file."""

    def make(policy: ExecutionPolicy) -> BaseSandbox:
        workspace = tmp_path_factory.mktemp("victim") / "app"
        return create_sandbox(workspace=workspace, policy=policy)

    made = Shared(make)
    yield made
    made.close()


@pytest.fixture
def victim(shared: Shared) -> Iterator[Victim]:
    """The file's sandbox; after the attack, its session must go on."""
    found = shared.victim()
    yield found
    found.lives()


@pytest.fixture
def victim_of(shared: Shared) -> Making:
    """Returns the file's sandbox in its first state, under a policy with limits set by the test."""
    return lambda **limits: shared.victim(anew=True, **limits)


@pytest.fixture
def fresh_victim_of(tmp_path: Path, ending: ExitStack) -> Making:
    """Makes new sandboxes, each with its own folder and limits set by the test."""

    def one(name: str = "app", **limits: Any) -> Victim:
        made = create_sandbox(workspace=tmp_path / name, policy=small(**limits))
        return Victim(ending.enter_context(closing(made)))

    return one


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A root of sessions beside files of the host; the folders in it may become very deep."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    yield tmp_path / "sessions"
    trees.remove_tree(tmp_path / "sessions")


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[tuple[Guest, FileVersions]]:
    """A guest whose files are kept."""
    (tmp_path / "app").mkdir()
    (tmp_path / "private").mkdir()
    with Folder.open(tmp_path / "app") as app, Folder.open(tmp_path / "private") as private:
        versions = FileVersions(app, private, most_bytes=1 << 20, copy_bytes=1 << 20)
        versions.begin_anew()
        versions.commit(1, [1])
        made = Guest(tmp_path, history=versions)
        yield made, versions
        made.close()
        versions.close()
