"""`BatchKernel`: the kernel of one notebook, in a process of its own behind both walls.

This interpreter starts it; the notebook's kernelspec is ignored. How a cell ended is read from the
kernel's own events, which no cell can write, since a cell can raise an error of any name.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty
from typing import Any

import zmq
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient.util import ensure_async
from nbformat import NotebookNode

from wasm_kernel import events
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.frontends.batch.notebook_client import CellClient
from wasm_kernel.frontends.batch.outcome import Verdict, plain
from wasm_kernel.frontends.batch.run_folder import RunFolder

START_SECONDS = 600.0  # the first kernel on a machine compiles the guest
_RECONNECT_MS = 2
_ARGV = ("-m", "wasm_kernel", "-f", "{connection_file}")
_LOG = "events.jsonl"
_REFUSED = "KernelNotStarted"  # the error of each cell of a kernel that could not open its session
_HEARD_BYTES = 4096
_NOT_STARTED = "The kernel did not start: {why}."
_OUTPUT_LIMITS = (
    *("stdout_bytes", "stderr_bytes", "display_bytes", "display_count"),
    *("output_bytes", "session_output_bytes"),
)
_VERDICTS: Mapping[str, Verdict] = {
    "cell_timeout": "timeout",
    "fuel_budget": "out-of-fuel",
    "memory_bytes": "out-of-memory",
    "workspace_bytes": "disk-full",
    "workspace_files": "disk-full",
}
"""The verdict on a failed cell, by the limit that it met."""


class KernelLost(WasmKernelError):
    """The kernel's process is gone, or does not answer."""


class _OwnKernelSpec(KernelSpecManager):
    """Knows one kernelspec: this package's."""

    def __init__(self, spec: KernelSpec) -> None:
        super().__init__()
        self._spec = spec

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return self._spec


