"""A kernel process on the fake sandbox: `python -m tests.frontends.fake_kernel -f FILE`.

`FAKE_START` says how its start goes: `fault`, or the path of a file that ends it when it appears.
Cells can wait for messages with `behind`. `FAKE_UNHEARD` is the time that a client may take to
subscribe.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tests.fake_sandbox import FakeSandbox
from wasm_kernel.frontends.jupyter.app import main
from wasm_kernel.frontends.jupyter.kernel_sandbox import KernelHome, Note
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import SandboxResult
from wasm_kernel.service.open_message import Open
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.sessions.session import Session

if TYPE_CHECKING:
    from wasm_kernel.frontends.jupyter.kernel import WasmKernel

START = os.environ.get("FAKE_START", "")
_kernels: list[WasmKernel] = []


def gate(progress: Callable[[str], None]) -> None:
    progress("compiling the fake")
    if START == "fault":
        raise LookupError("/a/path/of/the/host")
    if START.startswith("/"):
        while not Path(START).exists():
            time.sleep(0.02)


def behind(count: int) -> None:
    """Waits until this number of messages is queued behind the running cell."""
    while len(_kernels[0]._tasks) <= count:
        time.sleep(0.01)


class Fake(FakeSandbox):
    """A fake sandbox that can have the kernel interrupted when it is about to queue a cell."""

    interrupts_next = False

    def queue(self, *args: Any) -> Future[SandboxResult]:
        if self.interrupts_next:
            self.interrupts_next = False
            _kernels[0].interrupt()
        return super().queue(*args)


def _watch_kernels() -> None:
    from wasm_kernel.frontends.jupyter import kernel

    def start(one: WasmKernel) -> None:
        _kernels.append(one)
        its_own(one)

    ours: Any = kernel
    its_own, ours.WasmKernel.start = ours.WasmKernel.start, start
    ours.UNHEARD_SECONDS = float(os.environ.get("FAKE_UNHEARD", ours.UNHEARD_SECONDS))


def fake(
    opened: Open, session: Session, policy: ExecutionPolicy, home: KernelHome, note: Note
) -> Sandbox:
    _watch_kernels()
    made = Fake(session.workspace, policy, gate=gate)
    made.namespace.update(workspace=session.workspace, policy=policy, session_id=session.id)
    made.namespace.update(sandbox=made, behind=behind)
    made.namespace.update(stdin=lambda: _kernels[0].stdin_socket)
    return cast("Sandbox", made)


if __name__ == "__main__":
    main(factory=fake)
