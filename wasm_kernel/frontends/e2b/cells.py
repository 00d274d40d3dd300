"""`CellStream`: the outputs of a cell as lines of JSON, while the cell runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from wasm_kernel.errors import SandboxClosed, SessionInUse
from wasm_kernel.frontends.e2b.calls import ApiCall
from wasm_kernel.frontends.e2b.sandbox import CodeContext
from wasm_kernel.frontends.http.callers import ENDING
from wasm_kernel.frontends.http.serving import CutOff
from wasm_kernel.guests import protocol
from wasm_kernel.result import CellError, SandboxResult

_BEGIN_SECONDS = 1.0  # without an output; some clients wait a minute for the head of an answer
_SAY_SECONDS = 10.0  # the least between two sentences about a slow start
_KINDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "application/vnd.e2b.chart+json": "chart",
    "application/vnd.e2b.data+json": "data",
}
"""The clients' names of MIME types; all others are in `extra`."""
_QUOTES = ("'", '"')
_SLOW = CellError(
    "ClientTooSlow",
    "The cell was interrupted: its outputs wait, as its client does not read them fast enough.",
)
_STOPPED = CellError("KeyboardInterrupt", "It was ended by a signal.")

Line = dict[str, Any]


class CellStream(Response):
    """Runs a cell in a context of a sandbox, and sends its outputs as they happen.

    A client that leaves interrupts the cell; if the sandbox is deleted, the answer is cut off.
    Outputs that were not sent yet count towards the memory of the client. `is_elsewhere` becomes
    true if another server has the session awake.
    """

    media_type = "application/x-ndjson"

    def __init__(self, call: ApiCall, context: CodeContext, code: str, **options: Any) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._sandbox, self._lease, self._metrics = call.sandbox, call.lease, call.metrics
        self._context, self._code, self._options = context, code, options
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._has_error = self._is_slow = self.is_elsewhere = False
        self._says_from = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the cell. Raises errors that come before the first line."""
        session = self._context.session
        running = session.execute(
            self._code, on_output=self._heard, progress=self._say, **self._options
        )
        self._cell = asyncio.ensure_future(running)
        self._cell.add_done_callback(lambda _: self._lines.put_nowait(None))
        sending = asyncio.ensure_future(self._send_all(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            leaving.cancel()
            sending.cancel()
            if not self._cell.done():
                self._cell.cancel()
                self._metrics.cell_cancelled()
            await asyncio.wait((self._cell, sending, leaving))

    async def _send_all(self, send: Send) -> None:
        line = await self._first()
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while (line := line or await self._lines.get()) is not None:
            await send({"type": "http.response.body", "body": line, "more_body": True})
            self._lease.give_back(len(line))
            line = None
        last = self._ending(self._result())
        if self._sandbox.is_gone:
            raise CutOff  # as in E2B: the clients then ask whether the sandbox runs
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _first(self) -> bytes | None:
        """Returns the first line, or None; raises the error of a cell that ends without any."""
        try:
            async with asyncio.timeout(_BEGIN_SECONDS):
                line = await self._lines.get()
        except TimeoutError:
            return None
        if line is None:
            self._lines.put_nowait(None)
            if not self._cell.cancelled():
                self._cell.result()
        return line

    def _result(self) -> SandboxResult | CellError:
        """Returns the result of the cell, or the reason why it has none."""
        if self._cell.cancelled():
            return _SLOW if self._is_slow else _STOPPED
        problem = self._cell.exception()
        if problem is not None:
            self.is_elsewhere = isinstance(problem, SessionInUse)
            return CellError(type(problem).__name__, str(problem))
        result: SandboxResult = self._cell.result()
        if not result.success and self._context.session.sync.worker.why_closed == ENDING:
            return CellError(SandboxClosed.__name__, ENDING)
        self._metrics.cell_ended(result)
        return result

    def _ending(self, result: SandboxResult | CellError) -> bytes:
        """Returns the lines after the cell's own outputs."""
        if isinstance(result, CellError):
            return _encoded(_error(result))
        lines = []
        if result.error is not None and not self._has_error:
            lines.append(_error(result.error))
        count = result.reply.get("execution_count")
        if isinstance(count, int):
            lines.append({"type": "number_of_executions", "execution_count": count})
        return b"".join(map(_encoded, lines))

    def _piece(self, output: protocol.Output) -> bytes | None:
        """Returns an output as the client reads it; None for one that it has no name for."""
        line = _line_of(output)
        return None if line is None else _encoded(line)

    def _heard(self, output: protocol.Output) -> None:
        self._has_error |= isinstance(output, protocol.ErrorOutput)
        piece = self._piece(output)
        if piece is None or self._is_slow:
            return
        if self._lease.reserve(len(piece)):
            self._lines.put_nowait(piece)
        else:
            self._is_slow = True
            self.stop()

    def _say(self, text: str) -> None:
        """Tells the client now and then, on standard error, why its cell does not begin yet."""
        if time.monotonic() > self._says_from:
            self._says_from = time.monotonic() + _SAY_SECONDS
            self._heard(protocol.Stream("stderr", f"[wasm-kernel] {text}\n"))

    def stop(self) -> None:
        """Interrupts the cell."""
        self._cell.cancel()


async def _left(receive: Receive) -> None:
    """Returns when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _line_of(output: protocol.Output) -> Line | None:
    """Returns an output as the clients read it; None for one that they have no name for."""
    match output:
        case protocol.Stream(name=name, text=text):
            return {"type": name, "text": text, "timestamp": time.time_ns()}
        case protocol.Result(data=data):
            return _shown(data, is_value=True)
        case protocol.UpdateDisplay():
            return None
        case protocol.Display(data=data):
            return _shown(data, is_value=False)
        case protocol.ErrorOutput():
            return _error(CellError(output.ename, output.evalue, output.traceback))
    return None


def _shown(data: Mapping[str, Any], *, is_value: bool) -> Line:
    named = {name: data[kind] for kind, name in _KINDS.items() if kind in data}
    text = named.get("text")
    if isinstance(text, str) and len(text) > 1 and text[0] in _QUOTES and text[-1] == text[0]:
        named["text"] = text[1:-1]  # as E2B's server shows texts
    extra = {kind: value for kind, value in data.items() if kind not in _KINDS}
    return {"type": "result", "is_main_result": is_value, **named, "extra": extra}


def _error(error: CellError) -> Line:
    trace = "\n".join(error.traceback) or f"{error.ename}: {error.evalue}"
    return {"type": "error", "name": error.ename, "value": error.evalue, "traceback": trace}


def _encoded(line: Line) -> bytes:
    try:
        return msgspec.json.encode(line) + b"\n"
    except UnicodeEncodeError:  # guests may show lone surrogates, which JSON can escape
        return json.dumps(line).encode() + b"\n"
