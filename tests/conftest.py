"""Fixtures for every test: a warm cache, and real sandboxes on new folders.

The compiled guest and the base image are kept in the user's cache, or in the folder
`WASM_KERNEL_CACHE`, so that a machine builds them once and not in each run. `make test` runs the
files on several workers (pytest-xdist): a file stays on one worker, in its order, and the files of
the rooms come by turns.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.documented import Heard, check
from tests.faces import PATIENCE
from tests.faults import Faults, faulty
from tests.ports import hand_out_own
from tests.prepare import prepare
from wasm_kernel import BaseSandbox, ExecutionPolicy, create_sandbox
from wasm_kernel.engine.flavours import FUEL, UNCHECKED
from wasm_kernel.frontends.jupyter import launcher
from wasm_kernel.service.program_home import own_workers

gc.disable()  # until all tests are collected: it would visit each of them again and again

# jsonschema, which nbformat imports, builds a grammar of web addresses with it for two seconds.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

# A single run draws a small sample, the same each time; `make soak` draws many others. A
# busy machine draws its first inputs slowly; that says nothing about the code.
for profile, examples in (("soak", 200), ("house", 20)):
    settings.register_profile(
        profile,
        max_examples=examples,
        derandomize=profile == "house",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("house")

PATIENT = ExecutionPolicy(query_seconds=PATIENCE)
FIRST_START_SECONDS = 600  # for compiling the guest and building its image on a slow machine

TOGETHER = "tests/browser/"  # one server and one browser at a time


class FilesInOrder(LoadScopeScheduling):
    """Gives each worker a whole file, or the whole folder `TOGETHER`, as they were collected."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER if nodeid.startswith(TOGETHER) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesInOrder:
    """`-n` distributes by file."""
    return FilesInOrder(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mixes the files of all rooms evenly, so that tests that wait run beside tests that compute.

    The longest part begins first; if it began last, the other workers would wait for it.
    """
    rooms: dict[Path, list[Path]] = {}
    for file in dict.fromkeys(item.path for item in items):
        rooms.setdefault(file.parent, []).append(file)
    turns = {
        file: (number + 0.5) / len(files)
        for files in rooms.values()
        for number, file in enumerate(files)
    }
    items.sort(key=lambda item: not item.nodeid.startswith(TOGETHER) and turns[item.path])


def pytest_collection_finish() -> None:
    """Freezes the tests themselves, which live to the end: no garbage collection visits them."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps Jupyter, IPython and sessions away from the user's own files.

    Kernels are forked, like those of users, from a process of this run; `started` turns that off.
    `_state` gives each file its own folder of private state; processes that start earlier use the
    folder of the run. The process that workers are forked from begins here, as tests change what it
    inherits.
    """
    hand_out_own()
    folder = tmp_path_factory.mktemp("jupyter")
    (folder / "run").mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        patch.setenv("JUPYTER_CONFIG_DIR", str(folder / "config"))
        patch.setenv("JUPYTER_DATA_DIR", str(folder / "data"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        patch.setenv("JUPYTER_PLATFORM_DIRS", "1")
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("XDG_RUNTIME_DIR", str(folder / "run"))
        own_workers().fork_server.start()
        yield
        for forker in launcher.running():
            os.kill(forker, signal.SIGKILL)


@pytest.fixture(scope="module")
def started() -> Iterator[None]:
    """Starts the kernels of a file one by one, so that each is a child of the test's manager."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(launcher.SETTING, "0")
        yield


@pytest.fixture(scope="session", autouse=True)
def _plain_archives() -> Iterator[None]:
    """Writes archives without compression: zlib takes two seconds for a session.

    `squeezed` gives a test the compression that users have.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wasm_kernel.state.tar.LEVEL", 0)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_flushing() -> Iterator[None]:
    """Ends sessions without flushing the disk; thousands of flushes would take long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wasm_kernel.state.history.History.sync", lambda history: None)
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The library that runs tests that are coroutines."""
    return "asyncio"


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """Takes back the logging that a kernel or a server sets up in the process of a test.

    Its stream is the test's, and closed when a thread of a later test would log to it.
    """
    yield
    own = logging.getLogger("wasm_kernel")
    own.handlers, own.propagate = [], True
    own.setLevel(logging.NOTSET)


@pytest.fixture
def squeezed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compresses archives, as for users."""
    monkeypatch.setattr("wasm_kernel.state.tar.LEVEL", 1)


@pytest.fixture(scope="module", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gives each file its own folder of private state, which is removed after the file.

    A sandbox that starts reads all the state in the folder; a whole run leaves gigabytes of it.
    """
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def warm(_home: None) -> None:
    """Compiles the guests, unless `make test` has done it."""
    prepare(UNCHECKED)


@pytest.fixture(scope="session")
def warm_metered() -> None:
    """Does the work of `warm` for code that counts fuel."""
    prepare(FUEL)


@pytest.fixture(scope="module")
def faults(request: pytest.FixtureRequest) -> Iterator[Faults]:
    """The faults at the file's `FAULTS`, in the workers of its sandboxes; see `faulty`."""
    values = getattr(request.module, "VALUES", {})
    with faulty(*request.module.FAULTS, **values) as made:
        yield made


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[BaseSandbox]:
    """A started sandbox whose workspace is `tmp_path / "app"`."""
    with _started(tmp_path / "app") as started:
        yield started


@pytest.fixture(scope="module")
def module_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BaseSandbox]:
    """A started sandbox for a file whose tests leave each other's variables alone."""
    with _started(tmp_path_factory.mktemp("app")) as started:
        yield started


def _started(workspace: Path) -> BaseSandbox:
    made = create_sandbox(workspace=workspace, policy=PATIENT)
    made.start().result(FIRST_START_SECONDS)
    return made


@pytest.fixture
def heard() -> Iterator[Heard]:
    """A log for sandboxes: tests pass `heard.logger` and ask `heard.one(event)`."""
    log = Heard()
    yield log
    check(log.events)


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    """A stack whose objects are closed after the test."""
    with ExitStack() as held:
        yield held


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on another file system than the test's folder."""
    here = tmp_path.stat().st_dev
    for place in (Path("/dev/shm"), Path("/var/tmp")):
        if os.access(place, os.W_OK) and place.stat().st_dev != here:
            with TemporaryDirectory(dir=place) as folder:
                yield Path(folder)
            return
    pytest.skip("there is no other file system here")


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment for a process that a test starts, which runs the code of this tree."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    return {**kept, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder for sessions, which does not exist yet."""
    return tmp_path / "sessions"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels do not wait for others to leave a notebook's session."""
    monkeypatch.setattr("wasm_kernel.sessions.notebooks.PATIENCE_SECONDS", 0.0)
