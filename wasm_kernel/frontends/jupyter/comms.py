"""Comms at the kernel: Jupyter's comm messages in and out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import zmq
from jupyter_client.session import Session

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.execution.comms import OfferedMessage
from wasm_kernel.execution.face import Sandbox
from wasm_kernel.frontends.jupyter.listener import KernelListener
from wasm_kernel.guests.protocol import Stream
from wasm_kernel.outputs.bundle import Mode
from wasm_kernel.outputs.removals import Removals
from wasm_kernel.result import CommMessage

if TYPE_CHECKING:
    from wasm_kernel.outputs.widgets import WidgetGate

Content = dict[str, Any]

REFUSED_MOST = 100
COMM_MESSAGES = ("comm_open", "comm_msg", "comm_close")
_NOT_ADMITTED = (
    "[wasm-kernel] The page opened a comm that is not a widget's; it was closed, as only widgets "
    "may talk to the page. c.WasmKernel.outputs = 'trusted' allows others.\n"
)
_SHOWN_HEADER = ("msg_id", "msg_type")


class KernelComms:
    """The comms between the front end's page and the guest, with the gate between them.

    `send` and `clean` are called on the guest's thread, everything else on the main thread's loop.
    """

    def __init__(
        self, sandbox: Sandbox, session: Session, iopub: Any, mode: Mode, log: logging.Logger
    ) -> None:
        self._sandbox = sandbox
        self._session = session
        self._iopub = iopub
        self._mode = mode
        self._log = log

    @cached_property
    def _gate(self) -> WidgetGate:
        from wasm_kernel.outputs.widgets import WidgetGate

        return WidgetGate(self._mode)

    def parse(self, frames: list[zmq.Frame], *, content: bool = True) -> Content:
        """Returns a message with its signature checked.

        Raises:
            Exception: it is not a message of this session, or was received before.
        """
        _, parts = self._session.feed_identities(frames, copy=False)
        parsed: Content = self._session.deserialize(parts, content=content, copy=False)
        return parsed

    def admitted(self, frames: list[zmq.Frame]) -> tuple[Content, CommMessage] | None:
        """A comm message that the guest may get, with its parent; None for any other message."""
        try:
            parent = self.parse(frames, content=False)
            if parent["header"]["msg_type"] not in COMM_MESSAGES:
                return None
            parent["content"] = self._session.unpack(parent["content"])
            message = message_of(parent)
        except Exception:  # a message that can't be read is refused, and told, when dispatched
            return None
        return (parent, message) if message is not None and self._gate.admits(message) else None

    def offer(
        self, parent: Content, message: CommMessage, served: ServedMessage, listener: KernelListener
    ) -> OfferedMessage:
        """Offers a message to the cell that runs, which may take it while it awaits something."""
        offer = OfferedMessage(message, header_of(parent), listener, served)
        self._sandbox.offer(offer)
        return offer

    def send(self, parent: Content, message: CommMessage) -> None:
        """Sends a message of the guest to the front ends, from any thread."""
        content: Content = {"comm_id": message.comm_id, "data": dict(message.data)}
        if message.target_name:
            content |= {"target_name": message.target_name, "target_module": message.target_module}
        self._session.send(
            self._iopub,
            f"comm_{message.kind}",
            content,
            parent=parent,
            ident=f"comm-{message.comm_id}".encode(),
            buffers=list(message.buffers),
            metadata=dict(message.metadata),
        )

    def clean(self, message: CommMessage, removals: Removals) -> CommMessage | None:
        """Returns what of a message of the guest may reach the page. Guest thread."""
        try:
            return self._gate.out(message, removals)
        except (MemoryError, KeyboardInterrupt):
            raise
        except BaseException:  # nh3's panics are not Exceptions; unchecked messages are not sent
            removals.add("a message to a widget that could not be checked")
            return None

    def close_refused(self, listener: KernelListener) -> None:
        """Tells the guest that comms which the page does not know are closed."""
        if self._mode is Mode.SAFE:
            for refused in listener.refused[:REFUSED_MOST]:
                self._sandbox.comm(CommMessage("close", refused))

    async def deliver(
        self, parent: Content, listener: KernelListener, is_up: Callable[[], Any]
    ) -> None:
        """Hands a message of the page to the guest; closes a comm that nobody answers.

        Args:
            parent: The message.
            listener: Gets what the guest says while it serves the message.
            is_up: Waits a moment for the guest; returns whether it is there.
        """
        message = message_of(parent)
        if message is None:
            return
        try:
            if not self._gate.admits(message):
                if self._mode is Mode.SAFE:
                    listener.emit(Stream("stderr", _NOT_ADMITTED))
                self.send(parent, CommMessage("close", message.comm_id))
            elif await is_up():
                about = header_of(parent)
                future = self._sandbox.comm(message, parent=about, listener=listener)
                await asyncio.wrap_future(future)
            elif message.target_name:
                listener.comm(CommMessage("close", message.comm_id))
        except WasmKernelError as problem:
            self._log.warning("a widget's message was not delivered: %s", problem)
        listener.finish()
        self.close_refused(listener)

    async def opened(
        self, target: Any, listener: KernelListener, is_up: Callable[[], Any]
    ) -> Content:
        """The open comms, all or those to one target, as `comm_info_reply` lists them."""
        found: dict[str, str] = {}
        try:
            if await is_up():
                found = await asyncio.wrap_future(self._sandbox.comms(listener))
        except WasmKernelError as problem:
            self._log.warning("the open comms are not known: %s", problem)
        comms = {comm_id: {"target_name": name} for comm_id, name in found.items()}
        return {i: comm for i, comm in comms.items() if target in (None, comm["target_name"])}


class ServedMessage:
    """Tells the page when a message that a cell has taken is served. On the guest's thread.

    Args:
        publish: Publishes `busy` or `idle` under a message, from any thread.
        parent: The message.
        cell: The message that runs the cell.
        listener: Gets what the guest says while it serves the message.
    """

    def __init__(
        self,
        publish: Callable[[str, Content], None],
        parent: Content,
        cell: Content,
        listener: KernelListener,
    ) -> None:
        self._publish = publish
        self._parent = parent
        self._cell = cell
        self._listener = listener

    def began(self) -> None:
        """Tells the page that its message is being served."""
        self._publish("busy", self._parent)

    def ended(self) -> None:
        """Tells the page that it may send the next one; the kernel is still busy with the cell."""
        self._listener.finish()
        self._publish("idle", self._parent)
        self._publish("busy", self._cell)


def message_of(parent: Content) -> CommMessage | None:
    """A front end's comm message; None if it is not a valid one."""
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
    """The part of a message's header that the guest may know: its id and type, not its sender."""
    header = parent.get("header") or {}
    return {name: str(header[name])[:200] for name in _SHOWN_HEADER if name in header}


def _bytes(buffers: Iterable[Any]) -> Iterable[bytes]:
    return (bytes(memoryview(getattr(each, "buffer", each))) for each in buffers)
