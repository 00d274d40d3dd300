"""The broker handles requests outside the walls, and ends with the process that spawned it."""

from __future__ import annotations

import queue
import signal
import socket
import threading
import tracemalloc
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest

from tests.linux.inside import needs_walls, run, said_by
from wasm_kernel.errors import FrameError
from wasm_kernel.linux.broker import (
    BrokerAnswer,
    BrokerError,
    BrokerRequest,
    BrokerServer,
    EmptyReply,
    RemoteBroker,
)
from wasm_kernel.linux.channel import FRAME_BYTES, FRAME_NODES, SPARE, Channel, read
from wasm_kernel.linux.task import Task

_HANDLERS = """
import os, sys, time, threading
from pathlib import Path
from msgspec import Struct
from wasm_kernel.linux import confinement
from wasm_kernel.linux.broker import EmptyReply, ProcessBroker
from wasm_kernel.linux.task import Cancelled
from wasm_kernel.errors import WasmKernelError

class Read(Struct): path: str
class Wait(Struct): pass
class Deaf(Struct): pass
class Compute(Struct): pass
class Fail(Struct): pass
class Crash(Struct): pass
class Other(Struct): pass
class Echo(Struct): text: str
class Text(Struct): text: str

def read(request, task):
    task.report("reading")
    return Text(Path(request.path).read_text())

def wait(request, task):
    task.report("waiting")
    while not task.cancelled:
        time.sleep(0.01)
    raise Cancelled

def deaf(request, task):
    time.sleep(60)

def compute(request, task):
    return Text(str(sum(i * i for i in range(10**10))))

def fail(request, task):
    raise WasmKernelError("It rained. Nothing was changed.")

def crash(request, task):
    raise KeyError("a detail")

def echo(request, task):
    return Text(request.text)

class Task:
    def __init__(self, cancelled=lambda: False):
        self._cancelled = cancelled
    def report(self, text):
        print(text)
    @property
    def cancelled(self):
        return self._cancelled()

def tried(what):
    try:
        print(what())
    except (WasmKernelError, Cancelled) as problem:
        print(str(problem) or type(problem).__name__)

folder = Path(sys.argv[1])
HANDLERS = {Read: read, Wait: wait, Deaf: deaf, Compute: compute, Fail: fail, Crash: crash}
HANDLERS[Echo] = echo

def spawn():
    return ProcessBroker.spawn(HANDLERS)
"""
_SPAWNED = f"{_HANDLERS}\nbroker = spawn()\n"


