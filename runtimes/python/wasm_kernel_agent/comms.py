"""Comms: the channels between objects in the guest, such as widgets, and the front end's page.

`comm.create_comm()` makes a `GuestComm`, whose messages go out as frames. Messages of the front end
come in as turns of their own, or while a cell awaits something; `CommServer` serves both.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Collection
from typing import Any

import comm
from comm.base_comm import BaseComm, CommManager

from wasm_kernel_agent.cells import end_cell
from wasm_kernel_agent.display import jsonable
from wasm_kernel_agent.host import FrameChannel, flush
from wasm_kernel_agent.notebook_face import parent_of
from wasm_kernel_agent.signals import SignalHandlers, Stdin

Reply = dict[str, Any]
SendFrame = Callable[[Reply], Any]

_KINDS = {"open": "comm_open", "msg": "comm_msg", "close": "comm_close"}
_MODEL = "IPY_MODEL_"
_CAPTURED = "msg_id"  # Output's capture: nbclient fails if told to end one that it does not have


class GuestComm(BaseComm):
    """The guest's end of a comm; the other end is in the front end."""

    send_frame: SendFrame

    def publish_msg(
        self,
        msg_type: str,
        data: Any = None,
        metadata: Any = None,
        buffers: Any = None,
        **keys: Any,
    ) -> None:
        """Sends a message; `msg_type` is `comm_open`, `comm_msg` or `comm_close`.

        Raises:
            FrameTooLarge: The message is larger than a frame may be.
            NotSendable: JSON can't hold the message.
        """
        frame = {
            "op": msg_type,
            "comm_id": self.comm_id,
            "data": jsonable(data or {}),
            "metadata": jsonable(metadata or {}),
            "buffers": [base64.b64encode(each).decode("ascii") for each in buffers or ()],
        }
        self.send_frame({**frame, **keys})


class GuestCommManager(CommManager):
    """Every open comm, and the targets to which a front end may open one."""

    def __init__(self, send_frame: SendFrame) -> None:
        super().__init__()
        self._send_frame = send_frame

    def register_target(self, target_name: str, f: Any) -> None:
        """Sets the function that is called when a front end opens a comm to `target_name`."""
        super().register_target(target_name, f)
        self._send_frame({"op": "comm_target", "name": target_name})


def install(send_frame: SendFrame) -> GuestCommManager:
    """Makes comms of this interpreter send frames by `send_frame`. Returns their one manager."""
    manager = GuestCommManager(send_frame)
    GuestComm.send_frame = staticmethod(send_frame)
    comm.create_comm = GuestComm
    comm.get_comm_manager = lambda: manager
    return manager


class CommServer:
    """Serves the front end's messages on comms: one a turn, or several while a cell awaits."""

    def __init__(
        self, shell: Any, signals: SignalHandlers, stdin: Stdin, channel: FrameChannel
    ) -> None:
        self._shell = shell
        self._manager: GuestCommManager = shell.kernel.comm_manager
        self._send = channel.send
        self._signals = signals
        self._stdin = stdin

    def serve(self, request: Reply) -> Reply:
        """Hands a message to its comm. Errors of callbacks are shown, as after a cell."""
        shell = self._shell
        self._stdin.install(False)
        shell.awaiter.make_current()
        shell.set_parent(parent_of(request))
        handle = getattr(self._manager, _KINDS[request["kind"]])
        try:
            self._signals.interruptible(lambda: handle(None, None, message_of(request)))
            self._signals.interruptible(shell.awaiter.run_tasks)  # a task may wait for the message
        except KeyboardInterrupt as interrupt:
            shell.showtraceback((KeyboardInterrupt, interrupt, None))
        finally:
            flush()
            end_cell(shell)
        shell.payload_manager.clear_payload()
        return {"status": "ok"}

    @property
    def is_open(self) -> bool:
        """True if a front end is there, and could send a message on a comm."""
        parent = self._shell.parent_header or {}
        return bool(self._manager.comms) and bool(parent.get("msg_id"))

    def serve_next(self) -> bool:
        """Serves one message that came while the cell awaits. Returns False if there is none."""
        request = self._send({"op": "comm_next"}).get("message")
        if not isinstance(request, dict):
            return False
        shell, parent = self._shell, self._shell.parent_header
        shell.set_parent(parent_of(request))
        try:
            getattr(self._manager, _KINDS[request["kind"]])(None, None, message_of(request))
        finally:
            shell.set_parent(parent)
            flush()
            self._send({"op": "comm_done"})
        return True

    def resync(self, request: Reply) -> Reply:
        """Brings the front end in line with the guest. Returns which comms are open here."""
        manager, present = self._manager, request.get("open")
        with contextlib.suppress(KeyboardInterrupt):
            if present is not None:
                self._signals.interruptible(lambda: resync(manager, present))
        return {
            "status": "ok",
            "comms": {one.comm_id: str(one.target_name) for one in manager.comms.values()},
            "targets": list(manager.targets),
        }


def message_of(request: Reply) -> Reply:
    """Returns a comm message in the form that handlers get from ipykernel."""
    content = {"comm_id": request["comm_id"], "data": request.get("data") or {}}
    if request["kind"] == "open":
        content["target_name"] = request.get("target_name", "")
    return {
        **parent_of(request),
        "metadata": request.get("metadata") or {},
        "content": content,
        "buffers": [memoryview(base64.b64decode(each)) for each in request.get("buffers") or ()],
    }


def resync(manager: Any, present: Collection[str]) -> None:
    """Brings the front end to the state of the guest, after memory was restored.

    Widgets that the front end still has are sent their state; those that it has closed since are
    opened again, each after those that it consists of. Any other comm that it has closed is closed
    here, too.

    Args:
        manager: The comm manager.
        present: The ids of the comms that the front end has.
    """
    there = set(present)
    for one in list(manager.comms.values()):
        widget = _widget_of(one)
        with contextlib.suppress(
            Exception
        ):  # a widget of the user's own may fail to give its state
            if widget is None:
                if one.comm_id not in there:
                    _close(manager, one)
            elif one.comm_id in there:
                widget.send_state([key for key in widget.keys if key != _CAPTURED])
            else:
                _open(manager, widget, there)


def _widget_of(comm: Any) -> Any:
    owner = getattr(comm._msg_callback, "__self__", None)
    return owner if hasattr(owner, "send_state") and hasattr(owner, "get_state") else None


def _open(manager: Any, widget: Any, there: set[str]) -> None:
    before = widget.comm
    there.add(before.comm_id)
    for part in _models_in(widget.get_state()):
        other = manager.comms.get(part)
        if part not in there and other is not None and _widget_of(other) is not None:
            _open(manager, _widget_of(other), there)
    before._closed = True  # otherwise the front end would be told of the end, too
    widget.comm = None
    widget.open()


def _models_in(value: Any) -> list[str]:
    """The ids of the widgets that a state refers to."""
    if isinstance(value, str):
        return [value.removeprefix(_MODEL)] if value.startswith(_MODEL) else []
    if isinstance(value, dict):
        return [one for item in value.values() for one in _models_in(item)]
    if isinstance(value, list | tuple):
        return [one for item in value for one in _models_in(item)]
    return []


def _close(manager: Any, comm: Any) -> None:
    manager.comms.pop(comm.comm_id, None)
    comm._closed = True
    comm.handle_close({"content": {"comm_id": comm.comm_id, "data": {}}, "buffers": []})
