"""The kernel: Jupyter's messages in, a sandbox's work out."""

# mypy: disable-error-code="no-untyped-call"
# (ipykernel carries no types)

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from contextvars import copy_context
from functools import partial
from typing import Any

import zmq
from jupyter_client.session import Session

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.execution.face import Sandbox
from wasm_kernel.frontends.jupyter import about, messages
from wasm_kernel.frontends.jupyter.cell import CellListener
from wasm_kernel.frontends.jupyter.comms import CommKernel, header_of
from wasm_kernel.frontends.jupyter.settings import SECTION
from wasm_kernel.frontends.jupyter.starting import Starting
from wasm_kernel.frontends.jupyter.stdin import StdinChannel
from wasm_kernel.frontends.jupyter.usage import Usage
from wasm_kernel.guests.protocol import Error, Stream, without_surrogates
from wasm_kernel.outputs.bundle import Mode

EXIT_SECONDS = 0.1  # the reply to `exit` leaves before the kernel does, as in ipykernel
CLOSE_POLL = 0.01
UNHEARD_SECONDS = 0.5  # a client that listens to nobody is answered all the same
CLOSE_SECONDS = 1.0  # what a shutdown waits for a cell that still computes

STOP_ABORTING = zmq.Frame(b"stop aborting")  # the base class's own mark

Content = dict[str, Any]


