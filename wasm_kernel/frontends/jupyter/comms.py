"""Comms at the kernel: Jupyter's comm messages in and out."""

# mypy: disable-error-code="no-untyped-call"
# (ipykernel carries no types)

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import zmq

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.execution.comms import OfferedMessage
from wasm_kernel.execution.face import Sandbox
from wasm_kernel.frontends.jupyter.cell import CellListener
from wasm_kernel.frontends.jupyter.plain_kernel import PlainKernel
from wasm_kernel.frontends.jupyter.starting import Starting
from wasm_kernel.guests.protocol import Stream
from wasm_kernel.outputs.bundle import Mode
from wasm_kernel.outputs.removals import Removals
from wasm_kernel.result import CommMessage

if TYPE_CHECKING:
    from wasm_kernel.outputs.widgets import WidgetGate

Content = dict[str, Any]

START_SECONDS = 3.0  # front ends wait 4 s for an answer when they look for widgets at their start
REFUSED_MOST = 100
_NOT_ADMITTED = (
    "[wasm-kernel] The page opened a comm that is no widget's; it was closed, as only widgets may "
    "talk to the page. c.WasmKernel.outputs = 'trusted' allows others.\n"
)
_COMM_MESSAGES = ("comm_open", "comm_msg", "comm_close")
_SHOWN_HEADER = ("msg_id", "msg_type")


class CommKernel(PlainKernel):
    """A kernel whose comms end in the sandbox. Its handlers run on the main thread's loop."""

    sandbox: Sandbox
    starting: Starting
    mode: Mode

    @cached_property
    def _gate(self) -> WidgetGate:
        from wasm_kernel.outputs.widgets import WidgetGate

        return WidgetGate(self.mode)

    def listener(self, allow_stdin: bool) -> CellListener:
        """Who hears what is said under the message that is being answered."""
        raise NotImplementedError

    def listener_to(self, parent: Content, allow_stdin: bool = False) -> CellListener:
        """Who hears what is said under a front end's message."""
        raise NotImplementedError

    async def shell_main(self, subshell_id: str | None, msg: list[zmq.Frame]) -> None:
        """Answer one message after another, in the order in which they came.

        A comm message that comes while a cell runs waits like any other, unless the cell awaits
        something and takes it. The base class lets such messages pass the cell and mixes up whose
        parent the cell's last messages have: its loop stands still while a cell computes, this one
        is free.
        """
        offer = self._offered(msg) if self._main_asyncio_lock.locked() else None
        async with self._main_asyncio_lock:
            if offer is None or offer.claim():
                await self.dispatch_shell(msg)
            else:
                self._parsed(msg)  # noted, so that it can't be sent a second time

    def _offered(self, frames: list[zmq.Frame]) -> OfferedMessage | None:
        """A comm message on offer to the cell that runs; None for any other message."""
        assert self.session is not None
        try:
            parent = self._parsed(frames, content=False)
            if parent["header"]["msg_type"] not in _COMM_MESSAGES:
                return None
            parent["content"] = self.session.unpack(parent["content"])
            message = message_of(parent)
        except Exception:  # what can't be read is refused, and told, where it is dispatched
            return None
        if message is None or not self._gate.admits(message):
            return None
        listener = self.listener_to(parent)
        now = self.get_parent("shell")
        offer = OfferedMessage(
            message, header_of(parent), listener, _Served(self, parent, now, listener)
        )
        self.sandbox.offer(offer)
        return offer

    def _parsed(self, frames: list[zmq.Frame], *, content: bool = True) -> Content:
        assert self.session is not None
        _, parts = self.session.feed_identities(frames, copy=False)
        parsed: Content = self.session.deserialize(parts, content=content, copy=False)
        return parsed

    def send_comm(self, parent: Content, message: CommMessage) -> None:
        """Send what the guest says on a comm to the front ends, from any thread."""
        content: Content = {"comm_id": message.comm_id, "data": dict(message.data)}
        if message.target_name:
            content |= {"target_name": message.target_name, "target_module": message.target_module}
        assert self.session is not None
        self.session.send(
            self.iopub_socket,
            f"comm_{message.kind}",
            content,
            parent=parent,
            ident=f"comm-{message.comm_id}".encode(),
            buffers=list(message.buffers),
            metadata=dict(message.metadata),
        )

    def publish_state(self, state: str, parent: Content) -> None:
        """Publish `busy` or `idle` under a message, from any thread."""
        self._publish_status(state, "shell", parent)

    def sift(self, message: CommMessage, removals: Removals) -> CommMessage | None:
        """What of a message of the guest may reach the page. On the guest's thread."""
        try:
            return self._gate.out(message, removals)
        except (MemoryError, KeyboardInterrupt):
            raise
        except BaseException:  # nh3's panics are no Exceptions; what can't be checked is not sent
            removals.add("a message to a widget that could not be checked")
            return None

    def end_refused(self, listener: CellListener) -> None:
        """Tell the guest that comms which the page never heard of are closed."""
        if self.mode is Mode.SAFE:
            for refused in listener.refused[:REFUSED_MOST]:
                self.sandbox.comm(CommMessage("close", refused))

    async def comm_open(self, stream: Any, ident: Any, parent: Content) -> None:
        """Hand a message to the guest; whoever opens a comm to nobody is told so."""
        message, listener = message_of(parent), self.listener(False)
        if message is None:
            return
        try:
            if not self._gate.admits(message):
                if self.mode is Mode.SAFE:
                    listener.emit(Stream("stderr", _NOT_ADMITTED))
                self.send_comm(parent, CommMessage("close", message.comm_id))
            elif await self._is_up():
                about = header_of(parent)
                future = self.sandbox.comm(message, parent=about, listener=listener)
                await asyncio.wrap_future(future)
            elif message.target_name:
                listener.comm(CommMessage("close", message.comm_id))
        except WasmKernelError as problem:
            self.log.warning("a widget's message was not delivered: %s", problem)
        listener.finish()
        self.end_refused(listener)

    comm_msg = comm_close = comm_open

    async def comm_info_request(self, stream: Any, ident: Any, parent: Content) -> None:
        """Say which comms are open, all or those to one target."""
        target = parent["content"].get("target_name")
        found: dict[str, str] = {}
        try:
            if await self._is_up():
                found = await asyncio.wrap_future(self.sandbox.comms(self.listener(False)))
        except WasmKernelError as problem:
            self.log.warning("the open comms are not known: %s", problem)
        comms = {one: {"target_name": name} for one, name in found.items()}
        shown = {one: it for one, it in comms.items() if target in (None, it["target_name"])}
        self.answer(stream, "comm_info_reply", {"status": "ok", "comms": shown}, parent, ident)

    async def _is_up(self) -> bool:
        """Whether the guest is there, or comes soon: a first start may take a minute."""
        started = asyncio.wrap_future(self.sandbox.start(self.starting.tell))
        await asyncio.wait((started,), timeout=START_SECONDS)
        return started.done() and started.exception() is None


