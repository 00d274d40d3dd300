"""The properties of a worker, and the fate of a session whose worker is lost."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.faces import A_UUID, PATIENCE, ends, error_of, happens, open_files, says, wait_for
from tests.faults import faulty
from tests.linux.inside import needs_walls
from tests.service.conftest import Starting, keep, worker_of
from wasm_kernel.engine.cache import default_folder
from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.errors import FrameError, SandboxClosed, TravelError, WasmKernelError, WorkerLost
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.service import fork_process, fork_server, messages
from wasm_kernel.service.create import create_sandbox
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.service.service import Service

ROOT = Path(__file__).resolve().parents[2]
BEGIN = "open('begun', 'w').close()"
SWALLOWS = f"lost = True\nwhile True:\n  try:\n    {BEGIN}\n    while True: pass\n  except: pass"


BESIDE_A_THREAD = """
import os, socket, threading
from wasm_kernel.frontends.jupyter.forker import Forker
from wasm_kernel.service.fork_loop import WorkerForks
from wasm_kernel.service.messages import ForkRequest
threading.Thread(target=threading.Event().wait, daemon=True).start()
one, other = socket.socketpair()
forks, forker = WorkerForks(), Forker("")
forks.load = lambda request: (None, None)
for fork in (lambda: forks._fork(ForkRequest("python", "unchecked"), other.fileno(), None),
             lambda: forker._fork(other)):
    try:
        fork()
        print("forked")
    except SystemExit as problem:
        print(problem)
"""
CACHE_REMOVED = """
from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.linux.broker import NoBroker
from wasm_kernel.service.fork_loop import WorkerForks
from wasm_kernel.service.messages import ForkRequest
forks, request, find = WorkerForks(), ForkRequest("python", UNCHECKED.name), Cache.folder_of
first = forks.load(request)
print(forks.load(request) is first)
Cache.folder_of = lambda cache, name: None
try:
    forks.load(request)
except NoBroker:
    print("unprepared")
Cache.folder_of = find
print(forks.load(request) is first)
"""
TWO_OWNERS = """
import os, socket, subprocess, sys, time
from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.service import fork_loop
from wasm_kernel.service.fork_process import ForkProcess
from wasm_kernel.service.fork_server import ForkServer
fork_loop._LEAVE_SECONDS = 1.0  # their line stays open, as this process is not the owner
owners = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
lines = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in owners]
shared = os.fork()
if not shared:
    forks = fork_loop.WorkerForks()
    for owner, (ours, theirs) in zip(owners, lines):
        ours.close()
        forks.add(theirs, owner.pid)
    forks.prepare()
    forks.run()
    os._exit(0)
for _, theirs in lines:
    theirs.close()