@needs_walls
def test_the_broker_stays_outside_the_walls(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("known outside")
    code = f"""{_SPAWNED}
walls = confinement.Confinement("required")
walls.close_files(confinement.KeptPaths())
walls.close_calls()
print(broker.call(Read(sys.argv[1] + '/secret'), Text))
"""
    assert said_by(code, tmp_path) == ["Text(text='known outside')"]


def test_an_accident_is_logged_once_with_its_traceback_where_it_happened(tmp_path: Path) -> None:
    """The caller gets no traceback, as that names the host's files."""
    shown = "record.name, record.process == inside, record.getMessage()"
    code = f"""{_HANDLERS}
import logging
inside = os.getpid()
class Seen(logging.Handler):
    def emit(self, record):
        print({shown}, record.exc_info[1], file=sys.stderr)
logging.getLogger("wasm_kernel").addHandler(Seen())
tried(lambda: spawn().call(Crash(), EmptyReply))
"""
    logged = run(code, tmp_path).stderr.splitlines()
    assert logged == ["wasm_kernel False Crash failed unexpectedly 'a detail'"]


_CALLS = """
# a request is handled, and the handler says how far it is
(folder / "secret").write_text("known outside")
print(broker.call(Read(str(folder / "secret")), Text, Task()))
# a cancelled call does not cancel the next one; its handler may never begin
class Quiet(Task):
    def report(self, text): pass
tried(lambda: broker.call(Wait(), EmptyReply, Quiet(lambda: True)))
begun = time.monotonic()
tried(lambda: broker.call(Wait(), EmptyReply, Task(lambda: time.monotonic() > begun + 0.3)))
print(time.monotonic() - begun >= 0.3)
# a failure comes back in its own words, and an accident without any
for each in (Fail(), Crash()):
    tried(lambda: broker.call(each, EmptyReply))
# a request that no handler can read is refused
for request in (Other(), Read(3), Read(None), Read({"a": 1})):
    tried(lambda: broker.call(request, Text))
# long requests and replies come whole, and too long ones are refused
for size in (1, 131_072, 3_000_000):
    print(len(broker.call(Echo("x" * size), Text).text))
(folder / "long").write_text("x" * 70_000_000)
tried(lambda: broker.call(Read(str(folder / "long")), Text))
tried(lambda: broker.call(Echo("x" * 70_000_000), Text))
print(broker.call(Echo("still there"), Text).text)
# a task that fails does not leave its reply to the next call
class Failing(Task):
    def report(self, text):
        raise ZeroDivisionError
try:
    broker.call(Read(str(folder / "secret")), Text, Failing())
except ZeroDivisionError:
    print(broker.call(Echo("two"), Text).text)
# without a broker, the answer is a sentence
os.kill(broker._process, 9)
os.waitpid(broker._process, 0)
tried(lambda: broker.call(Read(""), Text))
"""


def test_calls_are_answered_cancelled_or_refused(tmp_path: Path) -> None:
    assert said_by(_SPAWNED + _CALLS, tmp_path) == [
        *("reading", "Text(text='known outside')"),
        *("Cancelled", "waiting", "Cancelled", "True"),
        *("It rained. Nothing was changed.", "internal error; the kernel's log says more"),
        *("there is no handler for this request", *["this request can't be read"] * 3),
        *("1", "131072", "3000000", "its answer is too long"),
        *("the request can't be sent: it is larger than 64 MiB", "still there"),
        "two",
        "the kernel's helper process has ended. Restart the kernel.",
    ]


@pytest.mark.parametrize("request_", ["", "Deaf", "Compute"])
def test_the_broker_ends_soon_after_the_process_inside(tmp_path: Path, request_: str) -> None:
    """F25: idle, in a handler that does not heed cancelling, or computing."""
    code = f"""{_HANDLERS}
watch, alive = os.pipe()  # its other end closes once all who have it are gone
inside = os.fork()
if not inside:
    broker = spawn()
    if {request_!r}:
        threading.Thread(target=lambda: broker.call({request_ or "Wait"}(), EmptyReply)).start()
    time.sleep(0.3)
    os.kill(os.getpid(), 9)
os.close(alive)
os.waitpid(inside, 0)
begun = time.monotonic()
os.read(watch, 1)
print(time.monotonic() - begun < 30)
"""
    assert said_by(code, tmp_path) == ["True"]


def test_a_program_that_it_starts_ends_with_it(tmp_path: Path) -> None:
    code = """
import os, subprocess, time
from wasm_kernel.linux.broker import tied_command
watch, alive = os.pipe()
starter = os.fork()
if not starter:
    program = tied_command("import time; print('up', flush=True); time.sleep(60)")
    up = subprocess.Popen(program, pass_fds=[alive], stdout=subprocess.PIPE).stdout.readline()
    os.kill(os.getpid(), 9)
os.close(alive)
os.waitpid(starter, 0)
begun = time.monotonic()
os.read(watch, 1)
print(time.monotonic() - begun < 30)
"""
    assert said_by(code) == ["True"]


@pytest.mark.parametrize(
    "sent",
    [
        r"""[b'{"kind":"\xff"}']""",
        pytest.param(
            r"""[b'{"kind":"request","number":1,"name":"\xff","request":{}}']""",
            marks=pytest.mark.soak,
        ),
        """[b'{"kind":"request","number":1,"name":"Wait","request":' + b"[" * 120_000]""",
        pytest.param("""[b"[" * 600_000]""", marks=pytest.mark.soak),
        """[b'{"kind":"request","number":%d,"name":"Wait","request":{}}' % n for n in range(9)]""",
    ],
    ids=["kind", "name", "depth", "values", "many"],
)
def test_broker_ends_when_a_stranger_sends_an_invalid_message(sent: str, tmp_path: Path) -> None:
    """Formerly, the broker's reading thread died, and the broker outlived its kernel."""
    code = f"""{_SPAWNED}
for data in {sent}:
    try:
        broker._channel._write(data)
    except OSError:
        break
print(os.waitpid(broker._process, 0)[1])
"""
    assert said_by(code, tmp_path) == ["0"]


def test_a_call_that_waits_ends_when_its_broker_is_gone() -> None:
    """Formerly, a worker's guest waited for an answer of a service that had ended."""
    ours, theirs = socket.socketpair()
    answers: queue.SimpleQueue[BrokerAnswer | None] = queue.SimpleQueue()
    with closing(Channel(ours)) as channel, theirs:
        answers.put(None)
        with pytest.raises(BrokerError, match="the service has ended"):
            RemoteBroker(channel, "the service has ended", answers).call(EmptyReply(), EmptyReply)


def test_requests_are_handled_one_after_another_and_few_may_wait() -> None:
    """A process that was taken over sends a request before it has the answer to the last one."""
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def slow(request: EmptyReply, task: Task) -> EmptyReply:
        begun.release()
        assert go_on.acquire(timeout=60)
        return request

    ours, theirs = socket.socketpair()
    with closing(Channel(ours)) as channel, closing(Channel(theirs)) as stranger:
        server = BrokerServer(channel, lambda: {EmptyReply: slow})
        asked = [BrokerRequest(number, "EmptyReply", msgspec.Raw(b"{}")) for number in range(3)]
        server.handle(asked[0])
        assert begun.acquire(timeout=60)
        server.handle(asked[1])
        with pytest.raises(FrameError):
            server.handle(asked[2])
        assert not begun.acquire(timeout=0.2)
        for number in range(2):
            go_on.release()
            answer = msgspec.json.decode(stranger.receive(), type=BrokerAnswer)
            assert (answer.number, answer.why) == (number, "")


MANY, LONG = b"[" + b"0," * 2 * FRAME_NODES + b"0]", b'"' + b"x" * FRAME_BYTES + b"x" * SPARE + b'"'


@pytest.mark.parametrize("data", [MANY, LONG], ids=["many values", "long"])
def test_a_message_that_would_take_too_much_memory_is_refused_unread(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    with closing(Channel(ours)) as channel, closing(Channel(theirs)) as stranger:

        def send() -> None:
            with suppress(OSError):  # the other side does not read the message to its end
                stranger._write(data)

        sending = threading.Thread(target=send)
        sending.start()
        with pytest.raises(FrameError):
            channel.receive()
        channel.close()
        sending.join()


def test_a_message_that_comes_in_small_pieces_takes_no_more_memory_than_another() -> None:
    """Formerly, a message of 64 MiB that came byte by byte took gigabytes of memory."""
    size = 100_000
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # keeps pieces apart

    def trickle() -> None:
        theirs.send(size.to_bytes(4))
        for _ in range(size // 2):
            theirs.send(b"ab")

    with theirs, closing(Channel(ours)) as channel:
        sending = threading.Thread(target=trickle)
        sending.start()
        tracemalloc.start()
        try:
            data = channel.receive()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        sending.join()
    assert data == b"ab" * (size // 2)
    assert peak < 5 * size


def test_a_line_that_is_closed_just_as_its_worker_is_asked_ends_nothing() -> None:
    """Formerly, `close` of a session could raise a ValueError."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    theirs.close()
    channel.close()
    assert not channel.send_at_once(EmptyReply())
    with pytest.raises(EOFError):
        channel.is_quiet(0)


def test_a_program_that_sigpipe_ends_outlives_its_workers() -> None:
    ours, theirs = socket.socketpair()
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        theirs.close()
        with closing(Channel(ours)) as channel, pytest.raises(BrokenPipeError):
            channel.send(EmptyReply())
    finally:
        signal.signal(signal.SIGPIPE, before)


@pytest.mark.parametrize("raw", [b"", b"\0,[{" * 2 * FRAME_NODES], ids=["none", "many marks"])
def test_bytes_pass_behind_the_json_as_they_are(raw: bytes) -> None:
    ours, theirs = socket.socketpair()
    with closing(Channel(ours)) as channel, closing(Channel(theirs)) as other:
        sent = BrokerAnswer(7, raw=raw)
        sending = threading.Thread(target=channel.send, args=(sent,))
        sending.start()
        data = other.receive()
        sending.join()
        assert read(data, msgspec.json.Decoder(BrokerAnswer).decode) == sent
        with pytest.raises(FrameError, match="larger"):
            channel.send(BrokerAnswer(8, raw=bytes(FRAME_BYTES + SPARE)))
