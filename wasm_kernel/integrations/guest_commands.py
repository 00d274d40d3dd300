"""`GuestCommands`: the commands and files of a sandbox, for frameworks that give agents a shell."""

from __future__ import annotations

import contextvars
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from subprocess import CompletedProcess
from typing import Literal, ParamSpec, TypeVar

import anyio

from wasm_kernel import Checkpoint, HostFunction, Sandbox, SandboxResult

OUTPUT_BYTES = 16 * 1024 * 1024
"""The most bytes that a command may print, unless a call says otherwise."""
FILE_BYTES = 100 * 1024 * 1024
"""The most bytes of a file that is read, unless a call says otherwise."""

_TAKE, _GIVE, _CHUNK = "_wasm_kernel_take", "_wasm_kernel_give", 4 * 1024 * 1024
_CELL = "exec({code!r}, {{'given': {given!r}}})"  # in a namespace of its own
_RUN = f"""
import os, subprocess
ran = subprocess.run(given['command'], shell=isinstance(given['command'], str), cwd=given['folder'],
    env=os.environ | given['environment'], input=b''.join({_GIVE}()), capture_output=True)
for name, content in ('stdout', ran.stdout), ('stderr', ran.stderr):
    for at in range(0, len(content), {_CHUNK}):
        {_TAKE}(name, content[at:at + {_CHUNK}])
{_TAKE}('status', str(ran.returncode).encode())
"""
_READ = f"""
with open(given['path'], 'rb') as file:
    while content := file.read({_CHUNK}):
        {_TAKE}('file', content)
"""
_WRITE = f"""
import os
os.makedirs(os.path.dirname(given['path']) or '.', exist_ok=True)
with open(given['path'], 'wb') as file:
    file.writelines({_GIVE}())
"""
_ERRORS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_OS_ERRORS = {each.__name__: each for each in _ERRORS}
P = ParamSpec("P")
T = TypeVar("T")
_MISSING = 127  # the exit status of a shell that does not find a command


class TooLarge(Exception):
    """The output of a command, or a file, is larger than allowed; `begin` is its beginning."""

    def __init__(self, begin: bytes, most: int) -> None:
        super().__init__(f"more than {most:,} bytes")
        self.begin = begin


_dropped: contextvars.ContextVar[Future[None]] = contextvars.ContextVar("_dropped")
"""The future that is done once the caller of the commands has dropped them."""


