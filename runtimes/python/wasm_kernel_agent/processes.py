"""`subprocess`, `os.system` and `os.popen` over the shell: a command has ended when they return."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache, wraps
from typing import IO, Any, NamedTuple

from wasm_kernel_agent.shell_commands import (
    NOT_FOUND,
    UNKNOWN,
    command_of,
    missing_command,
    run_script,
)
from wasm_kernel_agent.shell_options import Kept

_OF_THE_SHELL = frozenset(("/bin", "/usr/bin"))
"""Folders that are there for commands alone."""


class _Output(io.RawIOBase):
    """A pipe from a command, which runs when the pipe is read if it has waited for its input."""

    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__()
        self._run, self.data = run, io.BytesIO()

    def readable(self) -> bool:
        """Returns True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Reads what fits into a buffer; returns the number of its bytes."""
        self._run()
        return self.data.readinto(buffer)


class FinishedProcess(subprocess.Popen):  # type: ignore[type-arg]
    """A `Popen` whose command ran to its end when it was made, or when it got its input."""

    def __init__(  # noqa: PLR0917 - as Popen's
        self,
        args: Any,
        bufsize: int = -1,
        executable: Any = None,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        *,
        shell: bool = False,
        cwd: Any = None,
        env: Mapping[str, str] | None = None,
        universal_newlines: bool | None = None,
        encoding: str | None = None,
        errors: str | None = None,
        text: bool | None = None,
        **others: Any,
    ) -> None:
        self.args, self.pid, self.returncode = args, 0, None
        self._is_text = bool(encoding or errors or text or universal_newlines)
        self._encoding, self._errors = encoding or "utf-8", errors or "strict"
        self._targets = {"stdout": stdout, "stderr": stderr}
        self._pipes = {name: _Output(self._finish) for name in self._targets}
        self._by_shell = shell
        if executable is not None and not shell:  # there is only one shell
            args = [executable, *([] if isinstance(args, str | bytes | os.PathLike) else args[1:])]
        self._script = command_of(args, shell=shell)
        self._place: dict[str, Any] = {"folder": os.fsdecode(cwd) if cwd else None, "env": env}
        if cwd and os.path.normpath(os.fsdecode(cwd)) not in _OF_THE_SHELL:
            os.scandir(cwd).close()  # an error says that the folder is not there
        self.stdin = self.stdout = self.stderr = None
        for name, target in self._targets.items():
            if target == subprocess.PIPE:
                setattr(self, name, self._text_or_bytes(io.BufferedReader(self._pipes[name])))
        self._input = Kept()
        if stdin == subprocess.PIPE:
            self.stdin = self._text_or_bytes(self._input)
        else:
            self._run(_bytes_of(stdin))

    def _text_or_bytes(self, data: IO[bytes]) -> IO[Any]:
        if not self._is_text:
            return data
        return io.TextIOWrapper(
            data, encoding=self._encoding, errors=self._errors, write_through=True
        )

    def _run(self, stdin: bytes) -> None:
        began = time.monotonic()
        finished = run_script(self._script, stdin, **self._place)
        self.returncode = finished.status
        self._ended = time.monotonic()
        self._seconds = self._ended - began
        if finished.status == NOT_FOUND and not self._by_shell:
            name = self._script.split(maxsplit=1)[0]
            absent = f"bash: {name}: {os.strerror(errno.ENOENT)}\n"
            # the command itself is missing, and not only a command in its script
            if name in UNKNOWN.findall(finished.stderr) or finished.stderr == absent:
                raise missing_command(name)
        found = {"stdout": finished.output, "stderr": finished.errors}
        if self._targets["stderr"] == subprocess.STDOUT:
            found = {"stdout": finished.output + finished.errors, "stderr": b""}
        for name, data in found.items():
            self._deliver(name, data)

    def _deliver(self, name: str, data: bytes) -> None:
        target = self._targets[name]
        if target == subprocess.PIPE:
            self._pipes[name].data = io.BytesIO(data)
        elif target is None:
            getattr(sys, name).write(data.decode("utf-8", "replace"))
        elif isinstance(target, int):
            if target >= 0:
                os.write(target, data)
        else:
            target.flush()
            os.write(target.fileno(), data)

    def _finish(self) -> None:
        """Runs a command that waits for its input."""
        if self.returncode is None and not self._input.closed:
            data = self._input.getvalue()
            io.BytesIO.close(self._input)
            self._run(data)

    def _end_within(self, timeout: float | None) -> None:
        """Runs a command that waits for its input. A command can't be ended: it ends first."""
        self._finish()
        if timeout is not None and self._seconds - (time.monotonic() - self._ended) > timeout:
            raise subprocess.TimeoutExpired(self.args, timeout)

    def communicate(
        self,
        input: Any = None,  # noqa: A002 - as Popen's
        timeout: float | None = None,
    ) -> tuple[Any, Any]:
        """Returns the output and the errors; hands over the input first."""
        if input and self.stdin is not None and not self.stdin.closed:
            self.stdin.write(input)
        self._end_within(timeout)
        read = (None if each is None else each.read() for each in (self.stdout, self.stderr))
        return next(read), next(read)

    def poll(self) -> int | None:
        """Returns the exit status."""
        self._finish()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit status."""
        self._end_within(timeout)
        return self.returncode or 0

    def send_signal(self, sig: int) -> None:
        """Does nothing: the command has ended."""

    terminate = kill = lambda self: None

    def __exit__(self, *_: object) -> None:
        self._finish()

    def __del__(self) -> None:
        """Does nothing: there is no process to wait for."""


def _bytes_of(stdin: Any) -> bytes:
    if isinstance(stdin, int) and stdin >= 0:
        stdin = open(stdin, "rb", closefd=False)  # noqa: SIM115 - a descriptor
    data = b"" if stdin is None or isinstance(stdin, int) else stdin.read()
    return data if isinstance(data, bytes) else data.encode()


def system(command: Any) -> int:
    """`os.system`: runs a script and prints its output; returns its status as `wait` would."""
    return subprocess.call(command, shell=True) << 8


@cache
def _commands() -> frozenset[str]:
    """The names of the shell's commands. No files stand for them."""
    return frozenset(run_script("ls /usr/bin").output.decode().split())


def _which(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def which(cmd: Any, mode: int = os.F_OK | os.X_OK, path: Any = None) -> Any:
        found = original(cmd, mode, path)
        if found is None and path is None and isinstance(cmd, str):
            name = cmd.removeprefix("/usr").removeprefix("/bin/")
            return f"/usr/bin/{name}" if name in _commands() else None
        return found

    return which


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


def _disk_usage(path: Any) -> _Usage:
    """Returns the limit, the used and the free bytes of files, as `df` shows them."""
    os.stat(path)  # noqa: PTH116 - a descriptor has no `Path`
    return _Usage(*(int(number) * 1024 for number in run_script("df").output.split()[-5:-2]))


def install() -> None:
    """Replaces the functions that start or find programs; `os.popen` calls one of them."""
    module: Any = subprocess
    module.Popen = FinishedProcess
    module = shutil
    module.which, module.disk_usage = _which(shutil.which), _disk_usage
    os.system = system
    module = os
    module.waitstatus_to_exitcode = lambda status: status >> 8