class WasmKernel(CommKernel):
    """A Jupyter kernel whose cells run in a sandbox.

    Its handlers run on the main thread's event loop, those of the control channel on the control
    thread's; neither ever waits for the guest. `sandbox` and `starting` are handed over by `app`.
    """

    def __init__(
        self,
        *,
        sandbox: Sandbox,
        starting: Starting,
        session: Session,
        mode: Mode = Mode.SAFE,
        **traits: Any,
    ) -> None:
        super().__init__(session=session, **traits)
        self._session = session
        self.sandbox = sandbox
        self.starting = starting
        self.mode = mode
        self._ending = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._usage = Usage(sandbox.policy)
        self._execute_sleep = 0.0  # outputs and reply are ordered without it
        self._stdin = StdinChannel(self.stdin_socket, self._session)

    @classmethod
    def section_names(cls) -> list[str]:
        """The sections of the configuration that are meant for this class.

        That of its own name is `KernelSettings`'s, which has been read by now.
        """
        return [name for name in super().section_names() if name != SECTION]

    @property
    def kernel_info(self) -> Content:
        """What `kernel_info_reply` says; nothing of it needs a running guest."""
        return about.kernel_info()

    @property
    def execution_count(self) -> int:
        """The number that the next cell will have; the guest counts."""
        return self.sandbox.next_count

    @execution_count.setter
    def execution_count(self, value: int) -> None:
        """The base class counts cells before they run; the guest's own count follows each reply."""

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
        """Run a cell in the sandbox; the reply's content."""
        listener = self.listener(allow_stdin)
        expressions = user_expressions or {}
        try:
            started = self.sandbox.start(self.starting.tell)
            future = self.sandbox.submit(
                code,
                silent=silent,
                store_history=store_history,
                allow_stdin=allow_stdin,
                user_expressions={k: v for k, v in expressions.items() if isinstance(v, str)},
                cell_id=cell_id if isinstance(cell_id, str) else None,
                parent=header_of(self.get_parent("shell")),
                listener=listener,
            )
            cell = asyncio.wrap_future(future)
            await self.starting.narrate(
                started, cell, lambda line: listener.emit(Stream("stderr", line))
            )
            result = await cell
        except Exception as problem:  # without a reply the cell would never end
            if not isinstance(problem, (WasmKernelError, OSError)):
                self.log.exception("a fault of the kernel's own")
            return self._failed(listener, messages.of_problem(problem))
        listener.finish()
        self.end_refused(listener)
        self._usage.note(result)
        if self._ending:
            await self._end()
        count = messages.count_of(result.reply)
        shown = self.sandbox.next_count if count is None else count
        reply = messages.execute_reply(result, shown, self.mode)
        self._obey(reply["payload"])
        return reply

    def listener(self, allow_stdin: bool) -> CellListener:
        """Who hears what is said under the message that is being answered."""
        return self.listener_to(self.get_parent("shell"), allow_stdin)

    def listener_to(self, parent: Content, allow_stdin: bool = False) -> CellListener:
        """Who hears what is said under a front end's message."""
        ident = self._get_shell_context_var(self._shell_parent_ident)
        ask = partial(self._ask, parent, ident) if allow_stdin else None
        send, talk = partial(self._publish, parent), partial(self.send_comm, parent)
        return CellListener(
            send,
            talk=talk,
            sift=self.sift,
            ask=ask,
            terminate=self._terminate,
            mode=self.mode,
            over=lambda: self.sandbox.interrupted,
        )

    def _publish(self, parent: Content, kind: str, content: Content) -> None:
        """Send on IOPub, from any thread: the socket hands over to the thread behind it."""
        self._session.send(self.iopub_socket, kind, content, parent=parent, ident=self._topic(kind))

    def _ask(self, parent: Content, ident: Any, prompt: str, password: bool) -> str:
        return self._stdin.ask(
            prompt,
            password,
            parent=parent,
            ident=ident,
            interrupted=lambda: self.sandbox.interrupted,
        )

    def _failed(self, listener: CellListener, error: Error) -> Content:
        listener.emit(error)
        return messages.error_reply(error, self.sandbox.next_count)

    def _publish_execute_input(self, code: str, parent: Content, execution_count: int) -> None:
        # a lone surrogate can't be sent; an exception here would leave the request unanswered
        super()._publish_execute_input(without_surrogates(code), parent, execution_count)

    # -- the shell channel

    def start(self) -> None:
        """Begin to answer messages; on the main thread, whose loop is not yet running."""
        super().start()
        # tornado's loop is asyncio's
        self.loop = asyncio.get_event_loop()
        # One context for all messages, as in the base class: the request that is being answered
        # is kept in it. Only the task is made here, so that the mark below can queue among them.
        self._messages = copy_context()
        self._heard = asyncio.Event()
        assert self.shell_stream is not None
        self.shell_stream.on_recv(self._enter, copy=False)

    def heard(self) -> None:
        """A client listens on IOPub; any thread."""
        self.loop.call_soon_threadsafe(self._heard.set)

    def _enter(self, message: list[zmq.Frame]) -> None:
        if not self._heard.is_set():
            self.loop.call_later(UNHEARD_SECONDS, self._heard.set)
        task = self.loop.create_task(self._answer(message), context=self._messages)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: list[zmq.Frame]) -> None:
        # A client's IOPub connection may come up later than its shell: what a first cell published
        # before that would be lost, and the client wait for it forever.
        await self._heard.wait()
        await self.shell_main(None, message)

    def _abort_queues(self, subshell_id: str | None = None) -> None:
        """Abort the cells that came behind a failed one before its reply left.

        This loop was free to receive them, so they wait as tasks for the lock that the failed cell
        holds. The mark that ends the aborting queues behind them.
        """
        assert self.shell_stream is not None
        self._aborting = True
        self.shell_stream.flush(zmq.POLLIN)
        if self.stop_on_error_timeout:
            self.io_loop.call_later(self.stop_on_error_timeout, self._enter, [STOP_ABORTING])
        else:
            self._enter([STOP_ABORTING])

    # -- questions

    async def do_complete(self, code: str, cursor_pos: int) -> Content:
        """Completions at a place in the code; none where the guest can't say in time."""
        reply = await self._asked({"op": "complete", "code": code, "cursor_pos": cursor_pos})
        return messages.complete_reply(reply, cursor_pos)

    async def do_inspect(
        self, code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Any = ()
    ) -> Content:
        """What is known of the object at a place in the code."""
        request = {"op": "inspect", "code": code, "cursor_pos": cursor_pos}
        request |= {"detail_level": detail_level, "omit_sections": list(omit_sections)}
        return messages.inspect_reply(await self._asked(request), self.mode)

    async def do_is_complete(self, code: str) -> Content:
        """Whether the code could run as it is."""
        return messages.is_complete_reply(await self._asked({"op": "is_complete", "code": code}))

    async def do_history(self, hist_access_type: str, *args: Any, **fields: Any) -> Content:
        """Earlier cells of this session."""
        request = {"op": "history", "hist_access_type": hist_access_type} | fields
        return messages.history_reply(await self._asked(request))

    async def _asked(self, request: Content) -> Mapping[str, Any]:
        try:
            return await asyncio.wrap_future(self.sandbox.query(request))
        except (WasmKernelError, ValueError, TypeError) as problem:
            self.log.info("the guest did not answer %s: %s", request["op"], problem)
            return {}

    # -- control

    def interrupt(self) -> None:
        """Interrupt the running or waiting cell; harmless where there is none. Any thread."""
        self.sandbox.interrupt()

    async def interrupt_request(self, stream: Any, ident: Any, parent: Content) -> None:
        """Answer an interrupt; no signal is sent, as no process but this one runs cells."""
        self.interrupt()
        self._session.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    def pre_handler_hook(self) -> None:
        """Leave SIGINT alone: `app` turns it into an interrupt of the cell, never of this loop."""

    def post_handler_hook(self) -> None:
        """See `pre_handler_hook`."""

    async def usage_request(self, stream: Any, ident: Any, parent: Content) -> None:
        """Tell a resource monitor what the process and the guest use."""
        self.answer(stream, "usage_reply", self._usage.reply(), parent, ident)

    # -- the end

    def _terminate(self) -> None:
        """The cell sent its own kernel a deadly signal. Called on the guest's thread."""
        self._ending = True

    async def _end(self) -> None:
        """Ends as a killed process does: without a reply, which is how front ends notice.

        Whoever opens the session next finds what a crash leaves, which is every variable.
        """
        await asyncio.sleep(EXIT_SECONDS)  # what was said and saved gets out
        os._exit(1)

    def _obey(self, payloads: list[Content]) -> None:
        leave = {"source": "ask_exit", "keepkernel": False}
        if leave in payloads:
            self.io_loop.call_later(EXIT_SECONDS, self.stop)

    def stop(self) -> None:
        """End the kernel's loop; any thread."""
        self.io_loop.add_callback(self.io_loop.stop)

    async def do_shutdown(self, restart: bool) -> Content:
        """Close the sandbox, also under a cell that computes. On the control thread.

        A restart begins anew: "Restart and run all" is to show what the cells do by themselves.
        """
        close = partial(self.sandbox.close, anew=restart)
        closing = threading.Thread(target=close, name="closing", daemon=True)
        closing.start()
        for _ in range(int(CLOSE_SECONDS / CLOSE_POLL)):
            if not closing.is_alive():
                break
            await asyncio.sleep(CLOSE_POLL)
        return {"status": "ok", "restart": restart}