servers = [ForkServer(ForkProcess(shared, ours, os.getpid(), is_shared=True)) for ours, _ in lines]
one, other = (server.spawn("python", [UNCHECKED], print) for server in servers)
owners[0].kill()
print(one._ends(30), other._ends(0.5))
servers[0].close()
third = servers[1].spawn("python", [UNCHECKED], print)
print(servers[1].process == shared, third.has_ended)
servers[1].close()
print(other._ends(30), third._ends(30), os.waitpid(shared, 0) == (shared, 0))
owners[1].kill()
"""


def lose(sandbox: Sandbox, how: signal.Signals = signal.SIGKILL) -> Any:
    """Runs a cell whose worker gets a signal in between; returns its error."""
    mark = sandbox.workspace / "begun"
    mark.unlink(missing_ok=True)
    cell = sandbox.submit(f"lost = True; {BEGIN}; import time; time.sleep(60)")
    wait_for(mark.exists)
    os.kill(worker_of(sandbox).process, how)
    error = cell.result(60).error
    assert error is not None
    return error


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "log"])
def test_a_program_says_what_it_waits_for_while_the_guest_is_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream: io.StringIO
) -> None:
    told: list[str] = []
    code = "print('compiling ' + 'x' * 100); print('ready')  # {language} {flavour}"
    monkeypatch.setattr(fork_server, "_PREPARE", code)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "80")
    fork_server._prepare(RuntimeType.PYTHON, [UNCHECKED], told.append)
    assert told[-1] == "ready"
    if not stream.isatty():
        assert stream.getvalue() == ""
        sentence = (
            "preparing Python for this machine, once: some seconds, or a minute on a busy machine"
        )
        assert caplog.messages.count(sentence) == 1
        caplog.clear()
        monkeypatch.setattr(fork_server, "_PREPARE", "# {language} {flavour}")  # all was prepared
        fork_server._prepare(RuntimeType.PYTHON, [UNCHECKED], told.append)
        assert not caplog.messages
        return
    lines = stream.getvalue().split("\r")
    assert lines[1] == "[wasm-kernel] preparing Python for this machine, once"
    assert lines[2].startswith("[wasm-kernel] compiling xxx")
    assert max(map(len, lines)) < 80
    assert not lines[-2].strip()  # the line is removed again
    assert lines[-1] == ""
    assert "preparing Python" not in caplog.text


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise SystemExit('The disk is full. Free some.')", "The disk is full. Free some."),
        ("import os; os._exit(1)", "The process that prepares it was ended."),
    ],
)
def test_a_guest_that_can_not_be_prepared_is_an_error_in_plain_sentences(
    monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    """Formerly, the error said that the host lacks memory, and its advice was wrong."""
    monkeypatch.setattr(fork_server, "_PREPARE", code + "  # {language} {flavour}")
    with pytest.raises(WasmKernelError) as told:
        fork_server._prepare(RuntimeType.PYTHON, [UNCHECKED], lambda text: None)
    assert str(told.value) == f"No guest can be started. {why} Nothing was run."


@pytest.mark.parametrize("how", ["timeout", "interrupt"])
def test_guest_that_does_not_stop_is_stopped_with_todays_words(service: Service, how: str) -> None:
    """The guest's process is ended, and nothing else happens."""
    with service.create(policy=ExecutionPolicy(grace_seconds=0.2)) as sandbox:
        keep(sandbox, "x = 41")
        cell = sandbox.submit(SWALLOWS, timeout_seconds=0.5 if how == "timeout" else None)
        if how == "interrupt":
            wait_for((sandbox.workspace / "begun").exists)
            while not cell.done():
                sandbox.interrupt()
                time.sleep(0.1)
        error = error_of(cell.result(60))
        assert error.startswith("CellTimeout:" if how == "timeout" else "Interrupted:")
        assert "The variables are as they were before this cell" in error
        if how == "timeout":
            assert "its limit of 0.5 seconds" in error
            assert error.endswith("Raise timeout_seconds to allow more.")
        assert says(sandbox, "print(x, 'lost' in dir())") == "41 False"


def test_guest_that_does_not_stop_costs_no_cell_that_is_still_being_written(tmp_path: Path) -> None:
    """Formerly, the guest's process was ended at once, and the large cell before was lost."""
    policy = ExecutionPolicy(grace_seconds=0.1)
    with (
        faulty("wasm_kernel.state.commits:write_content") as faults,
        create_sandbox(workspace=tmp_path, policy=policy) as sandbox,
    ):
        says(sandbox, "x = 1")
        with faults["write_content"].held():
            says(sandbox, "x = 2")
            sandbox.checkpoints()  # the commit is taken by now, like before a next cell
            cell = sandbox.submit(SWALLOWS)
            wait_for((tmp_path / "begun").exists)
            for _ in range(5):
                sandbox.interrupt()
                assert not happens(cell.done, 0.1)
        while not happens(cell.done, 0.1):
            sandbox.interrupt()
        error = cell.result().error
        assert error is not None and error.ename == "Interrupted"
        assert says(sandbox, "print(x, 'lost' in dir())") == "2 False"
        with faults["write_content"].held():
            says(sandbox, "x = 3")
            naming = sandbox.call(messages.NameState("three"))
            assert not happens(naming.done, 0.2)  # a name does not go without its state
        naming.result(PATIENCE)


