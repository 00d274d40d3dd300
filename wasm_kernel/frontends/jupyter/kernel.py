"""`WasmKernel`: answers Jupyter's messages with a sandbox."""

# mypy: disable-error-code="no-untyped-call"
# (ipykernel carries no types)

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any

import zmq
from ipykernel.kernelbase import Kernel
from traitlets import Any as AnyTrait

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.execution.interfaces import Cell
from wasm_kernel.frontends.jupyter.page import COMM_MESSAGES, KernelListener, Page, header_of
from wasm_kernel.frontends.jupyter.usage import KernelUsage
from wasm_kernel.guests.protocol import without_surrogates
from wasm_kernel.kernels import messages
from wasm_kernel.kernels.settings import SECTION
from wasm_kernel.outputs import terminal
from wasm_kernel.policy import RuntimeType
from wasm_kernel.result import SandboxResult

EXIT_SECONDS = 0.1  # for the reply to `exit` to leave before the kernel ends, as in ipykernel
UNHEARD_SECONDS = 0.5  # then a client is answered even if none has subscribed
CLOSE_SECONDS = 1.0  # for a running cell to end at a shutdown

STOP_ABORTING = zmq.Frame(b"stop aborting")  # the base class's own mark

_ASKING = ("kernel_info", "complete", "inspect", "is_complete", "history", "comm_info", "connect")
QUESTIONS = tuple(f"{name}_request" for name in _ASKING)
"""Requests that are answered at once while a cell waits for a start that takes long."""

_GOES_ON = " The sandbox goes on getting ready; run the cell again."

Content = dict[str, Any]


