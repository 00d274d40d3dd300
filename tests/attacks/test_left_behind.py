"""F25: no process outlives its kernel by more than a second, whatever it is doing."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from tests.faces import happens
from tests.ports import write_connection
from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.guests.python.language import PythonLanguage

SECONDS = 20.0  # the promise is one; the machine may be busy; a deaf process lasts a minute
PATIENCE = 60.0

pytestmark = pytest.mark.usefixtures("started")


class Started:
    """A kernel and all processes that it starts: each inherits a mark in its environment."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.mark = f"LEFT_BEHIND={uuid.uuid4()}"
        self.file = folder / "connection.json"
        write_connection(self.file)
        name, _, value = self.mark.partition("=")
        env |= {name: value, "WASM_KERNEL_WORKSPACE_ROOT": str(folder / "sessions")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wasm_kernel", "-f", str(self.file)],
            env=os.environ | env,
            cwd=folder,
            start_new_session=True,  # as Jupyter's kernel managers do
        )

    def commands(self) -> dict[int, str]:
        """The command lines of its living processes, by process id."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and self.mark.encode() in (
                    (entry / "environ").read_bytes().split(b"\0")
                ):
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue  # the process has just ended, or belongs to another user
        return found

    @contextmanager
    def running(self, code: str) -> Iterator[None]:
        """Runs a cell while the block lasts."""
        client: Any = BlockingKernelClient(connection_file=str(self.file))
        client.load_connection_file()
        client.start_channels(hb=False)
        client.execute(code)
        yield
        client.stop_channels()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    kernels: list[Started] = []

    def starting(**env: str) -> Started:
        kernels.append(Started(tmp_path, **env))
        return kernels[-1]

    yield starting
    for kernel in kernels:
        for process in kernel.commands():
            os.kill(process, signal.SIGKILL)
        kernel.process.wait(PATIENCE)


def nothing_is_left(kernel: Started) -> None:
    kernel.process.wait(PATIENCE)
    ended = time.monotonic()
    assert happens(lambda: not kernel.commands(), SECONDS), kernel.commands()
    assert time.monotonic() - ended < SECONDS


def kill_the_group(kernel: Started) -> None:
    os.killpg(kernel.process.pid, signal.SIGKILL)  # as `shutdown_kernel(now=True)` does


def kill_the_kernel(kernel: Started) -> None:
    kernel.process.kill()


def end_it(kernel: Started) -> None:
    kernel.process.terminate()


@pytest.mark.parametrize(
    "end",
    [
        kill_the_kernel,
        *(pytest.param(end, marks=pytest.mark.soak) for end in (kill_the_group, end_it)),
    ],
)
def test_a_first_compilation_ends_with_its_kernel(
    start: Callable[..., Started], tmp_path: Path, end: Callable[[Started], None]
) -> None:
    cache = tmp_path / "cache"
    kernel = start(WASM_KERNEL_CACHE=str(cache))
    assert happens(lambda: list(cache.glob("*.cwasm.lock")))
    time.sleep(0.2)  # the compilation is under way
    assert len(kernel.commands()) > 1
    end(kernel)
    nothing_is_left(kernel)


def test_a_base_image_that_is_not_finished_leaves_nothing_in_the_temporary_folder(
    start: Callable[..., Started], tmp_path: Path
) -> None:
    cache, scratch = tmp_path / "cache", tmp_path / "scratch"
    cache.mkdir(mode=0o700)
    scratch.mkdir()
    language, home = PythonLanguage(Cache()), Cache(cache)
    language.prepare(UNCHECKED, lambda text: None)
    for path in language.prepared.paths(UNCHECKED):
        if not path.name.startswith(language.prepared.image_name):
            home.write(path.name, partial(shutil.copyfile, path))
    kernel = start(WASM_KERNEL_CACHE=str(cache), TMPDIR=str(scratch))
    assert happens(lambda: list(cache.glob("*.image.lock")), PATIENCE)
    time.sleep(0.2)  # the image is being made
    kill_the_kernel(kernel)
    nothing_is_left(kernel)
    assert [*cache.glob("*.image")] == [*scratch.iterdir()] == []


def test_pip_ends_with_its_kernel(start: Callable[..., Started]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # an index that never answers
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        kernel = start(PIP_INDEX_URL=index, PIP_EXTRA_INDEX_URL="", PIP_NO_INDEX="0")
        with kernel.running("%pip install nothing-of-this-name"):
            assert happens(lambda: any(" download " in each for each in kernel.commands().values()))
        kill_the_group(kernel)
        nothing_is_left(kernel)
