"""What this kernel has not: a debugger, subshells, child processes."""

# mypy: disable-error-code="no-untyped-call"
# (ipykernel carries no types)

from __future__ import annotations

from typing import Any

from ipykernel.kernelbase import Kernel
from traitlets import Any as AnyTrait

from wasm_kernel.frontends.jupyter import messages

Content = dict[str, Any]


class PlainKernel(Kernel):
    """A kernel that answers each request for what it lacks, so that no client waits for a reply."""

    profile_dir = AnyTrait(help="IPython's, which the base class would import to check it.")

    def __init__(self, **traits: Any) -> None:
        self.msg_types = [*Kernel.msg_types, "comm_open", "comm_msg", "comm_close"]
        super().__init__(**traits)

    def answer(
        self, socket: Any, kind: str, content: Content, parent: Content, ident: Any = None
    ) -> None:
        """Send one message on a channel."""
        assert self.session is not None
        self.session.send(socket, kind, content, parent, ident)

    async def do_debug_request(self, msg: Content) -> Content:
        """Refuse, in the debug adapter protocol's own words."""
        return {
            "type": "response",
            "request_seq": msg.get("seq", 0),
            "success": False,
            "command": msg.get("command", ""),
            "message": "This kernel has no debugger.",
        }

    async def create_subshell_request(self, socket: Any, ident: Any, parent: Content) -> None:
        """Refuse: one guest runs one cell at a time."""
        refused = messages.own_error("NotSupported", "This kernel has no subshells.")
        kind = parent["header"]["msg_type"].removesuffix("_request") + "_reply"
        content = {"status": "error"} | messages.error_fields(refused)
        self.answer(socket, kind, content, parent, ident)

    delete_subshell_request = create_subshell_request
    list_subshell_request = create_subshell_request

    def _process_children(self) -> list[Any]:
        # the base class would ask psutil, at the cost of importing it
        return []
