"""Files, connections and system calls that a process gave up are refused in every thread."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.linux.inside import TRIED, needs_walls, said_by
from wasm_kernel.linux import seccomp

_SHUT = f"""{TRIED}
import ctypes, os, socket, subprocess, sys, tempfile, threading
from wasm_kernel.linux.confinement import Confinement

def shared():
    if ctypes.CDLL(None, use_errno=True).shmget(0, 4096, 0o1600) == -1:
        raise OSError(ctypes.get_errno(), "shmget")

file, version = tempfile.NamedTemporaryFile(), [sys.executable, "--version"]
name, fd = file.name, file.fileno()
"""
REFUSED = "PermissionError"
CALLS = {
    "socket.socket()": REFUSED,
    "socket.socket(socket.AF_UNIX)": REFUSED,
    "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)": REFUSED,
    "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)": REFUSED,
    "socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)": REFUSED,
    "os.fork()": REFUSED,
    "os.execv(sys.executable, version)": REFUSED,
    "subprocess.run(version)": REFUSED,
    "os.posix_spawn(sys.executable, version, {})": REFUSED,
    "os.memfd_create('of nobody')": REFUSED,
    "shared()": REFUSED,
    "os.chmod(name, 0o777)": REFUSED,
    "os.chmod(name, 0o777, dir_fd=fd)": REFUSED,
    "os.chown(name, os.getuid(), os.getgid())": REFUSED,
    "os.setxattr(name, 'user.x', b'')": REFUSED,
    "os.utime(name)": REFUSED,
    "os.utime(name, follow_symlinks=False)": REFUSED,
    "os.utime(fd)": "done",
    "os.fchmod(fd, 0o600)": "done",
}


@needs_walls
def test_calls_are_refused_also_in_a_thread_that_was_there_before() -> None:
    tries = "\n    ".join(f"print(tried(lambda: {call}))" for call in CALLS)
    code = f"""{_SHUT}
closed = threading.Event()
def try_all():
    closed.wait()
    {tries}
thread = threading.Thread(target=try_all)
thread.start()
Confinement("required").close_calls()
closed.set()
thread.join()
try_all()
"""
    said = said_by(code)
    for answers in (said[: len(CALLS)], said[len(CALLS) :]):
        assert dict(zip(CALLS, answers, strict=True)) == CALLS


@needs_walls
def test_threads_pairs_of_sockets_and_open_connections_go_on() -> None:
    code = f"""{_SHUT}
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
Confinement("required").close_calls()
def talk():
    near, _ = server.accept()
    near.send(b"hello")
thread = threading.Thread(target=talk)
thread.start()
print(client.recv(5), len(socket.socketpair()))
thread.join()
"""
    assert said_by(code) == ["b'hello' 2"]


@needs_walls
def test_a_superuser_keeps_no_right_but_those_to_files() -> None:
    """Formerly, an attacker in a process of root could restart the machine."""
    code = """
from wasm_kernel.linux.confinement import Confinement, KeptPaths
Confinement("required").close_files(KeptPaths())
for line in open("/proc/self/status"):
    if line.startswith(("CapPrm", "CapEff")): print(int(line.split()[1], 16) & ~0b11011)
"""
    assert said_by(code) == ["0", "0"]


@needs_walls
def test_no_other_process_is_signalled_or_changed() -> None:
    code = f"""{_SHUT}
import resource, signal
own, other = os.getpid(), os.getppid()
handle = os.pidfd_open(other)
SCHED = os.sched_param(0)
TRIES = (
    lambda: os.kill(other, 0),
    lambda: os.kill(0, 0),
    lambda: os.kill(-other, 0),
    lambda: signal.pidfd_send_signal(handle, 0),
    lambda: resource.prlimit(other, resource.RLIMIT_CPU, (1, 1)),
    lambda: os.setpriority(os.PRIO_PROCESS, other, 9),
)
OWN = (
    lambda: os.kill(own, 0),
    lambda: signal.raise_signal(signal.SIGCHLD),
    lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    lambda: os.sched_setscheduler(own, os.SCHED_OTHER, SCHED),
)
from wasm_kernel.linux import landlock, seccomp
landlock.no_new_privileges()
seccomp.refuse()  # alone, as it is where Landlock knows nothing of signals
for one in (*TRIES, *OWN): print(tried(one))
"""
    assert said_by(code) == ["PermissionError"] * 6 + ["done"] * 4


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_jump_of_the_program_lands_within_it(machine: str) -> None:
    code = seccomp.program(machine, 4711)
    steps = list(struct.iter_unpack("=HBBI", code))
    last = len(steps) - 1
    jumps = [
        at + 1 + by for at, (op, yes, no, _) in enumerate(steps) if op & 7 == 5 for by in (yes, no)
    ]
    assert jumps
    assert max(jumps) <= last
    assert steps[last][3] == 0x7FFF0000


_FILES_SHUT = f"""{TRIED}
import os, socket, sys, threading
from pathlib import Path
from wasm_kernel.linux.confinement import Confinement, KeptPaths

kept, other, secret = map(Path, sys.argv[1:4])
listening = socket.create_server(("127.0.0.1", 0))
Confinement("required").close_files(KeptPaths(writable=(kept,), readable=(other,)))
"""


def folders(root: Path) -> list[Path]:
    made = [root / name for name in ("kept", "read", "secret")]
    for folder in made:
        folder.mkdir()
        (folder / "file").write_text("text")
    return made


FILE_CALLS = {
    "(kept / 'new').write_text('x')": "done",
    "(kept / 'deep').mkdir()": "done",
    "(kept / 'new').rename(kept / 'deep' / 'new')": "done",
    "(kept / 'deep' / 'link').symlink_to('new')": "done",
    "os.truncate(kept / 'deep' / 'new', 0)": "done",
    "(kept / 'deep' / 'new').unlink()": "done",
    "__import__('xml.dom.minidom')": "done",
    "(other / 'file').read_text()": "done",
    "list(other.iterdir())": "done",
    "(other / 'file').write_text('x')": REFUSED,
    "(other / 'file').unlink()": REFUSED,
    "(kept / 'file').rename(other / 'stolen')": REFUSED,
    "(secret / 'file').read_text()": REFUSED,
    "list(secret.iterdir())": REFUSED,
    "(secret / 'file').write_text('x')": REFUSED,
    "os.truncate(secret / 'file', 0)": REFUSED,
    "(kept / 'link').symlink_to(secret / 'file')": "done",
    "(kept / 'link').read_text()": REFUSED,
    "os.link(secret / 'file', kept / 'hard')": "OSError",
    "list(Path.home().iterdir())": REFUSED,
    "socket.create_connection(listening.getsockname())": REFUSED,
    "os.kill(os.getppid(), 0)": REFUSED,
    "open(f'/proc/{os.getppid()}/environ').read()": REFUSED,
}


@needs_walls
def test_kept_paths_alone_can_be_reached_also_by_later_threads(tmp_path: Path) -> None:
    code = _FILES_SHUT + "\n".join(f"print(tried(lambda: {call}))" for call in FILE_CALLS)
    places = folders(tmp_path)
    assert dict(zip(FILE_CALLS, said_by(code, *places), strict=True)) == FILE_CALLS
    ran = "threading.Thread(target=lambda: print(tried((secret / 'file').read_text)))"
    code = f"{_FILES_SHUT}\nthread = {ran}\nthread.start()\nthread.join()"
    assert said_by(code, *places) == ["PermissionError"]
