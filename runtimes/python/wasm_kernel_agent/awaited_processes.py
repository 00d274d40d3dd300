"""`asyncio.create_subprocess_exec` and `create_subprocess_shell`, over `subprocess`."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterable
from typing import IO, Any

_LIMIT = 2**16  # bytes of a line, as asyncio's


class _CommandOutput(asyncio.StreamReader):
    """The output of a command, which runs when it is read if it has waited for its input."""

    def __init__(self, pipe: IO[bytes], limit: int) -> None:
        super().__init__(limit)
        self._pipe = pipe

    async def _wait_for_data(self, func_name: str) -> None:
        self.feed_data(self._pipe.read())
        self.feed_eof()


class _Writer:
    """The input of a command, as a `StreamWriter`."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self.write = pipe.write
        self._is_closing = False

    def writelines(self, data: Iterable[bytes]) -> None:
        """Writes several pieces."""
        self.write(b"".join(data))

    def close(self) -> None:
        """Ends the input."""
        self._is_closing = True

    write_eof = close

    def can_write_eof(self) -> bool:
        """Returns True."""
        return True

    def is_closing(self) -> bool:
        """Returns whether the input was ended."""
        return self._is_closing

    async def drain(self) -> None:
        """Does nothing: there is always room."""

    wait_closed = drain


class AwaitedProcess:
    """A command of `subprocess`, with the interface of `asyncio.subprocess.Process`."""

    def __init__(self, process: subprocess.Popen[bytes], limit: int) -> None:
        self._process, self.pid = process, process.pid
        self.stdin = None if process.stdin is None else _Writer(process.stdin)
        pipes = (process.stdout, process.stderr)
        self.stdout, self.stderr = (each and _CommandOutput(each, limit) for each in pipes)
        self.send_signal, self.terminate = process.send_signal, process.terminate
        self.kill, self.communicate = process.kill, _awaited(process.communicate)
        self.wait = _awaited(process.wait)

    @property
    def returncode(self) -> int | None:
        """The exit status; None while the command waits for its input."""
        return self._process.returncode


def _awaited(call: Any) -> Any:
    async def awaited(*args: Any, **named: Any) -> Any:
        return call(*args, **named)

    return awaited


async def _exec(program: Any, *args: Any, limit: int = _LIMIT, **options: Any) -> AwaitedProcess:
    return AwaitedProcess(subprocess.Popen([program, *args], **options), limit)


async def _shell(cmd: str | bytes, *, limit: int = _LIMIT, **options: Any) -> AwaitedProcess:
    return AwaitedProcess(subprocess.Popen(cmd, shell=True, **options), limit)


def install() -> None:
    """Replaces asyncio's functions, whose event loop here starts no process."""
    modules: tuple[Any, ...] = (asyncio, asyncio.subprocess)
    for module in modules:
        module.create_subprocess_exec, module.create_subprocess_shell = _exec, _shell
