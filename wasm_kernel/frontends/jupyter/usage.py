"""The kernel's use of resources, for monitors: the fields of ipykernel, and the guest's.

Unlike ipykernel it does not search the machine for child processes, as a confined process can't see
them. The one that matters, the guest's worker, is known.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from wasm_kernel.result import SandboxResult
from wasm_kernel.service.sandbox import Sandbox


class KernelUsage:
    """The resources that the last cell used. The main thread notes them, the control thread asks.

    In the reply to `usage_request`, `kernel_memory` is the memory in bytes of this process and the
    guest's, and `kernel_cpu` their use of one processor in percent since the last reply.
    `guest_memory` is the size of the guest's memory after the last cell, which only grows;
    `fuel_consumed` is the fuel of that cell, or null if fuel is not counted.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._policy = sandbox.policy
        self._before = (time.monotonic(), 0.0)
        self._process: Any = None
        self._memory = 0
        self._fuel: int | None = None

    def note(self, result: SandboxResult) -> None:
        """Notes the result of a cell."""
        self._memory, self._fuel = result.memory_used_bytes, result.fuel_consumed

    def reply(self) -> dict[str, Any]:
        """The content of `usage_reply`."""
        return self._of_machine() | {
            "hostname": socket.gethostname(),
            "pid": os.getpid(),
            "cpu_count": os.cpu_count(),
            "guest_memory": self._memory,
            "guest_memory_limit": self._policy.memory_bytes,
            "fuel_consumed": self._fuel,
            "fuel_budget": self._policy.fuel_budget,
        }

    def _of_machine(self) -> dict[str, Any]:
        import psutil  # slow, and only needed with a monitor

        if self._process is None:
            self._process = psutil.Process()
        memory, guests = self._process.memory_full_info(), self._sandbox.process_usage()
        now, (before, used) = time.monotonic(), self._before
        self._before = (now, guests.cpu_seconds)
        percent = 100 * max(0.0, guests.cpu_seconds - used) / max(now - before, 1e-3)
        found = {
            "kernel_cpu": self._process.cpu_percent() + percent,
            "kernel_memory": getattr(memory, "pss", memory.rss) + guests.memory_bytes,
            "host_virtual_memory": dict(psutil.virtual_memory()._asdict()),
        }
        host = psutil.cpu_percent()
        # the first value is meaningless, and ipykernel leaves it out as well
        return found | ({"host_cpu_percent": host} if host else {})
