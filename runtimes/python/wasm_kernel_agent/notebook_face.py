"""`get_ipython().kernel`: the little of a kernel that is inside the guest, for libraries."""

from __future__ import annotations

import platform
from typing import Any, NoReturn


class KernelFace:
    """Stands for the kernel, which itself lies outside of the sandbox.

    Attributes:
        shell: IPython's shell.
        comm_manager: Every open comm.
    """

    implementation = "wasm-kernel"

    def __init__(self, shell: Any, comm_manager: Any) -> None:
        self.shell = shell
        self.comm_manager = comm_manager
        self.language_info = {
            "name": "python",
            "version": platform.python_version(),
            "mimetype": "text/x-python",
            "file_extension": ".py",
        }

    def get_parent(self, channel: str | None = None) -> dict[str, Any]:
        """The request that is being served, as far as the guest is told of it."""
        parent: dict[str, Any] = self.shell.get_parent()
        return parent

    @property
    def _parent_header(self) -> dict[str, Any]:
        return self.get_parent()

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"the kernel lies outside of the sandbox: {name!r} can't be reached from a cell"
        )


def parent_of(request: dict[str, Any]) -> dict[str, Any]:
    """The front end's message behind a request, as far as the guest is told of it."""
    header = dict(request.get("parent") or {})
    return {
        "header": header,
        "msg_id": header.get("msg_id", ""),
        "msg_type": header.get("msg_type", ""),
        "parent_header": {},
        "metadata": {},
        "content": {},
        "buffers": [],
    }