def test_cells_that_waited_say_that_they_did_not_run(remote: Sandbox) -> None:
    keep(remote, "ran = 0")
    first = remote.submit(f"{BEGIN}; import time; time.sleep(3600)")
    second, question = remote.submit("ran += 1"), remote.query({"op": "is_complete", "code": ""})
    wait_for((remote.workspace / "begun").exists)  # before that, it would go to the next worker
    worker_of(remote).kill()
    assert not first.result(60).success
    assert "was not run; send it again" in error_of(second.result(60))
    with pytest.raises(WorkerLost):
        question.result(60)
    assert says(remote, "print(ran)") == "0"


def test_a_stopped_worker_is_noticed_and_replaced(starting: Starting) -> None:
    service = starting()
    sandbox = service.create()
    keep(sandbox, "x = 41")
    process = worker_of(sandbox).process
    sandbox.worker._answer_seconds = 0.5
    assert "did not answer for 0.5 seconds" in lose(sandbox, signal.SIGSTOP).evalue
    ends(process)
    sandbox.worker._answer_seconds = PATIENCE
    assert says(sandbox, "print(x)") == "41"
    wait_for(lambda: service.fork_server._spare is not None)
    assert service.fork_server._spare is not None
    spare = service.fork_server._spare[1]
    os.kill(spare.process, signal.SIGSTOP)
    wait_for(lambda: spare.state == "T")
    assert says(service.create(), "print(1)") == "1"  # no session gets the stopped worker
    ends(spare.process)


def test_the_process_that_forks_workers_goes_on_if_it_is_stopped_and_is_replaced_if_it_is_killed(
    starting: Starting, caplog: pytest.LogCaptureFixture
) -> None:
    service = starting()
    one = service.create()
    keep(one, "x = 0")
    forking = service.fork_server.process
    os.kill(forking, signal.SIGSTOP)
    two = service.create()
    keep(two, "x = 1")
    wait_for(lambda: "was stopped; it was told to go on" in caplog.text)  # maybe for a spare worker
    os.kill(forking, signal.SIGKILL)
    for each in (one, two):
        wait_for(lambda each=each: each.worker.state == "asleep")  # type: ignore[misc]
    assert [says(each, "print(x)") for each in (one, two)] == ["0", "1"]
    assert service.fork_server.process != forking


