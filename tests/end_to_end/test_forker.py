"""Kernels that are forked from a loaded process work like started ones, and are as safe."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import starting_in
from tests.end_to_end.real_kernel import RealKernel
from tests.faces import PATIENCE, ends, is_gone, open_files, wait_for
from tests.linux.inside import needs_walls
from tests.linux.test_kernel_process import REACHABLE
from tests.ports import write_connection
from wasm_kernel.engine.cache import default_folder
from wasm_kernel.frontends.jupyter import launcher


def children_of(process: int) -> set[int]:
    """The processes that were forked from a process."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        with suppress(OSError):
            if f"\nPPid:\t{process}\n" in status.read_text():
                found.add(int(status.parent.name))
    return found


class Forker:
    """A running forker.

    Args:
        folder: A folder for its socket and files.
        spec: The variables that the kernelspec sets.
        idle_seconds: How long it waits for a launcher.
    """

    def __init__(self, folder: Path, spec: dict[str, str], idle_seconds: float = 600.0) -> None:
        self.installed = folder / "installed"
        self.installed.touch()
        (folder / "secret").touch()
        self.env = os.environ | spec
        self.env |= {"PROBE_SECRET": str(folder / "secret"), "PROBE_PORT": "1"}
        self.results = folder / "results"
        self.env |= {"PROBE_CACHE": str(default_folder()), "PROBE_RESULTS": str(self.results)}
        command = [sys.executable, "-P", "-m", "tests.end_to_end.probed_forker"]
        command += [str(idle_seconds), str(self.installed)]
        with subprocess.Popen(command, env=self.env, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            self.name = process.stdout.readline().strip()
            assert process.stdout.readline() == "loaded\n"
        self.process = 0
        wait_for(self._is_up)

    def _is_up(self) -> bool:
        with suppress(OSError), closing(launcher.connect(self.name)) as link:
            self.process, _ = launcher.peer_of(link)
        return self.process > 0

    @property
    def path(self) -> Path:
        """Its socket."""
        return Path(launcher.place(), self.name)

    def kernels(self) -> set[int]:
        """The kernels that were forked from it: each has a broker, and workers have none."""
        return {process for process in children_of(self.process) if children_of(process)}

    def kill(self) -> None:
        """Kills it at once."""
        with suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        ends(self.process)

    def command(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs the kernel's command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "wasm_kernel", *arguments],
            **{"env": self.env, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
            text=True,
            timeout=PATIENCE,
            check=False,
        )


@pytest.fixture(scope="module")
def spec(installed_kernelspec: Path) -> dict[str, str]:
    """The variables that the kernelspec sets."""
    file = installed_kernelspec / "kernels" / "wasm-python" / "kernel.json"
    variables: dict[str, str] = json.loads(file.read_text())["env"]
    return variables


@pytest.fixture(scope="module", autouse=True)
def _on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        patch.chdir(tmp_path_factory.mktemp("here"))  # a forker is not shared by folders of modules
        yield


@pytest.fixture(scope="module")
def forker(spec: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forker]:
    """The forker of this file's tests."""
    made = Forker(tmp_path_factory.mktemp("forker"), spec)
    yield made
    made.kill()


def process_of(kernel: RealKernel) -> int:
    """The process of the kernel itself."""
    return int(kernel.control("usage_request", {})["pid"])


def opened_by(process: int | str = "self") -> set[str]:
    """The sockets, pipes and processes that a process has open."""
    kinds = ("socket:", "pipe:", "anon_inode:[pidfd")
    return {name for name in open_files(process) if name.startswith(kinds)}


def test_a_kernel_is_forked_with_its_launchers_arguments_variables_and_folder(
    forker: Forker, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "data").write_text("data")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("SAID", "by the launcher")
    with starting_in(root) as start:
        kernel = start(pass_env="['SAID']")
        said = kernel.run("from os import environ; print(environ['SAID'], open('data').read())")
        assert said.stdout == "by the launcher data\n"
        assert kernel.run("'JPY_PARENT_PID' in environ").value == "False"
        assert process_of(kernel) in forker.kernels()


@pytest.mark.parametrize("arguments", [("--help",), ("--WasmKernel.no_such=1", "-f", "new.json")])
def test_a_forked_command_has_the_same_output_and_status(
    forker: Forker, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    started = {**forker.env, launcher.SETTING: "0"}
    forked, ours = (
        forker.command(*arguments, cwd=tmp_path, env=env) for env in (forker.env, started)
    )
    assert forked.returncode == ours.returncode
    assert (forked.stdout, forked.stderr) == (ours.stdout, ours.stderr)


def test_signals_reach_it_and_its_end_is_the_launchers(forker: Forker, root: Path) -> None:
    with starting_in(root) as start:
        kernel = start()
        process = process_of(kernel)
        kernel.run("x = 1")
        sent = kernel.send("import time; print('on')\ntime.sleep(600)")
        kernel.hear("stream")
        kernel.manager.signal_kernel(signal.SIGINT)
        assert kernel.reply(sent)["ename"] == "KeyboardInterrupt"
        os.kill(process, signal.SIGKILL)
        provisioner: Any = kernel.manager.provisioner
        assert provisioner.process.wait(PATIENCE) == -signal.SIGKILL
        kernel.autorestart()
        assert kernel.run("x").value == "1"
        process = process_of(kernel)
        assert process in forker.kernels()
        kernel.manager.signal_kernel(signal.SIGTERM)
        assert provisioner.process.wait(PATIENCE) == 0
        assert is_gone(process)


def test_a_kernel_ends_with_its_launcher_and_goes_on_without_the_forker(
    spec: dict[str, str], root: Path, tmp_path: Path
) -> None:
    forker = Forker(tmp_path, spec | {"TZ": "UTC-1"})
    with pytest.MonkeyPatch.context() as patch, starting_in(root) as start:
        patch.setenv("TZ", "UTC-1")
        kernels = [start(), start()]
        processes = [process_of(kernel) for kernel in kernels]
        assert forker.kernels() >= {*processes}
        shared = opened_by(processes[0]) & opened_by(processes[1])
        kernels[0].kill()
        ends(processes[0])
        forker.kill()
        assert kernels[1].run("1 + 1").value == "2"
        kernels[1].kill()
        ends(processes[1])
    own = opened_by()
    assert {name for name in shared if "pidfd" not in name} <= own  # both may watch the forker


def test_a_kernel_ends_with_the_process_that_asked_for_that(forker: Forker, tmp_path: Path) -> None:
    file = tmp_path / "connection.json"
    asked = "import os, subprocess, sys; os.environ['JPY_PARENT_PID'] = str(os.getpid())"
    asked += "; subprocess.Popen([sys.executable, '-m', 'wasm_kernel', '-f', sys.argv[1]]); input()"
    before = forker.kernels()
    with subprocess.Popen(
        [sys.executable, "-P", "-c", asked, str(file)], env=forker.env, stdin=subprocess.PIPE
    ) as parent:
        wait_for(file.exists)
        (kernel,) = forker.kernels() - before
        parent.kill()
    ends(kernel)


@needs_walls
@pytest.mark.parametrize("is_forked", [True, False])
def test_a_client_that_connects_while_the_kernel_loads_is_heard_and_no_other_process_listens(
    forker: Forker, tmp_path: Path, is_forked: bool
) -> None:
    file = tmp_path / "connection.json"
    write_connection(file)
    ports = [each for name, each in json.loads(file.read_text()).items() if name.endswith("_port")]
    env = forker.env | {launcher.SETTING: str(int(is_forked))}
    before = forker.kernels()
    command = [sys.executable, "-P", "-m", "wasm_kernel", "-f", str(file)]
    with subprocess.Popen(command, env=env) as process:
        try:
            for port in ports:
                with _connected(port) as client:
                    assert client.recv(1) == b"\xff"  # a kernel's ZMQ greeting, on this connection
            (kernel,) = forker.kernels() - before if is_forked else {process.pid}
            children = Path(f"/proc/{kernel}/task/{kernel}/children").read_text().split()
            others = [*map(int, children), *([process.pid] if is_forked else [])]
            assert len(others) == 2  # the broker, and the launcher or the kernel's own fork server
            assert len(_listening(ports) & opened_by(kernel)) == len(ports)
            wait_for(lambda: not any(_listening(ports) & opened_by(other) for other in others))
        finally:
            process.terminate()


def _listening(ports: list[int]) -> set[str]:
    """The sockets that listen on ports of this machine, named as in `opened_by`."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = line.split()[:10]
        if state == "0A" and int(local.partition(":")[2], 16) in ports:
            found.add(f"socket:[{inode}]")
    return found


def _connected(port: int) -> socket.socket:
    """Connects to a port as soon as a process listens on it."""
    found: list[socket.socket] = []

    def is_made() -> bool:
        with suppress(ConnectionRefusedError):
            found.append(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE))
        return bool(found)

    wait_for(is_made)
    return found[0]


def test_a_launcher_that_gives_up_leaves_no_kernel(forker: Forker, tmp_path: Path) -> None:
    asked = "import sys; from wasm_kernel.frontends.jupyter import launcher, ports"
    asked += "; link = launcher.connect(sys.argv.pop(1))"
    asked += "; launcher._hand_over(link, ports.listen(sys.argv))"
    before = forker.kernels()
    file = tmp_path / "connection.json"
    command = [sys.executable, "-P", "-c", asked, forker.name, "-f", str(file)]
    subprocess.run(command, env=forker.env, timeout=PATIENCE, check=True)
    wait_for(lambda: forker.kernels() <= before)
    assert not file.exists()


def test_a_launcher_that_passes_other_settings_gets_no_kernel_of_the_forker(forker: Forker) -> None:
    asked = "import os, sys; os.umask(0o027)"
    asked += "; from wasm_kernel.frontends.jupyter import launcher, ports"
    asked += "; link = launcher.connect(sys.argv[1])"
    asked += "; print(launcher._hand_over(link, ports.Ports()))"
    command = [sys.executable, "-P", "-c", asked, forker.name]
    done = subprocess.run(command, env=forker.env, capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]  # the forker hangs up, before or after everything is sent
    assert last.startswith(("Connection", "BrokenPipe")), last


def test_a_kernel_in_a_folder_of_modules_gets_no_forker_of_kernels_elsewhere(
    forker: Forker, tmp_path: Path
) -> None:
    # Kernels and workers of such a forker may read all files below the folder.
    (tmp_path / "modules" / "notebooks").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "modules")
    env = forker.env | {"PYTHONPATH": f"{forker.env['PYTHONPATH']}{os.pathsep}{tmp_path / 'link'}"}
    asked = "from wasm_kernel.frontends.jupyter import launcher; print(launcher.forker_name())"
    folders = (tmp_path, tmp_path.parent, tmp_path / "modules" / "notebooks")
    elsewhere, also_elsewhere, inside = (
        subprocess.check_output([sys.executable, "-P", "-c", asked], env=env, cwd=folder)
        for folder in folders
    )
    assert elsewhere == also_elsewhere != inside


def test_a_forker_ends_once_it_is_outdated_or_idle(spec: dict[str, str], tmp_path: Path) -> None:
    forker = Forker(tmp_path, spec | {"TZ": "UTC-2"})
    forker.installed.write_text("changed")
    assert forker.command("--version").returncode == 0
    ends(forker.process)
    assert not forker.path.exists()
    forker = Forker(tmp_path, spec | {"TZ": "UTC-3"}, idle_seconds=2.0)
    ends(forker.process)
    assert not forker.path.exists()


def test_a_stopped_forker_goes_on_and_that_is_told(forker: Forker) -> None:
    os.kill(forker.process, signal.SIGSTOP)
    done = forker.command("--version")
    assert done.returncode == 0
    assert "was stopped. It was told to go on." in done.stderr
    assert forker.command("--version").stderr == ""


OWNER = """
import os, sys
from wasm_kernel.frontends.jupyter import launcher
nursery = launcher.start(launcher.forker_name())
from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.service.fork_server import ForkServer
server = ForkServer(nursery)
worker = server.spawn("python", [UNCHECKED], print)
print(server.process, worker.process, *launcher.running(), flush=True)
input()
"""


def test_a_started_kernels_forker_forks_its_worker_before_it_listens_and_stays_when_it_ends(
    spec: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("LANGUAGE_MODEL_KEY", "secret")
    with subprocess.Popen(
        [sys.executable, "-P", "-c", OWNER],
        env=os.environ | spec,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        forker, worker = map(int, owner.stdout.readline().split())  # no forker was listening
        children = Path(f"/proc/{owner.pid}/task/{owner.pid}/children")
        assert children.read_text() == ""  # some programs end a kernel with all its descendants
        assert worker in children_of(forker)
        assert b"secret" not in Path(f"/proc/{worker}/environ").read_bytes()
        wait_for(lambda: launcher.running() == [forker])
        assert not is_gone(worker)
        owner.kill()
    ends(worker)
    assert launcher.running() == [forker]
    os.kill(forker, signal.SIGKILL)


@needs_walls
def test_a_kernel_that_was_taken_over_reaches_neither_the_forker_nor_anything_else(
    forker: Forker, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in forker.env:
        if name.startswith("PROBE_"):
            monkeypatch.setenv(name, forker.env[name])
    monkeypatch.setenv("PROBE_FORKER", forker.name)
    with starting_in(root) as start:
        kernel = start(folder="none")
        kernel.run("open('/app/probe', 'w').close()")
        wait_for(lambda: forker.results.read_text().count("\n") == 2)
        told, imported = forker.results.read_text().splitlines()
        found: dict[str, str] = json.loads(told)
        late = imported.split()
    assert {name for name, came in found.items() if came == "done"} == REACHABLE
    assert "forker" in found
    assert [name for name in late if name.startswith(("wasm_kernel", "tornado", "zmq"))] == []
    assert forker.command("--version").returncode == 0
