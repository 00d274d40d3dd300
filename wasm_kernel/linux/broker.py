"""The porter: a process outside the walls that does a few named duties for the one inside.

It is forked before the walls are closed, so it costs a millisecond and no second interpreter. The
two talk in JSON packets over a pair of sockets. Whoever has taken over the inner process can ask
for every duty: each must check what it is handed, as if a stranger had sent it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from wasm_kernel.errors import WasmKernelError

Tell = Callable[[str], None]
Stopped = Callable[[], bool]
Duty = Callable[[Mapping[str, Any], Tell, Stopped], Mapping[str, Any]]
"""Does one thing: gets its fields, a way to say how far it is, and whether it should stop.

What it returns, and the text of a `WasmKernelError` that it raises, reach who asked.
"""

_PACKET = 128 * 1024  # a sequenced packet arrives whole or not at all
_POLL_SECONDS = 0.05
_LEAVE_SECONDS = 0.5  # what a duty has to put away what it was in the midst of
_ALL = 1 << 62  # beyond the number of every wish


class PorterError(WasmKernelError):
    """The porter could not do what it was asked."""


class Porter:
    """The inner side. Any thread may ask; one duty is done at a time."""

    def __init__(self, link: socket.socket, process: int) -> None:
        self._link = link
        self._process = process
        self._guard = threading.Lock()
        self._asked = 0

    def ask(
        self,
        duty: str,
        fields: Mapping[str, Any],
        tell: Tell = lambda text: None,
        stopped: Stopped = lambda: False,
    ) -> Mapping[str, Any]:
        """Have a duty done, and wait for it.

        Args:
            duty: Its name.
            fields: What it needs, as JSON.
            tell: Hears what the porter says meanwhile.
            stopped: Asked now and then; once it says True, the porter is told to stop.

        Raises:
            PorterError: it failed, with its own words, or there is no porter any more.
        """
        with self._guard:
            self._asked += 1
            try:
                self._link.send(_packet({"do": duty, "fields": dict(fields), "as": self._asked}))
                return self._hear(tell, stopped)
            except OSError as problem:
                raise PorterError(
                    "the kernel's helper process has ended. Restart the kernel."
                ) from problem

    def _hear(self, tell: Tell, stopped: Stopped) -> Mapping[str, Any]:
        told_to_stop = False
        while True:
            if not told_to_stop and stopped():
                told_to_stop = True
                self._link.send(_packet({"stop": self._asked}))
            try:
                said = _received(self._link)
            except TimeoutError:
                continue
            if "say" in said:
                tell(str(said["say"]))
            elif "failed" in said:
                raise PorterError(str(said["failed"]))
            else:
                answer: Mapping[str, Any] = said["done"]
                return answer

    def close(self) -> None:
        """Let it end; idempotent."""
        self._link.close()
        if self._process:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._process, os.WNOHANG)
            self._process = 0


def hire(duties: Mapping[str, Duty]) -> Porter:
    """Fork the porter. The process must have one thread, and not be within its walls yet.

    It ends within a second of the inner process, whatever it is doing then.

    Args:
        duties: What it does, by name.
    """
    inner, outer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = os.fork()
    if process:
        outer.close()
        inner.settimeout(_POLL_SECONDS)
        return Porter(inner, process)
    try:
        inner.close()
        # The group's signals are for the kernel: this process ends with it, but first puts away
        # what it was in the midst of, also when the whole group is killed.
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _Service(outer, duties).run()
    finally:
        os._exit(0)


class _Service:
    """The outer side: the main thread does duties, another one reads."""

    def __init__(self, link: socket.socket, duties: Mapping[str, Duty]) -> None:
        self._link = link
        self._duties = duties
        self._wishes: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._stopped = 0  # the last wish that is to stop

    def run(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()
        while (wish := self._wishes.get()) is not None and self._stopped < _ALL:
            with contextlib.suppress(OSError):
                self._link.send(_packet(self._answer(wish)))

    def _read(self) -> None:
        try:
            while said := _received(self._link):
                if "stop" in said:
                    self._stopped = int(said["stop"])
                else:
                    self._wishes.put(said)
        except (OSError, ValueError, TypeError):
            pass
        self._stopped = _ALL
        self._wishes.put(None)
        time.sleep(_LEAVE_SECONDS)
        os._exit(0)  # a duty that does not heed `stopped`, such as compiling, only fills the cache

    def _answer(self, wish: Mapping[str, Any]) -> Mapping[str, Any]:
        number = int(wish["as"])
        duty = self._duties.get(str(wish["do"]))
        if duty is None:
            return {"failed": "there is no such duty"}
        try:
            done = duty(wish["fields"], self._say, lambda: self._stopped >= number)
            _packet({"done": dict(done)})
        except WasmKernelError as problem:
            return {"failed": str(problem)}
        except Exception as problem:
            return {"failed": f"it failed unexpectedly ({type(problem).__name__})"}
        return {"done": dict(done)}

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._link.send(_packet({"say": text[: _PACKET // 8]}))


_TIE = """
import ctypes, os, signal
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != {parent}:
    os._exit(1)
"""


def tied_command(code: str) -> list[str]:
    """The command of a Python that runs `code`, and is killed when the calling thread has ended.

    It imports nothing from the folder that it is started in. The system sends the signal, so it
    also comes if this process is killed.
    """
    return [sys.executable, "-P", "-c", _TIE.format(parent=os.getpid()) + code]


def _packet(said: Mapping[str, Any]) -> bytes:
    data = json.dumps(said).encode()
    if len(data) > _PACKET:
        raise PorterError("its answer is too long")
    return data


def _received(link: socket.socket) -> dict[str, Any]:
    """The next packet; an empty object where the other side is gone.

    Raises:
        TimeoutError: none came in time.
        OSError, ValueError: it is none.
    """
    data = link.recv(_PACKET)
    said = json.loads(data) if data else {}
    if not isinstance(said, dict):
        raise ValueError("not an object")
    if not said and link.gettimeout() is not None:
        raise ConnectionError("the other side is gone")
    return said
