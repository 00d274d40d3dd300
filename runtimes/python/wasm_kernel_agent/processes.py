"""`subprocess`, `os.system` and `os.popen` over the shell: a command has ended when they return."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, Any

from wasm_kernel_agent.shell_commands import NOT_FOUND, UNKNOWN, command_of, run_script
from wasm_kernel_agent.shell_options import Kept


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
        self._by_shell = shell
        self._script = command_of(args, shell=shell)
        self._place: dict[str, Any] = {"folder": os.fspath(cwd) if cwd else None, "env": env}
        self.stdin = self.stdout = self.stderr = None
        if stdin == subprocess.PIPE:
            self.stdin = self._opened(Kept())
        else:
            self._run(_bytes_of(stdin))

    def _opened(self, data: io.BytesIO) -> IO[Any]:
        if not self._is_text:
            return data
        return io.TextIOWrapper(
            data, encoding=self._encoding, errors=self._errors, write_through=True
        )

    def _run(self, stdin: bytes) -> None:
        finished = run_script(self._script, stdin, **self._place)
        if finished.status == NOT_FOUND and not self._by_shell:
            name = self._script.split(maxsplit=1)[0]
            if name in UNKNOWN.findall(finished.stderr):  # and not only a command of its script
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        self.returncode = finished.status
        found = {"stdout": finished.output, "stderr": finished.errors}
        if self._targets["stderr"] == subprocess.STDOUT:
            found = {"stdout": finished.output + finished.errors, "stderr": b""}
        for name, data in found.items():
            self._deliver(name, data)

    def _deliver(self, name: str, data: bytes) -> None:
        target = self._targets[name]
        if target == subprocess.PIPE:
            setattr(self, name, self._opened(io.BytesIO(data)))
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
        if self.returncode is None and self.stdin is not None:
            held: Any = getattr(self.stdin, "buffer", self.stdin)
            data = held.getvalue()
            self.stdin = None
            self._run(data)

    def communicate(
        self,
        input: Any = None,  # noqa: A002 - as Popen's
        timeout: float | None = None,
    ) -> tuple[Any, Any]:
        """Returns the output and the errors; hands over the input first."""
        if input and self.stdin is not None:
            self.stdin.write(input)
        self._finish()
        read = (None if each is None else each.read() for each in (self.stdout, self.stderr))
        return next(read), next(read)

    def poll(self) -> int | None:
        """Returns the exit status."""
        self._finish()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit status."""
        return self.poll() or 0

    def send_signal(self, sig: int) -> None:
        """Does nothing: the command has ended."""

    terminate = kill = lambda self: None

    def __exit__(self, *_: object) -> None:
        self._finish()

    def __del__(self) -> None:
        """Does nothing: there is no process to wait for."""


def _bytes_of(stdin: Any) -> bytes:
    if stdin is None or isinstance(stdin, int):
        return b""
    data = stdin.read()
    return data if isinstance(data, bytes) else data.encode()


def system(command: Any) -> int:
    """`os.system`: runs a script and prints its output; returns its status as `wait` would."""
    return subprocess.call(command, shell=True) << 8


def install() -> None:
    """Replaces the functions that would start a process; `os.popen` calls one of them."""
    module: Any = subprocess
    module.Popen = FinishedProcess
    os.system = system