class _Served:
    """Tells the page when a message that a cell has taken is served. On the guest's thread."""

    def __init__(
        self, kernel: CommKernel, parent: Content, cell: Content, listener: CellListener
    ) -> None:
        self._kernel = kernel
        self._parent = parent
        self._cell = cell
        self._listener = listener

    def began(self) -> None:
        """The page is told that its message is being served."""
        self._kernel.publish_state("busy", self._parent)

    def ended(self) -> None:
        """The page may send the next one; the kernel is still busy with the cell."""
        self._listener.finish()
        self._kernel.publish_state("idle", self._parent)
        self._kernel.publish_state("busy", self._cell)


def message_of(parent: Content) -> CommMessage | None:
    """A front end's comm message; None where it is none."""
    content, kind = parent["content"], parent["header"]["msg_type"].removeprefix("comm_")
    comm_id, data = content.get("comm_id"), content.get("data")
    target = content.get("target_name", "")
    if not (isinstance(comm_id, str) and isinstance(target, str)):
        return None
    return CommMessage(
        kind,
        comm_id,
        data if isinstance(data, dict) else {},
        target_name=target,
        metadata=parent.get("metadata") or {},
        buffers=tuple(_bytes(parent.get("buffers") or ())),
    )


def header_of(parent: Content) -> dict[str, str]:
    """What the guest may know of a message: how it is called, and not who sent it."""
    header = parent.get("header") or {}
    return {name: str(header[name])[:200] for name in _SHOWN_HEADER if name in header}


def _bytes(buffers: Iterable[Any]) -> Iterable[bytes]:
    return (bytes(memoryview(getattr(each, "buffer", each))) for each in buffers)
