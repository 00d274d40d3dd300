"""`FakeSandbox`: a sandbox without any wall, for tests of front ends.

It runs code with `exec` in this very process, on a thread. NOTHING IS ISOLATED: never give it code
that you would not run yourself.

Code finds `print`, `input`, `display(data)`, `update(data)`, `result(data)`, `clear()`, `comm(kind,
comm_id, data)`, `terminate()` and `payload(item)` in its namespace, and `stderr` to print to.
"""

from __future__ import annotations

import ctypes
import io
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from wasm_kernel.engine.thread import GuestThread
from wasm_kernel.errors import SandboxClosed
from wasm_kernel.execution.interfaces import (
    Cell,
    InputInterrupted,
    InputRefused,
    Listener,
    NoListener,
    OfferedMessage,
    ProcessUsage,
)
from wasm_kernel.guests import protocol
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import CellError, CommMessage, SandboxResult
from wasm_kernel.service import messages

Gate = Callable[[Callable[[str], None]], None]


class FakeSandbox:
    """Looks like a `Sandbox` to a kernel; see the module's warning.

    Args:
        workspace: A folder; the code is not kept in it.
        policy: Kept, and not enforced.
        gate: Stands for a slow start: called on the guest's thread before the first cell, with the
            progress that `start` was given.
    """

    def __init__(
        self,
        workspace: Path,
        policy: ExecutionPolicy | None = None,
        *,
        gate: Gate | None = None,
    ) -> None:
        self.workspace = workspace
        self.policy = policy or ExecutionPolicy()
        self.interrupted = False
        self._gate = gate or (lambda progress: None)
        self._thread = GuestThread("fake guest")
        self._started: Future[None] | None = None
        self._waiting: set[Future[SandboxResult]] = set()
        self._running: int | None = None
        self._guard = threading.Lock()
        self.next_count = 1
        self._namespace: dict[str, Any] = {"__name__": "__main__"}
        self._closed = False

    def start(self, progress: Callable[[str], None] | None = None) -> Future[None]:
        """As `Sandbox.start`."""
        if self._closed:
            raise SandboxClosed("this sandbox is closed; make another one")
        if self._started is None:
            tell = progress or (lambda text: None)
            self._started = self._thread.submit(lambda: self._gate(tell))
        return self._started

    def queue(self, cell: Cell, listener: Listener | None = None) -> Future[SandboxResult]:
        """As `Sandbox.queue`."""
        started = self.start()
        running = _Cell(self, cell, listener or NoListener())
        outer: Future[SandboxResult] = Future()
        with self._guard:
            self._waiting.add(outer)

        def run() -> None:
            problem = started.exception()
            if problem is not None:
                outer.set_exception(problem)
                return
            with self._guard:
                if outer not in self._waiting:
                    return
                self._waiting.discard(outer)
                self._running = threading.get_ident()
                self.interrupted = False
            outer.set_result(running.run())

        self._thread.submit(run)
        return outer

    def query(self, request: Mapping[str, Any]) -> Future[Mapping[str, Any]]:
        """Answers the request with `answers[op]` of the namespace, if that
        exists.
        """
        self.start()

        def answer() -> Mapping[str, Any]:
            found = self._namespace.get("answers", {}).get(request["op"], {})
            if isinstance(found, Exception):
                raise found
            return dict(found)

        return self._thread.submit(answer)

    def comm(
        self,
        message: CommMessage,
        *,
        parent: Mapping[str, str] | None = None,
        listener: Listener | None = None,
    ) -> Future[None]:
        """Hands the message to `on_comm(message, listener)` of the namespace, if that exists."""
        self.start()

        def serve() -> None:
            hear, page = self._namespace.get("on_comm"), listener or NoListener()
            if hear is not None:
                hear(message, page)
            elif message.kind == "open":
                page.comm(CommMessage("close", message.comm_id))

        return self._thread.submit(serve)

    def offer(self, offered: OfferedMessage) -> None:
        """Does nothing, since code in `exec` awaits nothing."""

    def comms(self, listener: Listener | None = None) -> Future[dict[str, str]]:
        """The comms in `open_comms` of the namespace."""
        self.start()
        return self._thread.submit(lambda: dict(self._namespace.get("open_comms", {})))

    def call(self, request: messages.CallRequest) -> Future[Any]:
        """Hands the request to `on_call(request)` of the namespace."""
        self.start()
        return self._thread.submit(lambda: self._namespace["on_call"](request))

    def interrupt(self) -> bool:
        """As `Sandbox.interrupt`; code that blocks outside of Python is not reached."""
        with self._guard:
            waiting, self._waiting = self._waiting, set()
            running, self.interrupted = self._running, self._running is not None
            if running is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(running), ctypes.py_object(KeyboardInterrupt)
                )
        for cell in waiting:
            cell.set_result(self.result(CellError("KeyboardInterrupt", "")))
        return running is not None or bool(waiting)

    def process_usage(self) -> ProcessUsage:
        """As `Sandbox`."""
        return ProcessUsage()

    def close(self, *, discard_variables: bool = False) -> None:
        """As `Sandbox.close`."""
        self._closed = True
        self.interrupt()
        self._thread.close(lambda: None)
        self._thread.join(1.0)

    def over(self) -> None:
        """Ends the running cell: from here on it can't be interrupted."""
        with self._guard:
            self._running = None

    def counted(self, store: bool) -> int:
        """The number of a cell; the next one gets another number if this one is stored."""
        count = self.next_count
        self.next_count += int(store)
        return count

    def result(self, error: CellError | None, **reply: Any) -> SandboxResult:
        """A result with nothing measured."""
        nothing: tuple[str, ...] = ()
        return SandboxResult(
            error is None, "", "", int(error is not None), error, None, 0, 0.0,
            nothing, nothing, nothing, self.workspace, (), reply,
        )  # fmt: skip

    @property
    def namespace(self) -> dict[str, Any]:
        """The variables of the code."""
        return self._namespace


