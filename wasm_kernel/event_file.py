"""A file that hears every event, one JSON object a line: for an application without a log of its
own, such as a kernel.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from wasm_kernel.errors import WasmKernelError

if TYPE_CHECKING:
    from wasm_kernel.events import EventLogger

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
_PRIVATE = 0o600


class EventFileError(WasmKernelError):
    """The file for events can't be opened."""


class EventFile:
    """Lines at the end of a file, from any thread and any number of processes.

    The file is its owner's alone. What can't be written is dropped: an event is never worth a cell.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, and make it where it is missing.

        Raises:
            EventFileError: it can't be opened.
        """
        try:
            self._descriptor = os.open(path, _FLAGS, _PRIVATE)
        except OSError as problem:
            raise EventFileError(
                f"The file for events can't be opened ({problem.strerror}). Set event_log to a "
                "file that you can write to, or leave it out."
            ) from None
        self._guard = threading.Lock()
        self._torn = False  # the last line on disk has no end

    def logger(self) -> EventLogger:
        """A structlog logger whose events end here, each with its time and level."""
        import structlog

        logger: EventLogger = structlog.wrap_logger(
            self,
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.JSONRenderer(default=str),
            ],
            cache_logger_on_first_use=True,
        )
        return logger

    def msg(self, line: str) -> None:
        """One line; what structlog calls for every level."""
        with self._guard:
            data = b"\n" * self._torn + line.encode("utf-8", "replace") + b"\n"
            if self._descriptor < 0:
                return
            try:
                written = os.write(self._descriptor, data)
            except OSError:
                return
            self._torn = written < len(data)

    info = warning = msg

    def close(self) -> None:
        """Hear nothing more; idempotent."""
        with self._guard:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
