"""Runs a cell for a client: with progress while it runs, and an interrupt if the client cancels."""

from __future__ import annotations

import asyncio
import time

import anyio
from mcp.server.mcpserver import Context

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.frontends.mcp import variables
from wasm_kernel.frontends.mcp.sessions import AgentSession
from wasm_kernel.guests.protocol import Output, Stream
from wasm_kernel.kernels.messages import count_of
from wasm_kernel.outputs import terminal
from wasm_kernel.result import SandboxResult

TELL_SECONDS = 1.0  # some clients give up after ten seconds of silence
_LINE_CHARACTERS = 200
_HELD_CHARACTERS = 4096
_LEFT = "The cell was not run: its client left while it waited."


class ClientLeft(WasmKernelError):
    """The client left while its cell waited for another one; the cell was not run."""


class LastLine:
    """The last line of a cell's output. It is only computed when it is sent, once a second."""

    def __init__(self) -> None:
        self._held = ""

    def heard(self, output: Output) -> None:
        """Takes an output of the cell."""
        if isinstance(output, Stream):
            self._held = (self._held + output.text)[-_HELD_CHARACTERS:]

    def say(self, text: str) -> None:
        """Takes a sentence about a start that takes long."""
        self._held = f"{text}\n"

    @property
    def text(self) -> str:
        """The line; empty if there is none."""
        lines = [line.strip() for line in terminal.clean(self._held).splitlines() if line.strip()]
        return lines[-1][-_LINE_CHARACTERS:] if lines else ""


async def run_cell(
    session: AgentSession, code: str, timeout_seconds: float | None, ctx: Context
) -> SandboxResult:
    """Runs a cell and returns its result, whatever the code does. Tells the client how far it is.

    Cancelling it interrupts the cell and waits for its end. A cell whose client has left does not
    begin; one that runs goes on, as its effects stay. Raises `ClientLeft` then, and `LimitReached`
    if the session's queue is full, or the session can't be woken.
    """
    line, sandbox = LastLine(), session.sandbox
    # a task of its own: anyio repeats a cancellation, and each would interrupt the cell again
    cell = asyncio.ensure_future(
        sandbox.execute(
            code,
            on_output=line.heard,
            progress=line.say,
            timeout_seconds=timeout_seconds,
            user_expressions=variables.expressions(session.language),
        )
    )
    session.running.append(cell)
    began = time.monotonic()
    try:
        while not (await asyncio.wait((cell,), timeout=TELL_SECONDS))[0]:
            request, seconds = ctx.request_context.request, time.monotonic() - began
            waits = cell is not session.running[0]
            if waits and request is not None and await request.is_disconnected():
                raise ClientLeft(_LEFT)
            words = f"{seconds:.0f} s: {line.text}".removesuffix(": ")
            await ctx.report_progress(seconds, message=words)
    except (asyncio.CancelledError, ClientLeft):
        cell.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait((cell,))
        session.remember(0, code, "cancelled by the client", time.monotonic() - began)
        session.seen = variables.read({}, session.seen)
        raise
    finally:
        session.running.remove(cell)
        session.used = time.time()
    result = cell.result()
    outcome = "ok" if result.success else result.error.ename if result.error else "failed"
    session.remember(count_of(result.reply) or 0, code, outcome[:100], result.duration)
    session.seen = variables.read(result.reply, session.seen)
    return result