class GuestCommands:
    """Runs commands in a sandbox, and reads and writes its files as its cells see them.

    Any thread may use it; calls wait for each other. It takes the place of the functions that the
    sandbox offered before.

    Args:
        sandbox: The sandbox, which its maker closes.
        start: The checkpoint that the interpreter goes back to after each command, so that code
            that a command ran can't change what later calls return. Without it the sandbox keeps
            its variables, and such code may falsify later results.
    """

    def __init__(self, sandbox: Sandbox, start: str = "") -> None:
        self._sandbox = sandbox
        self._start_name = start
        self._start: Checkpoint | None = None  # cells can move its name
        self._is_used = False
        self._turn = threading.Lock()
        self._given, self._room = b"", 0
        self._taken: dict[str, bytearray] = {}
        own = (_TAKE, self._take), (_GIVE, self._give)
        sandbox.offer_functions(
            # a command could use up a session's minute for the calls that follow it
            [
                HostFunction(each, name=name, calls_a_minute=1_000_000, recorded=False)
                for name, each in own
            ]
        )

    def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        folder: str = "/app",
        environment: Mapping[str, str] | None = None,
        seconds: float | None = None,
        most_bytes: int = OUTPUT_BYTES,
    ) -> CompletedProcess[bytes]:
        """Runs a script of the shell, or a command with its arguments.

        A command that is not there, and one that ends the guest, are exit statuses, with the reason
        on standard error.

        Raises:
            TimeoutError: it takes longer than `seconds`; its output is lost.
            TooLarge: it prints more than `most_bytes`.
        """
        given = {"folder": folder, "environment": dict(environment or {})}
        given["command"] = command if isinstance(command, str) else [*command]
        with self._turn:
            error = self._call(_RUN, given, stdin, most_bytes, seconds).error
            self._check_room(most_bytes)
            if error is None:
                outputs = self._bytes("stdout"), self._bytes("stderr")
                return CompletedProcess(command, self._status(), *outputs)
        if error.ename == "CellTimeout":
            words = f"the command took longer than {seconds} seconds"
            raise TimeoutError(error.evalue if seconds is None else words)
        status = _MISSING if error.ename == "FileNotFoundError" else 1
        told = f"{error.ename}: {error.evalue}\n".encode()[:most_bytes]
        return CompletedProcess(command, status, b"", told)

    def read(self, path: str, most_bytes: int = FILE_BYTES) -> bytes:
        """Reads a file. Raises `OSError` as `open` does, and `TooLarge`."""
        with self._turn:
            result = self._call(_READ, {"path": path}, b"", most_bytes)
            self._check_room(most_bytes)
            _check(result, path)
            return self._bytes("file")

    def write(self, path: str, content: bytes) -> None:
        """Writes a file, and makes the folders that are missing. Raises `OSError` as `open`."""
        with self._turn:
            _check(self._call(_WRITE, {"path": path}, content, 0), path)

    def _call(
        self, code: str, given: object, stdin: bytes, most: int, seconds: float | None = None
    ) -> SandboxResult:
        if self._start_name and self._start is None:
            self._start = checkpoint_named(self._sandbox, self._start_name)
        elif self._start is not None and self._is_used:
            self._sandbox.restore(self._start)
        self._is_used = code is _RUN
        self._given, self._room, self._taken = stdin, most, {}
        try:
            source = _CELL.format(code=code, given=given)
            cell = self._sandbox.submit(source, store_history=False, timeout_seconds=seconds)
            if (dropped := _dropped.get(None)) is not None:
                dropped.add_done_callback(lambda _: cell.interrupt())
            return cell.wait()
        finally:
            self._given = b""

    def _take(self, name: Literal["stdout", "stderr", "status", "file"], content: bytes) -> None:
        self._taken.setdefault(name, bytearray()).extend(content[: max(self._room, 0)])
        self._room -= len(content)
        if self._room < 0:
            raise OverflowError("that is more than may be taken")

    def _give(self) -> Iterator[bytes]:
        given = self._given
        for at in range(0, len(given), _CHUNK):
            yield given[at : at + _CHUNK]

    def _check_room(self, most: int) -> None:
        if self._room < 0:
            raise TooLarge(self._bytes("stdout") or self._bytes("file"), most)

    def _bytes(self, name: str) -> bytes:
        return bytes(self._taken.get(name, b""))

    def _status(self) -> int:
        status = self._bytes("status")  # it is not ours if a command has changed the guest
        return int(status) if re.fullmatch(rb"-?\d{1,3}", status) else 1


def checkpoint_named(sandbox: Sandbox, name: str) -> Checkpoint:
    """Returns the checkpoint that has a name now."""
    return next(each for each in sandbox.checkpoints() if each.name == name)


async def on_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Does work on a thread of its own, and awaits it; cancelling it interrupts its commands.

    That includes commands that begin later, but those of no other caller.
    """
    dropped, context = Future[None](), contextvars.copy_context()
    context.run(_dropped.set, dropped)
    do, limiter = partial(context.run, partial(work, *args, **kwargs)), anyio.CapacityLimiter(1)
    try:
        return await anyio.to_thread.run_sync(do, abandon_on_cancel=True, limiter=limiter)
    except anyio.get_cancelled_exc_class():
        dropped.set_result(None)
        raise


def _check(result: SandboxResult, path: str) -> None:
    if (error := result.error) is not None:
        raise _OS_ERRORS.get(error.ename, OSError)(f"{path}: {error.evalue}")