class _Cell:
    """One cell of the fake, on its thread."""

    def __init__(
        self,
        sandbox: FakeSandbox,
        cell: Cell,
        listener: Listener,
    ) -> None:
        self._sandbox = sandbox
        self._code = cell.code
        self._listener = listener
        self._expressions = cell.user_expressions
        self._is_stored = cell.store_history
        self._payload: list[Any] = []

    def run(self) -> SandboxResult:
        count = self._sandbox.counted(self._is_stored)
        error = self._exec(self._names(count))
        named = {} if error else self._expressions
        expressions = {name: self._expression(code) for name, code in named.items()}
        return self._sandbox.result(
            error, execution_count=count, user_expressions=expressions, payload=self._payload
        )

    def _exec(self, names: dict[str, Any]) -> CellError | None:
        try:
            try:
                exec(compile(self._code, "cell", "exec"), names)
            finally:
                self._sandbox.over()
        except BaseException as problem:
            lines = tuple(traceback.format_exception(problem))
            error = protocol.Error(type(problem).__name__, str(problem), lines)
            self._listener.emit(error)
            return CellError(error.ename, error.evalue, error.traceback)
        return None

    def _expression(self, code: str) -> dict[str, Any]:
        value = eval(code, self._sandbox.namespace)
        return {"status": "ok", "data": {"text/plain": repr(value)}, "metadata": {}}

    def _names(self, count: int) -> dict[str, Any]:
        emit, names = self._listener.emit, self._sandbox.namespace
        out, err = _Writer(emit, "stdout"), _Writer(emit, "stderr")
        names["print"] = lambda *a, **k: print(*a, **{"file": out} | k)
        names["stderr"] = err
        names["input"] = self._input
        names["display"] = lambda data, **k: emit(protocol.Display(data, {}, k))
        names["update"] = lambda data, **k: emit(protocol.UpdateDisplay(data, {}, k))
        names["result"] = lambda data: emit(protocol.Result(count, data))
        names["clear"] = lambda wait=False: emit(protocol.ClearOutput(wait))
        names["comm"] = lambda *a, **k: self._listener.comm(CommMessage(*a, **k))
        names["terminate"] = self._listener.terminate
        names["payload"] = self._payload.append
        return names

    def _input(self, prompt: str = "", password: bool = False) -> str:
        try:
            return self._listener.ask(prompt, password)
        except InputInterrupted:
            raise KeyboardInterrupt from None
        except InputRefused as refused:
            raise RuntimeError(str(refused)) from None


class _Writer(io.TextIOBase):
    """A stream that makes an output of every write."""

    def __init__(self, emit: Callable[[protocol.Output], None], name: str) -> None:
        super().__init__()
        self._emit = emit
        self._name = name

    def write(self, text: str) -> int:
        self._emit(protocol.Stream(self._name, text))
        return len(text)