def test_a_killed_service_leaves_no_process_and_its_variables_are_there(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from wasm_kernel.service.service import Service\n"
        "if __name__ == '__main__':\n"
        "    service = Service(sys.argv[1])\n"
        "    sandbox = service.create()\n"
        "    sandbox.execute('x = 41')\n"
        "    sandbox.worker.sleep(); sandbox.worker.wait_asleep()\n"
        "    sandbox.start().result()\n"
        "    sandbox.submit('while True: pass')\n"
        "    processes = [sandbox.worker.worker.process, service.fork_server.process]\n"
        "    print(sandbox.session_id, *processes, flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "sessions")]
    with Service(tmp_path / "sessions") as service:
        assert says(service.create(), "print(1)") == "1"  # the process is ready
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
            assert owner.stdout is not None
            name, *processes = owner.stdout.readline().split()
            owner.kill()
        for process in processes:  # a session whose worker still ends is open elsewhere
            ends(int(process))
        assert says(service.get(name), "print(x)") == "41"


def test_a_shared_process_ends_the_workers_of_an_owner_that_is_gone_and_no_others() -> None:
    command = [sys.executable, "-P", "-c", TWO_OWNERS]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    assert done.stdout.splitlines() == ["True False", "True False", "True True True"]


def test_a_process_with_a_second_thread_forks_neither_workers_nor_kernels() -> None:
    command = [sys.executable, "-c", BESIDE_A_THREAD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "wasm-kernel: 1 threads too many; nothing is forked\n" * 2


def test_after_the_cache_was_removed_the_next_worker_has_it_prepared_again() -> None:
    """Formerly, each cell of a new kernel failed with `NoBroker`, until the forker had ended."""
    command = [sys.executable, "-c", CACHE_REMOVED]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["True", "unprepared", "False"]


def test_a_process_that_loads_slowly_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formerly, a busy machine's process was replaced after a minute, with all its workers."""
    monkeypatch.setattr(fork_server, "_SECONDS", 0.35)
    with closing(fork_server.ForkServer()) as server:
        server.start()
        process = server.process
        server.spawn("python", [UNCHECKED], lambda text: None).close()
        assert server.process == process


def test_endless_processes_are_replaced(monkeypatch: pytest.MonkeyPatch, ending: ExitStack) -> None:
    monkeypatch.setattr(fork_server, "_SECONDS", 0.3)
    monkeypatch.setattr(fork_server, "_BUSY", 1.0)
    ours, _ = map(ending.enter_context, socket.socketpair(type=socket.SOCK_SEQPACKET))
    spins = ending.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
    ending.callback(spins.kill)
    hung = fork_process.ForkProcess(spins.pid, ours, os.getpid(), is_shared=True)
    pool = ending.enter_context(ThreadPoolExecutor(1))
    server = ending.enter_context(closing(fork_server.ForkServer(hung)))
    asked = pool.submit(server.spawn, "python", [UNCHECKED], lambda text: None)
    wait_for(lambda: server.process != spins.pid, "the replacement")
    with contextlib.suppress(WasmKernelError):  # another process has as little time
        asked.result(PATIENCE).close()


def test_a_shared_process_that_is_gone_is_replaced_by_an_own_one() -> None:
    started = fork_process.start()
    started.is_shared = True
    os.kill(started.number, signal.SIGKILL)
    with closing(fork_server.ForkServer(started)) as server:
        worker = server.spawn("python", [UNCHECKED], lambda text: None)
        assert server.process not in (0, started.number)
        own = server.process
        worker.close()
    ends(own)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_copy_of_a_service_closes_nothing_of_it(service: Service) -> None:
    """Formerly, the copy put the sessions to sleep and waited for ever."""
    with service.create() as sandbox:
        says(sandbox, "x = 1")
        worker = worker_of(sandbox)
        if not (copy := os.fork()):
            try:
                signal.alarm(int(PATIENCE))
                service.close()
                with pytest.raises(SandboxClosed, match="was forked from"):
                    sandbox.reset()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(copy, 0)[1] == 0
        assert says(sandbox, "print(x)") == "1"
        assert worker_of(sandbox) is worker


def test_a_worker_has_no_descriptor_of_another_nor_of_its_service(service: Service) -> None:
    with service.create() as one, service.create() as two:
        says(one, "x = 1")
        says(two, "x = 1")
        found = [sorted(open_files(worker_of(each).process)) for each in (one, two)]
        shared = {*found[0]} & {*found[1]} - {"/dev/null", "anon_inode:[userfaultfd]"}
        cache = str(default_folder())
        # libffi may keep its own file open, for the code of callbacks
        others = {name for name in shared if not name.startswith(cache) and "libffi" not in name}
        assert others == set()
        for names in found:
            assert sum(name.startswith("socket:") for name in names) == 1
            assert not [name for name in names if name.startswith(("pipe:", "anon_inode:[pid"))]
        assert len([*Path(f"/proc/{service.fork_server.process}/task").iterdir()]) == 1
        assert not os.get_inheritable(worker_of(one)._descriptor)  # a child does not inherit it


@needs_walls
@pytest.mark.parametrize("confinement", ["required", "off"])
def test_the_walls_of_a_worker_hold_against_native_code(
    starting: Starting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, confinement: str
) -> None:
    monkeypatch.chdir(tmp_path)  # the probe writes there, if nothing prevents it
    (other := tmp_path / "sessions" / A_UUID).mkdir(parents=True)
    secret = other / "secret"  # a file of another session
    secret.write_text("as it was")
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        probe = {"PROBE_SECRET": str(secret), "PROBE_PORT": str(server.getsockname()[1])}
        probe |= {"PROBE_CACHE": str(default_folder()), "PYTHONPATH": str(ROOT)}
        probe |= {"PROBE_RESULTS": str(results := tmp_path / "results")}
        for name, value in probe.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SERVICE_KEY", "secret")
        monkeypatch.setattr(fork_process, "VARIABLES", (*fork_process.VARIABLES, "PROBE_"))
        monkeypatch.setattr(fork_process, "PROGRAM", "tests.service.probed_worker")
        service = starting(confinement=confinement)
        assert (
            b"SERVICE_KEY" not in Path(f"/proc/{service.fork_server.process}/environ").read_bytes()
        )
        parent = service.create()
        says(parent, "open('f', 'w').write('old')\nlarge = bytearray(b'x' * 2**22)")
        parent.checkpoint("old")
        says(parent, "open('f', 'w').write('new')\nparts = large[::4096]")
        sandbox, sibling = parent.fork(2)
        walls = says(sandbox, "info = %session_info\nprint(info['confinement'])")
        says(sandbox, "open('probe', 'w').close()")
        wait_for(lambda: results.read_text().endswith("\n"))
        for each in (parent, sibling):  # awake, then woken, then restored
            assert says(each, "print(large[::4096] == parts == b'x' * 2**10)") == "True"
            keep(each, "")
            assert says(each, "print(large[::4096] == parts == b'x' * 2**10)") == "True"
            each.restore("old", files=True)
            assert says(each, "print(large.count(b'x'), open('f').read())") == f"{2**22} old"
    reached = {name for name, came in json.loads(results.read_text()).items() if came == "done"}
    if confinement == "off":  # shows what the probe reaches without walls
        assert reached >= {"the key of owners", "other folders", "secret"}
        return
    assert "Landlock" in walls
    assert reached == {"own files", "own session", "what its session has"}
    assert secret.read_text() == "as it was"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"kind":"ended","call":1,"value":1,"figures":{"next_count":0}}',
        b'{"kind":"text","call":1,"name":"other","text":"x"}',
        b'{"kind":"shown","call":1,"output":{"op":"display","data":{"text/html":[1]}}}',
        b'{"kind":"shown","call":1,"output":{"op":"next"}}',
        b'{"kind":"said","call":1,"message":{"kind":"msg","comm_id":"c","data":'
        + b'{"a":' * 200
        + b"1"
        + b"}" * 202,
        b'{"kind":"close"}',
        b'{"kind":"ended","call":1,"value":' + b"[" * 10**5 + b"]" * 10**5 + b',"figures":{}}',
        b'{"kind":"event","name":"' + b"x" * 2000 + b'","fields":{}}',
        b"[" * 10**6,
        b'{"kind":"text","call":1,"name":"stdout","text":"' + b"x" * 65 * 2**20 + b'"}',
    ],
)
def test_messages_that_a_worker_must_not_send_are_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        report = messages.read_report(data)
        # from Python 3.14 on, only reading the value finds how deep it is
        assert isinstance(report, messages.Ended)
        messages.read_value(report.value, Any)


def test_errors_of_a_worker_are_whole_and_its_end_leaves_nothing_open() -> None:
    told = messages.failure(1, TravelError("no such state"))
    assert isinstance(messages.error_of(told), TravelError)
    assert str(messages.error_of(told)) == "no such state"
    own = type("OfAnApplication", (WasmKernelError,), {})
    for name in ("SystemExit", own.__name__):
        assert type(messages.error_of(messages.Failed(1, name, "text"))) is WasmKernelError
    with pytest.raises(FrameError):
        messages.error_of(messages.Failed(1, "OutOfFuel", "text"))
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(OSError, match="No such file"):
        fork_server.Worker.of(ours, 2**22 + 1, os.pidfd_open(os.getpid()))  # no process has it
    assert ours.fileno() == -1
