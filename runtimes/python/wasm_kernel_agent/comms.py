"""Comms: the channels between objects in the guest, such as widgets, and the front end's page.

`comm.create_comm()` makes a `GuestComm`; what it says goes out as frames. What the front end says
comes in as turns of their own, served here.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable
from typing import Any

import comm
from comm.base_comm import BaseComm, CommManager

from wasm_kernel_agent import bundles, resync
from wasm_kernel_agent.cells import settle
from wasm_kernel_agent.door import Door
from wasm_kernel_agent.kernel import parent_of
from wasm_kernel_agent.outbox import flush
from wasm_kernel_agent.signals import Signals
from wasm_kernel_agent.stdin import Stdin

Reply = dict[str, Any]
Say = Callable[[Reply], Any]

_KINDS = {"open": "comm_open", "msg": "comm_msg", "close": "comm_close"}


class GuestComm(BaseComm):
    """One end of a channel; the other is in the front end. `say` sends a frame."""

    say: Say

    def publish_msg(
        self,
        msg_type: str,
        data: Any = None,
        metadata: Any = None,
        buffers: Any = None,
        **keys: Any,
    ) -> None:
        """Send a message; `msg_type` is `comm_open`, `comm_msg` or `comm_close`.

        Raises:
            FrameTooLarge: it is larger than a frame may be.
            NotCarried: it holds what JSON can't.
        """
        frame = {
            "op": msg_type,
            "comm_id": self.comm_id,
            "data": bundles.jsonable(data or {}),
            "metadata": bundles.jsonable(metadata or {}),
            "buffers": [base64.b64encode(each).decode("ascii") for each in buffers or ()],
        }
        self.say({**frame, **keys})


class GuestCommManager(CommManager):
    """Knows every open comm, and the targets that a front end may open one to."""

    def __init__(self, say: Say) -> None:
        super().__init__()
        self._say = say

    def register_target(self, target_name: str, f: Any) -> None:
        """From now on `f` is called when a front end opens a comm to `target_name`."""
        super().register_target(target_name, f)
        self._say({"op": "comm_target", "name": target_name})


def install(say: Say) -> GuestCommManager:
    """Make comms of this interpreter speak through `say`, the outbox's; their one manager."""
    manager = GuestCommManager(say)

    def create_comm(*args: Any, **kwargs: Any) -> BaseComm:
        return GuestComm(*args, **kwargs)

    GuestComm.say = staticmethod(say)
    comm.create_comm = create_comm
    comm.get_comm_manager = lambda: manager
    return manager


class Comms:
    """Serves what the front end says on comms: one message a turn, or while a cell awaits."""

    def __init__(self, shell: Any, signals: Signals, stdin: Stdin, door: Door) -> None:
        self._shell = shell
        self._manager: GuestCommManager = shell.kernel.comm_manager
        self._send = door.send
        self._signals = signals
        self._stdin = stdin

    def serve(self, request: Reply) -> Reply:
        """Hand a message to its comm; errors of callbacks are shown, as after a cell."""
        shell = self._shell
        self._stdin.install(False)
        shell.awaiter.make_current()
        shell.set_parent(parent_of(request))
        handle = getattr(self._manager, _KINDS[request["kind"]])
        try:
            self._signals.interruptible(lambda: handle(None, None, message_of(request)))
            self._signals.interruptible(shell.awaiter.go_on)  # a task may have waited for it
        except KeyboardInterrupt as interrupt:
            shell.showtraceback((KeyboardInterrupt, interrupt, None))
        finally:
            flush()
            settle(shell)
        shell.payload_manager.clear_payload()
        return {"status": "ok"}

    @property
    def open(self) -> bool:
        """Whether a front end is there, and could say something on a comm."""
        parent = self._shell.parent_header or {}
        return bool(self._manager.comms) and bool(parent.get("msg_id"))

    def hear(self) -> bool:
        """Serve one message that came while the cell awaits; False where none did."""
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

    def agree(self, request: Reply) -> Reply:
        """Say which comms are open here, after what the front end shows was brought in line."""
        manager, present = self._manager, request.get("open")
        with contextlib.suppress(KeyboardInterrupt):
            if present is not None:
                self._signals.interruptible(lambda: resync.agree(manager, present))
        return {
            "status": "ok",
            "comms": {one.comm_id: str(one.target_name) for one in manager.comms.values()},
            "targets": list(manager.targets),
        }


def message_of(request: Reply) -> Reply:
    """A comm message as handlers of ipykernel's get it."""
    content = {"comm_id": request["comm_id"], "data": request.get("data") or {}}
    if request["kind"] == "open":
        content["target_name"] = request.get("target_name", "")
    return {
        **parent_of(request),
        "metadata": request.get("metadata") or {},
        "content": content,
        "buffers": [memoryview(base64.b64decode(each)) for each in request.get("buffers") or ()],
    }
