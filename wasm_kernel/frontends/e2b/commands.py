"""`CommandStream`: a script of the shell, with its output as messages of Connect's streams.

Scripts run in the sandbox's own shell, in turns with its cells, and begin no process.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import re
import struct
from base64 import b64encode

import msgspec
from starlette.types import Receive, Scope, Send

from wasm_kernel.frontends.e2b.calls import ApiCall
from wasm_kernel.frontends.e2b.cells import CellStream
from wasm_kernel.frontends.e2b.files import guest_path
from wasm_kernel.frontends.e2b.messages import ProcessConfig, StartRequest
from wasm_kernel.frontends.e2b.sandbox import HOME
from wasm_kernel.frontends.http.limits import Refusal
from wasm_kernel.guests import protocol
from wasm_kernel.kernels.messages import Expression
from wasm_kernel.result import CellError, SandboxResult

STREAM = "application/connect+json"
_HEAD = struct.Struct(">BI")  # the head of each message: its flags and its length
_LAST = 2  # the flag of the message that ends a stream
_INTERRUPTED = 130  # a shell's status for a command that was interrupted
_STATUS, _NUMBER = "status", re.compile(r"\d{1,9}", re.ASCII)
_SHELLS = ("bash", "sh")
_LATE = "The command was ended, as its time was over"
_RUN = "__import__('subprocess').run({args!r}, shell={by_shell}, cwd={cwd!r}).returncode"


class CommandStream(CellStream):
    """Runs a command in a sandbox, and sends its output; `stop` ends it.

    After its `seconds` it ends with the error that the clients read as their time-out.
    """

    media_type = STREAM

    def __init__(self, call: ApiCall, asked: StartRequest, seconds: float | None) -> None:
        main = next(iter(call.sandbox.contexts.values()))
        status, env = {_STATUS: _expression(asked.process)}, asked.process.envs
        super().__init__(call, main, "", store_history=False, user_expressions=status, env=env)
        self._number = next(call.sandbox.numbers)
        call.sandbox.commands[self._number] = self.stop
        self._seconds, self._is_late = seconds, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the command."""
        timer = None
        try:
            begun = _event(start={"pid": self._number})
            if not self._lease.reserve(len(begun)):
                raise Refusal(503, "Too much output waits for you to read it.", "reply_bytes")
            self._lines.put_nowait(begun)
            if self._seconds is not None:
                timer = asyncio.get_running_loop().call_later(self._seconds, self._time_out)
            await super().__call__(scope, receive, send)
        finally:
            self._sandbox.commands.pop(self._number, None)
            if timer is not None:
                timer.cancel()

    def _time_out(self) -> None:
        self._is_late = True
        self.stop()

    def _piece(self, output: protocol.Output) -> bytes | None:
        if not isinstance(output, protocol.Stream):
            return None
        return _data(output.name, output.text)

    def _ending(self, result: SandboxResult | CellError) -> bytes:
        if self._is_late:
            return refusing(_LATE, "deadline_exceeded")
        error = result if isinstance(result, CellError) else result.error
        told = Expression("ok")
        if error is None and isinstance(result, SandboxResult):
            with contextlib.suppress(KeyError, ValueError):
                told = Expression.found(result.reply, _STATUS)
        if told.status != "ok":
            error = CellError(told.ename or "Error", told.evalue)
        if error is None:
            text = told.data.text
            status, before = (int(text) if _NUMBER.fullmatch(text) else 1), b""
        else:
            status = _INTERRUPTED if error.ename == "KeyboardInterrupt" else 1
            before = _data("stderr", f"{error.ename}: {error.evalue}\n")
        end = {"exitCode": status, "exited": True, "status": f"exit status {status}"}
        return before + _event(end=end) + message({}, _LAST)


def message(content: object, flags: int = 0) -> bytes:
    """Returns a message of a stream."""
    encoded = msgspec.json.encode(content)
    return _HEAD.pack(flags, len(encoded)) + encoded


def refusing(words: str, code: str = "unimplemented") -> bytes:
    """Returns the message that ends a stream with an error."""
    return message({"error": {"code": code, "message": words}}, _LAST)


def start_of(content: bytearray) -> StartRequest:
    """Returns the one message of a request; raises `Refusal`, or `DecodeError`."""
    if len(content) < _HEAD.size or _HEAD.unpack_from(content)[0]:
        raise Refusal(400, "A command is one message, which is not compressed.")
    return msgspec.json.decode(content[_HEAD.size :], type=StartRequest)


def _event(**event: object) -> bytes:
    return message({"event": event})


def _data(name: str, text: str) -> bytes:
    return _event(data={name: b64encode(text.encode("utf-8", "replace")).decode()})


def _expression(asked: ProcessConfig) -> str:
    """Returns the Python that runs a command, and whose value is its exit status."""
    cwd = guest_path(asked.cwd or HOME)
    words = [posixpath.basename(asked.cmd), *asked.args]
    if words[0] in _SHELLS and "-c" in asked.args[:-1]:  # as the clients run a script
        script = asked.args[asked.args.index("-c") + 1]
        return _RUN.format(args=script, by_shell=True, cwd=cwd)
    return _RUN.format(args=words, by_shell=False, cwd=cwd)