class WasmKernel(Kernel):
    """A Jupyter kernel whose cells run in a sandbox.

    Its handlers run on the main thread's event loop, those of the control channel on the control
    thread's; neither ever waits for the guest. It refuses requests that it can't serve (a debugger,
    subshells), so that no client waits for a reply. Other threads may add sentences for the user
    to `notes`; the reply of the next cell includes them.
    """

    profile_dir = AnyTrait(help="IPython's, which the base class would import to check it.")
    shell_stream = AnyTrait(help="A `ShellChannel`.")

    def __init__(self, *, page: Page, notes: deque[str], **traits: Any) -> None:
        self.msg_types = [*Kernel.msg_types, *COMM_MESSAGES]
        super().__init__(ident=page.ident, **traits)
        self.sandbox = page.sandbox
        self.starting = page.starting
        self.runtime = RuntimeType(page.sandbox.worker.opened.language)
        self._page = page
        self._notes = notes
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_interrupted = False  # since the last message of the shell channel came
        self._narrated: set[str | None] = set()  # clients that were shown the progress of the start
        self._usage = KernelUsage(page.sandbox)
        self._execute_sleep = 0.0  # outputs and reply are ordered without it

    @classmethod
    def section_names(cls) -> list[str]:
        """The sections of the configuration for this class.

        The section of its own name belongs to `KernelSettings`, which has already read it.
        """
        return [name for name in super().section_names() if name != SECTION]

    @property
    def kernel_info(self) -> Content:
        """The content of `kernel_info_reply`; needs no running guest."""
        return messages.kernel_info(self.runtime)

    @property
    def execution_count(self) -> int:
        """The number of the next cell; the guest counts."""
        return self.sandbox.next_count

    @execution_count.setter
    def execution_count(self, value: int) -> None:
        """Ignores the count of the base class, which comes too early: the guest counts."""

    # -- cells

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: Mapping[str, Any] | None = None,
        allow_stdin: bool = False,
        *,
        cell_meta: Any = None,
        cell_id: Any = None,
    ) -> Content:
        """Runs a cell in the sandbox; returns the reply's content."""
        parent = self.get_parent("shell")
        ident = self._get_shell_context_var(self._shell_parent_ident)
        listener = KernelListener(self._page, parent, ident, may_ask=allow_stdin)
        expressions = user_expressions or {}
        try:
            started = self.starting.start()
            sent = Cell(
                code=code,
                silent=silent,
                store_history=store_history and not silent,
                allow_stdin=allow_stdin,
                user_expressions={k: v for k, v in expressions.items() if isinstance(v, str)},
                cell_id=cell_id if isinstance(cell_id, str) else None,
                parent=header_of(parent),
            )
            cell = asyncio.wrap_future(self._queue_cell(sent, listener))
            await self.starting.narrate(started, cell, listener)
            result = await cell
            if result.error is not None and not result.reply:  # interrupted before it began
                text = result.error.evalue + ("" if started.done() else _GOES_ON)
                listener.emit(messages.own_error(result.error.ename, text))
            elif allow_stdin and not silent and result.error is None:
                await self._page.show_timeline(code, parent)
        except Exception as problem:  # without a reply the cell would never end
            return self._failed(listener, problem)
        listener.finish()
        if not allow_stdin:  # nbclient's cells may not ask; a person's reply need not wait
            await self._page.await_answers(listener)
        self._usage.note(result)
        self._page.timeline.cell_ended(sent, result)
        if self._page.is_ending:
            await self._end()
        count = messages.count_of(result.reply)
        shown = self.sandbox.next_count if count is None else count
        reply = messages.execute_reply(result, shown, self._page.cleaner)
        if not silent:
            messages.add_notes(reply, self._notes)
        self._obey(reply["payload"])
        return reply

    def _queue_cell(self, cell: Cell, listener: KernelListener) -> Future[SandboxResult]:
        """Queues a cell; one that was interrupted since its message came ends at once."""
        future = self.sandbox.queue(cell, listener)
        if self._is_interrupted:
            self.sandbox.interrupt()
        return future

    def _failed(self, listener: KernelListener, problem: Exception) -> Content:
        if not isinstance(problem, (WasmKernelError, OSError)):
            self.log.error("a fault of the kernel's own", exc_info=problem)
        error = messages.of_problem(problem)
        listener.emit(error)
        return messages.error_reply(error, self.sandbox.next_count)

    def _publish_execute_input(self, code: str, parent: Content, execution_count: int) -> None:
        # a lone surrogate can't be sent; an exception here would leave the request unanswered
        super()._publish_execute_input(without_surrogates(code), parent, execution_count)

    # -- the shell channel

    def start(self) -> None:
        """Begins to answer messages. Called on the main thread before its loop runs."""
        super().start()
        # tornado's loop is asyncio's
        self.loop = asyncio.get_event_loop()
        # One context for all messages, as in the base class, which keeps the current request in it.
        # Only the task is made here, so that the mark `STOP_ABORTING` can queue among them.
        self._messages = copy_context()
        self._subscribed = asyncio.Event()
        self.shell_stream.on_recv(self._enter)

    def subscribed(self) -> None:
        """Notes that a client listens on IOPub. Any thread."""
        self.loop.call_soon_threadsafe(self._subscribed.set)

    def _enter(self, message: list[zmq.Frame]) -> None:
        if not self._subscribed.is_set():
            self.loop.call_later(UNHEARD_SECONDS, self._subscribed.set)
        self._keep(self.loop.create_task(self._answer(message), context=self._messages))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)  # the loop itself does not
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: list[zmq.Frame]) -> None:
        # A client's IOPub connection may come up later than its shell connection. It would miss the
        # first cell's outputs before that, and wait for them forever.
        await self._subscribed.wait()
        await self.shell_main(None, message)

    def _abort_queues(self, subshell_id: str | None = None) -> None:
        """Aborts the cells that came after a failed one, but before its reply left.

        The shell channel has passed them on, so they wait as tasks for the lock that the failed
        cell holds. The end of the aborting waits behind
        them.
        """
        self._aborting = True
        if self.stop_on_error_timeout:
            self.io_loop.call_later(self.stop_on_error_timeout, self._enter, [STOP_ABORTING])
        else:
            self._enter([STOP_ABORTING])

    async def shell_main(self, subshell_id: str | None, msg: list[zmq.Frame]) -> None:
        """Answers messages one after another, in the order of arrival.

        A comm message that comes while a cell runs waits like any other, unless the cell awaits
        something and takes it. The base class would let such messages overtake the cell and mix up
        the parents of the cell's last messages: its loop is blocked while a cell computes, this one
        is not. Only questions overtake, and only a cell that waits for a long start.
        """
        is_behind_cell = self._main_asyncio_lock.locked()
        offer = self._page.offer(msg, self.get_parent("shell")) if is_behind_cell else None
        if is_behind_cell and self.starting.is_going_on:
            kind = self._page.kind_of(msg)
            if kind in QUESTIONS:
                await self._answer_question(msg)
                return
            if kind == "execute_request":
                self._narrate_elsewhere(self._page.parse(msg, content=False))
        async with self._main_asyncio_lock:
            if offer is None or offer.claim():
                self._is_interrupted = False
                await self.dispatch_shell(msg)
            else:
                self._page.parse(msg)  # notes its signature, so that it can't be sent again

    async def _answer_question(self, msg: Any) -> None:
        """Answers a question that came after a cell: in its turn, or during a long start."""
        turn = self.loop.create_task(self._main_asyncio_lock.acquire())
        if not await self.starting.wait(turn):
            turn.cancel()
            # in a context of its own, as the cell's messages still need the cell as their parent
            await self.loop.create_task(self.dispatch_shell(msg), context=copy_context())
            if self._main_asyncio_lock.locked():  # the reply said that the kernel is idle
                self._publish_status("busy", "shell")
            return
        await turn
        try:
            await self.dispatch_shell(msg)
        finally:
            self._main_asyncio_lock.release()

    def _narrate_elsewhere(self, parent: Content) -> None:
        """Shows the progress in the first cell of another page, such as a reloaded one."""
        client, cell = parent["header"].get("session"), asyncio.current_task()
        known = {*self._narrated, self.get_parent("shell")["header"].get("session")}
        if client in known or cell is None:
            return
        self._narrated.add(client)
        page, started = KernelListener(self._page, parent), self.sandbox.start()
        self._keep(self.loop.create_task(self.starting.narrate(started, cell, page)))

    # -- comms

    async def comm_open(self, stream: Any, ident: Any, parent: Content) -> None:
        """Passes a comm message to the guest."""
        await self._page.deliver(parent)

    comm_msg = comm_close = comm_open

    async def comm_info_request(self, stream: Any, ident: Any, parent: Content) -> None:
        """Replies with the open comms, all or those to one target."""
        comms = await self._page.open_comms(parent)
        self._page.session.send(
            stream, "comm_info_reply", {"status": "ok", "comms": comms}, parent, ident
        )

    # -- questions

    async def do_complete(self, code: str, cursor_pos: int) -> Content:
        """Returns completions at a place in the code; none if the guest does not answer in time."""
        reply = await self._asked({"op": "complete", "code": code, "cursor_pos": cursor_pos})
        return messages.complete_reply(reply, cursor_pos)

    async def do_inspect(
        self, code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Any = ()
    ) -> Content:
        """Returns information about the object at a place in the code."""
        request = {"op": "inspect", "code": code, "cursor_pos": cursor_pos}
        request |= {"detail_level": detail_level, "omit_sections": list(omit_sections)}
        return messages.inspect_reply(await self._asked(request), self._page.cleaner)

    async def do_is_complete(self, code: str) -> Content:
        """Returns whether the code is complete."""
        return messages.is_complete_reply(await self._asked({"op": "is_complete", "code": code}))

    async def do_history(self, hist_access_type: str, *args: Any, **fields: Any) -> Content:
        """Returns earlier cells of this session."""
        request = {"op": "history", "hist_access_type": hist_access_type} | fields
        return messages.history_reply(await self._asked(request))

    async def _asked(self, request: Content) -> Mapping[str, Any]:
        try:
            if not await self.starting.is_up():
                return {}
            return await asyncio.wrap_future(self.sandbox.query(request))
        except (WasmKernelError, ValueError, TypeError) as problem:
            why = terminal.printable(str(problem))
            self.log.info("the guest did not answer %s: %s", request["op"], why)
            return {}

    # -- control

    def interrupt(self) -> None:
        """Interrupts the running or waiting cell, if there is one. Any thread."""
        self._is_interrupted = True  # a cell may be about to be queued
        self.sandbox.interrupt()

    async def interrupt_request(self, stream: Any, ident: Any, parent: Content) -> None:
        """Interrupts the cell, and replies; sends no signal, as cells run only in this process."""
        self.interrupt()
        self._page.session.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    def pre_handler_hook(self) -> None:
        """Leaves SIGINT alone: `app` turns it into an interrupt of the cell, never of this loop."""

    post_handler_hook = pre_handler_hook

    async def usage_request(self, stream: Any, ident: Any, parent: Content) -> None:
        """Replies to a resource monitor with the use of the process and the guest."""
        self._page.session.send(stream, "usage_reply", self._usage.reply(), parent, ident)

    async def do_debug_request(self, msg: Content) -> Content:
        """Refuses, as the debug adapter protocol does."""
        return {
            "type": "response",
            "request_seq": msg.get("seq", 0),
            "success": False,
            "command": msg.get("command", ""),
            "message": "This kernel has no debugger.",
        }

    async def create_subshell_request(self, socket: Any, ident: Any, parent: Content) -> None:
        """Refuses: one guest runs one cell at a time."""
        refused = messages.own_error("NotSupported", "This kernel has no subshells.")
        kind = parent["header"]["msg_type"].removesuffix("_request") + "_reply"
        content = {"status": "error"} | messages.error_fields(refused)
        self._page.session.send(socket, kind, content, parent, ident)

    delete_subshell_request = create_subshell_request
    list_subshell_request = create_subshell_request

    def _process_children(self) -> list[Any]:
        # the base class would import psutil, which takes long
        return []

    # -- the end

    async def _end(self) -> None:
        """Ends as a killed process does: without a reply, by which front ends notice it.

        The next kernel of the session finds every variable, as after a crash.
        """
        await asyncio.sleep(EXIT_SECONDS)  # for the last messages and unsaved state
        os._exit(1)

    def _obey(self, payloads: list[Content]) -> None:
        leave = {"source": "ask_exit", "keepkernel": False}
        if leave in payloads:
            self.io_loop.call_later(EXIT_SECONDS, self.stop)

    def stop(self) -> None:
        """Ends the kernel's loop. Any thread."""
        self.io_loop.add_callback(self.io_loop.stop)

    async def do_shutdown(self, restart: bool) -> Content:
        """Closes the sandbox, even while a cell computes. On the control thread.

        A restart begins without variables, so that "Restart and run all" depends on cells only.
        """
        close = partial(self.sandbox.close, discard_variables=restart)
        closing = threading.Thread(target=close, name="closing", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_SECONDS)
        return {"status": "ok", "restart": restart}