class BatchKernel:
    """A kernel with some traits, started in a folder, and nbclient's client of it."""

    def __init__(self, settings: Mapping[str, Any], folder: Path) -> None:
        self._place = RunFolder()
        self._log = self._place.path / _LOG
        self._read = 0
        self._folder = folder
        words = [*_words({**settings, "event_log": str(self._log)})]
        spec = KernelSpec(
            argv=[sys.executable, *_ARGV, *words],
            language="python",
            env={"PYTHONSAFEPATH": "1", "OPENBLAS_NUM_THREADS": "1"},
            interrupt_mode="message",
        )
        # sockets in a private folder: another process could take a port between choice and use
        self._manager = AsyncKernelManager(
            kernel_spec_manager=_OwnKernelSpec(spec),
            transport="ipc",
            ip=str(self._place.path / "s"),
            connection_file=str(self._place.path / "kernel.json"),
        )
        self._client: Any = None  # nbclient's
        self._errors, self._heard = -1, b""

    async def start(self, book: NotebookNode) -> CellClient:
        """Starts the kernel; returns a client that runs a notebook's cells, or `KernelLost`."""
        errors = self._listen()
        try:
            await self._manager.start_kernel(
                cwd=str(self._folder), stdout=subprocess.DEVNULL, stderr=errors
            )
        except (RuntimeError, OSError) as problem:
            raise KernelLost(_NOT_STARTED.format(why=self._last_words())) from problem
        finally:
            os.close(errors)
        client = CellClient(book, km=self._manager)
        client.kc = self._manager.client()
        self._client = client
        book.metadata["language_info"] = dict((await self._greet())["language_info"])
        return client

    async def _greet(self) -> dict[str, Any]:
        """Connects to the kernel; returns its description of itself.

        The kernel answers once its outputs can be received, too. jupyter_client's own method also
        waits for further outputs for 0.2 s.
        """
        end = time.monotonic() + START_SECONDS
        kc = self._client.kc
        # by default a socket that finds no kernel yet tries again after 100 ms
        kc.context.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        kc.start_channels()
        kc.allow_stdin = False
        asked = kc.kernel_info()
        while time.monotonic() < end and await self._manager.is_alive():
            with suppress(Empty):
                reply = await kc.shell_channel.get_msg(timeout=1)
                if reply["parent_header"].get("msg_id") == asked:
                    content: dict[str, Any] = reply["content"]
                    return content
        raise KernelLost(_NOT_STARTED.format(why=self._last_words()))

    async def ready(self) -> None:
        """Waits until the guest of a new session, which has run no cell yet, is ready.

        After `KernelLost` the kernel itself stays, and each cell would get the error.
        """
        reply = await self._reply(self._client.kc.execute("", silent=True))
        if reply["status"] != "ok":
            is_refused = reply.get("ename") == _REFUSED
            why = self._last_words() if is_refused else plain(str(reply.get("evalue", "")))
            raise KernelLost(_NOT_STARTED.format(why=why.removesuffix(".")))

    async def _reply(self, sent: str) -> dict[str, Any]:
        """The content of the reply to a message; `KernelLost` if there is none."""
        reply = await self._client.async_wait_for_reply(sent)
        if reply is None:
            raise KernelLost("The kernel did not answer.")
        content: dict[str, Any] = reply["content"]
        return content

    def _listen(self) -> int:
        """Returns a descriptor for the kernel's standard error; its last bytes are kept."""
        self._errors, errors = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(errors, True)
        asyncio.get_running_loop().add_reader(self._errors, self._hear)
        return errors

    def _hear(self) -> None:
        if data := os.read(self._errors, _HEARD_BYTES):
            self._heard = (self._heard + data)[-_HEARD_BYTES:]
        else:
            asyncio.get_running_loop().remove_reader(self._errors)

    def _last_words(self) -> str:
        """The last line of standard error of a process that ended before it was a kernel."""
        with suppress(BlockingIOError):
            self._hear()
        lines = self._heard.decode(errors="replace").split("\n")
        said = next((line for line in reversed(lines) if line.strip()), "it did not say why")
        return plain(said).removeprefix("wasm-kernel: ").removesuffix(".")

    async def restore(self, count: int) -> bool:
        """Restores variables and files to their state after a cell; False if it was not kept.

        A number in brackets means a cell, even if a checkpoint has the number as its name.
        """
        sent = self._client.kc.execute(f"%restore [{count}] --files", store_history=False)
        return bool((await self._reply(sent))["status"] == "ok")

    def limits_met(self) -> set[str]:
        """Returns the limits met since the last call, from the kernel's events."""
        news = self._news()
        return {str(each["limit"]) for each in news if each["event"] == events.EXECUTION_LIMIT}

    def has_ended_cell(self) -> bool:
        """Returns whether a cell has ended since the last `limits_met`, from the kernel's events.

        A cell can end the kernel (`os.kill(os.getpid(), 9)`), which then sends no reply.
        """
        return any(each["event"] == events.EXECUTION_COMPLETE for each in self._news())

    def _news(self) -> list[dict[str, Any]]:
        """The events that were written since the last call."""
        found = []
        with suppress(OSError), self._log.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                found.append(json.loads(line))
        return found

    async def close(self, *, kill: bool) -> None:
        """Ends the kernel; its session stays. With `kill`, states not on disk yet are lost."""
        with suppress(RuntimeError, OSError, zmq.ZMQError):  # it is gone already
            await self._manager.shutdown_kernel(now=kill)
        if self._client is not None:
            self._client.kc.stop_channels()
        if self._errors >= 0:
            asyncio.get_running_loop().remove_reader(self._errors)
            os.close(self._errors)
            self._errors = -1
        await ensure_async(self._manager.cleanup_resources())
        self._place.remove()


def verdict_of(limits: set[str], ename: str) -> Verdict:
    """Returns the verdict on a failed cell, by the limits that it met and its error's class."""
    for limit, verdict in _VERDICTS.items():
        if limit in limits:
            return verdict
    if limits & set(_OUTPUT_LIMITS):
        return "output-limit"
    return "out-of-memory" if ename == "MemoryError" else "error"


def stopping_limit(limits: set[str]) -> str:
    """Returns a limit that ends a notebook even after a cell that did not fail; empty if none."""
    return next((limit for limit in _OUTPUT_LIMITS if limit in limits), "")


def _words(settings: Mapping[str, Any]) -> list[str]:
    listed = {
        name: value if isinstance(value, tuple) else (value,) for name, value in settings.items()
    }
    return [f"--WasmKernel.{name}={each}" for name, values in listed.items() for each in values]
