"""`WorkerSandbox`: a sandbox whose guest lives in a worker, behind both walls."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from wasm_kernel.errors import SandboxClosed, WorkerLost
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.base_sandbox import BaseSandbox, TravelRequest
from wasm_kernel.execution.cell_future import CellFuture, never_ran
from wasm_kernel.execution.interfaces import (
    Cell,
    Listener,
    OfferedMessage,
    ProcessUsage,
    SessionHooks,
)
from wasm_kernel.guests.protocol import without_surrogates
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import Checkpoint, CommMessage, Travelled
from wasm_kernel.service import messages
from wasm_kernel.service.calls import PendingCall, PendingCell
from wasm_kernel.service.open_message import plain_policy
from wasm_kernel.service.page_offers import PendingOffer
from wasm_kernel.service.session_worker import SessionWorker

CLOSED = "this sandbox is closed; its session can be opened again"
_COPY = "this process was forked from the one whose sandbox it is; make another one"
_LOST = "ended each time before it could put its variables away"
_AS_IT_WAS = "The session may be as it was. Try again, or delete it."
_POLL_SECONDS, _TRIES = 0.01, 3


class RemoteCell(CellFuture):
    """A cell that runs in a worker."""

    def __init__(self, session: SessionWorker) -> None:
        super().__init__()
        self._session = session
        self.call = 0

    def interrupt(self) -> bool:
        """As `CellFuture`."""
        return self.call > 0 and self._session.interrupt(self.call)


class WorkerSandbox(BaseSandbox):
    """A sandbox whose guest lives in a worker, behind both walls.

    Its first call forks a worker for it, and so does a call that finds it asleep. If the worker is
    lost, the cell that ran says so (`WorkerLost`), and the next call goes on with the variables of
    the last cell that was kept. Listeners are called on a thread of the session. The hooks connect
    it to its session in this process.
    """

    def __init__(
        self,
        worker: SessionWorker,
        workspace: Path,
        policy: ExecutionPolicy,
        hooks: SessionHooks,
    ) -> None:
        super().__init__(workspace, policy, worker.opened.session_id or None, hooks)
        self.worker = worker
        self._process = os.getpid()
        self._sending = threading.RLock()
        self._changes: dict[str, Any] = {}

    # -- cells, and the calls of a front end

    def start(self, progress: Callable[[str], None] | None = None) -> Future[None]:
        """As `BaseSandbox`; wakes a session that sleeps.

        As for all calls, the future ends with `LimitReached` if the service has no room to wake it.
        """
        if self.worker.is_up and not self._changes:
            started: Future[None] = Future()
            started.set_result(None)
            return started
        return self._call(messages.Start(), progress=progress)

    def queue(self, cell: Cell, listener: Listener | None = None) -> CellFuture:
        """As `BaseSandbox`; wakes a session that sleeps.

        Raises:
            LimitReached: the queue is full.
        """
        sent, future = replace(cell, code=without_surrogates(cell.code)), RemoteCell(self.worker)
        nothing = never_ran(Path(self.worker.opened.workspace), self.session_id)
        future.call = self._send(PendingCell(sent, future, self.policy, listener, nothing))
        return future

    def query(self, request: Mapping[str, Any]) -> Future[Mapping[str, Any]]:
        """As `BaseSandbox`."""
        return self._call(messages.Query(dict(request)))

    def comm(
        self,
        message: CommMessage,
        *,
        parent: Mapping[str, str] | None = None,
        listener: Listener | None = None,
    ) -> Future[None]:
        """As `BaseSandbox`."""
        return self._call(messages.Comm(message, dict(parent or {})), listener)

    def offer(self, offered: OfferedMessage) -> None:
        """As `BaseSandbox`."""
        self.worker.offer(PendingOffer(offered, self.policy))

    def comms(self, listener: Listener | None = None) -> Future[dict[str, str]]:
        """As `BaseSandbox`."""
        return self._call(messages.Comms(), listener)

    def interrupt(self) -> bool:
        """As `BaseSandbox`."""
        return not self._is_copy and self.worker.interrupt()

    @property
    def interrupted(self) -> bool:
        """As `BaseSandbox`."""
        return self.worker.is_interrupted

    @property
    def next_count(self) -> int:
        """As `BaseSandbox`."""
        return self.worker.usage.figures.next_count

    # -- its history

    def naming(self, name: str) -> Future[None]:
        """As `BaseSandbox`."""
        return self._call(messages.Name(name))

    def listing(self) -> Future[list[Checkpoint]]:
        """As `BaseSandbox`."""
        return self._call(messages.Checkpoints())

    def travel(self, request: TravelRequest) -> Future[Travelled]:
        """As `BaseSandbox`."""
        return self._call(messages.Travel(request))

    def fork_into(self, names: Sequence[str], *, reseed: bool) -> list[str]:
        """Forks this session into new sessions of these ids. For the service.

        Returns the notice for the first cell of each, such as which files were left out. Raises
        `ForkError`.
        """
        notices: list[str] = self._call(messages.Fork(tuple(names), reseed)).result()
        return notices

    # -- options, closing, resetting

    def adopt(self, policy: ExecutionPolicy | None, logger: SandboxLogger | None) -> None:
        """As `BaseSandbox`; the next cell gets another worker, when the running one is over."""
        with self._sending:
            if policy is not None:
                self._changes |= {"policy": plain_policy(policy), "door": policy.door}
                self.policy = policy
            if logger is not None:
                name = self.session_id
                self.worker.logger = logger if name is None else logger.bind(session_id=name)

    def offer_pip(self) -> None:
        """As `BaseSandbox`; the next cell gets another worker, when the running one is over."""
        with self._sending:
            if not self.worker.opened.pip:
                self._changes["pip"] = True

    def _send(self, pending: PendingCall) -> int:
        """Sends a call to the worker; if options have changed, to a new worker.

        Returns the call's number.
        """
        if self._is_copy:
            raise SandboxClosed(_COPY)
        with self._sending:
            if self._changes:
                while self.worker.sleep() or self.worker.state != "asleep":
                    time.sleep(_POLL_SECONDS)
                self.worker.opened = replace(self.worker.opened, verified={}, **self._changes)
                self._changes = {}
            return self.worker.call(pending)

    @property
    def _is_copy(self) -> bool:
        """True in a process that was forked from the sandbox's own."""
        return os.getpid() != self._process

    @property
    def closed(self) -> bool:
        """As `BaseSandbox`; also true if the service closed it."""
        return bool(self.worker.why_closed)

    @property
    def busy(self) -> bool:
        """As `BaseSandbox`."""
        return self.worker.state in ("busy", "starting")

    def process_usage(self) -> ProcessUsage:
        """As `Sandbox`."""
        worker, seconds = self.worker.worker, self.worker.usage.ended_seconds
        if worker is None:
            return ProcessUsage(0, seconds)
        return ProcessUsage(worker.shared_bytes, seconds + worker.cpu_seconds)

    def retire(self, why: str) -> bool:
        """As `BaseSandbox`."""
        with self._sending:
            if self.busy:
                return False
            self.close(why=why)
            return True

    def close(self, *, anew: bool = False, why: str = CLOSED) -> None:
        """As `BaseSandbox`; files and variables stay.

        Raises:
            WasmKernelError: with `anew`, the session can't be woken for that; nothing has changed.
        """
        if not self._is_copy:
            if anew and not self.closed:
                self._put_away_anew(why)
            elif self.worker.sleep(why):
                self.worker.wait_asleep()
        self._hooks.closed()

    def reset(self) -> None:
        """Discards the variables; files and named checkpoints stay. Running and waiting calls end.

        Raises:
            SandboxClosed: the sandbox is closed.
            WasmKernelError: the session can't be woken for that; nothing has changed.
        """
        self._put_away_anew()

    def _put_away_anew(self, why: str = "") -> None:
        """Closes the worker so that the next one begins without variables.

        Tries again if the worker falls asleep or dies before it has noted that. With `why`, no
        further call is taken; otherwise the next one wakes the session.
        """
        resets = self.worker.resets
        for _ in range(_TRIES):
            self.start().result()
            self.worker.sleep(why, anew=True)
            self.worker.wait_asleep()
            if self.worker.resets > resets or self.closed:
                return
        raise WorkerLost(_LOST, _AS_IT_WAS)

    def _call(
        self,
        request: messages.Asked,
        listener: Listener | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> Future[Any]:
        pending = PendingCall(request, self.policy, listener, progress)
        self._send(pending)
        return pending.future
