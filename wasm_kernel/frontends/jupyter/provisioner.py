"""Starts a kernel, and returns once a client can connect to it.

Jupyter loads it by the name in the shipped kernelspec, in the server's or client's own process.
Its own provisioner returns at once. So a client connects a few milliseconds before the new process
listens, is refused, and tries again 100 to 200 ms later.
"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

_MOST_SECONDS = 1.0  # on a busy machine, clients try again as they do with other kernels
_POLL_SECONDS = 0.002


class ListeningProvisioner(LocalProvisioner):
    """Jupyter's provisioner of local kernels, which also waits until the kernel listens."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Starts a kernel's command; returns when it listens, or has ended, or after a second."""
        info = await super().launch_kernel(cmd, **kwargs)
        until = time.monotonic() + _MOST_SECONDS
        while not self._listens() and await self.poll() is None and time.monotonic() < until:
            await asyncio.sleep(_POLL_SECONDS)
        return info

    def _listens(self) -> bool:
        """Returns whether the ports are open; True if there are none, as with ipc."""
        info = self.connection_info
        if info["transport"] != "tcp":
            return True
        with socket.socket() as trial:  # the launcher opens the control channel's last
            trial.settimeout(_POLL_SECONDS)  # a full backlog would block the server for minutes
            return trial.connect_ex((info["ip"], info["control_port"])) == 0
