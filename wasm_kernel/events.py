"""Events for the application's log: `SandboxLogger`, and the name of every event.

Each name stands here once, with its fields. No event is written until the application either passes
a logger or configures structlog itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from msgspec import Struct, field

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import SHORT_MOST, CellResult, SandboxResult

EXECUTION_START = "execution.start"  # runtime, fuel_budget, memory_bytes, cell_timeout, session_id
EXECUTION_COMPLETE = "execution.complete"  # runtime, success, exit_code, error, fuel_consumed,
#                                            memory_used_bytes, duration, session_id
EXECUTION_TRAP = "execution.trap"  # runtime, trap, session_id: the guest was lost in a cell
EXECUTION_LIMIT = "execution.limit"  # runtime, limit, session_id: a cell met a policy's field

MEMORY_ROLLBACK = "memory.rollback"  # to_cell, session_id: back to before a lost cell
MEMORY_CHECKPOINT = "memory.checkpoint"  # name, cell, session_id
MEMORY_UNDO = "memory.undo"  # to_cell, cells, session_id
MEMORY_REDO = "memory.redo"  # to_cell, cells, session_id
MEMORY_RESTORE = "memory.restore"  # to_cell, cells, session_id
MEMORY_RESUME = "memory.resume"  # cell, crashed, session_id: from an earlier process's state
MEMORY_NAMED = "memory.named"  # names, session_id: the number that outlived the variables
MEMORY_TROUBLE = "memory.trouble"  # error, session_id: a state is lost, or can't be kept

SESSION_CREATED = "session.created"  # session_id, workspace_path
SESSION_RETRIEVED = "session.retrieved"  # session_id, workspace_path
SESSION_DELETED = "session.deleted"  # session_id
SESSION_FORKED = "session.forked"  # session_id, fork_id
SESSION_EXPORTED = "session.exported"  # session_id, files, states
SESSION_IMPORTED = "session.imported"  # session_id, files, states

FILE_LIST = "session.file.list"  # session_id, pattern, count
FILE_READ = "session.file.read"  # session_id, path, size_bytes
FILE_WRITE = "session.file.write"  # session_id, path, size_bytes
FILE_DELETE = "session.file.delete"  # session_id, path
FILE_PUBLISHED = "session.file.published"  # session_id, path: copied beside the notebook

FUNCTION_CALLED = "function.called"  # function, outcome, duration, argument_bytes, result_bytes,
#                                      session_id: a cell called a function of its program

NETWORK_REQUEST = "network.request"  # method, host, path, status, size, duration, placeholder,
#                                      replayed, session_id: a cell's request, without its query;
#                                      status 0 if none came, placeholder if it held one that was
#                                      not replaced, replayed if its answer was a recorded one

METADATA_FAILED = "session.metadata.failed"  # session_id, error
METADATA_CORRUPTED = "session.metadata.corrupted"  # session_id, error

PRUNE_STARTED = "session.prune.started"  # threshold, workspace_root, dry_run
PRUNE_CANDIDATE = "session.prune.candidate"  # session_id, age_hours, size_bytes
PRUNE_DELETED = "session.prune.deleted"  # session_id
PRUNE_SKIPPED = "session.prune.skipped"  # session_id, reason
PRUNE_IN_USE = "session.prune.in_use"  # session_id, reason
PRUNE_FAILED = "session.prune.failed"  # session_id, error
PRUNE_COMPLETED = "session.prune.completed"  # deleted_count, skipped_count, in_use_count,
#                                              error_count, reclaimed_bytes,
#                                              reclaimed_private_bytes, duration

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
_OWNER_ONLY = 0o600

_OF_CELLS = (EXECUTION_TRAP, EXECUTION_LIMIT, MEMORY_TROUBLE)
WARNINGS = frozenset((*_OF_CELLS, METADATA_FAILED, METADATA_CORRUPTED, PRUNE_SKIPPED, PRUNE_FAILED))


class EventLogger(Protocol):
    """The part of a structlog logger that is used here."""

    def info(self, event: str, /, *args: Any, **fields: Any) -> Any:
        """An ordinary event."""

    def warning(self, event: str, /, *args: Any, **fields: Any) -> Any:
        """An event that an operator should look at."""


class SandboxLogger:
    """Sends events to a logger; immutable, so every thread may use it.

    Without a logger of its own it uses structlog once the application has configured it, and is
    silent before. If a logger raises, the event is lost and the call goes on; the logger
    `wasm_kernel` of the `logging` module reports it.

    Args:
        logger: A structlog logger, any object with its `info` and `warning`, or a logger of the
            `logging` module, whose records get the attributes `event` and `fields`.
        fields: Fields that every event carries, such as `session_id`.

    Raises:
        TypeError: `logger` is none of these.
    """

    def __init__(
        self, logger: EventLogger | None = None, fields: Mapping[str, Any] | None = None
    ) -> None:
        methods = (getattr(logger, name, None) for name in ("info", "warning"))
        if logger is not None and not all(map(callable, methods)):
            raise TypeError(
                "a SandboxLogger takes a structlog logger, or one of the logging module, not "
                f"{type(logger).__name__}"
            )
        self._logger = logger
        self.fields: Mapping[str, Any] = MappingProxyType(dict(fields or {}))

    @classmethod
    def of(cls, logger: SandboxLogger | EventLogger | None) -> SandboxLogger:
        """Returns the logger of a call: silent if there is none, wrapped if it is not ours.

        Raises:
            TypeError: It is not a logger.
        """
        return logger if isinstance(logger, SandboxLogger) else cls(logger)

    def bind(self, **fields: Any) -> SandboxLogger:
        """Returns a logger that adds `fields` to every event."""
        return SandboxLogger(self._logger, {**self.fields, **fields})

    def log_event(self, event: str, /, **fields: Any) -> None:
        """Sends one event, at level `warning` for those in `WARNINGS` and at `info` otherwise.

        Paths and enum members become plain values; a field that is None is left out.
        """
        try:
            logger = self._logger or _configured_logger()
            if logger is not None:
                merged = {**self.fields, **fields}
                plain = {name: _plain(value) for name, value in merged.items() if value is not None}
                _send(logger, event, plain)
        except (Exception, SystemExit) as problem:  # the application's own code
            _lost(event, problem)

    def log_execution_start(
        self, runtime: str, policy: ExecutionPolicy, session_id: str | None = None
    ) -> None:
        """Sends the start of a cell, with its limits."""
        self.log_event(
            EXECUTION_START,
            runtime=runtime,
            fuel_budget=policy.fuel_budget,
            memory_bytes=policy.memory_bytes,
            cell_timeout=policy.cell_timeout,
            **_session(session_id),
        )

    def log_execution_complete(
        self, runtime: str, result: SandboxResult | CellResult, session_id: str | None = None
    ) -> None:
        """Sends the result of a cell, with an error's class, but never its text."""
        self.log_event(
            EXECUTION_COMPLETE,
            runtime=runtime,
            success=result.success,
            exit_code=result.exit_code,
            error=result.error.ename[:SHORT_MOST] if result.error else None,
            fuel_consumed=result.fuel_consumed,
            memory_used_bytes=result.memory_used_bytes,
            duration=result.duration,
            **_session(session_id),
        )


class Notices(Struct, eq=False):
    """The news of a sandbox: events for the application's log, sentences for its user.

    A sentence waits for the next cell that a user sees. Any thread may add one.

    Attributes:
        logger: Gets the events.
        quiet: True if a session that resumes unchanged needs no sentence.
        crash_is_told: True if a session that resumes after a crash needs no sentence either.
        page: Takes sentences to show beside the output of cells; None if no page shows them.
        on_wait: Takes the most seconds for which the start waits for another process.
    """

    logger: SandboxLogger
    quiet: bool = False
    crash_is_told: bool = False
    page: Callable[[str], None] | None = None
    on_wait: Callable[[float], None] = lambda seconds: None
    _unseen: deque[str] = field(default_factory=deque)
    _resumed: str = ""

    def log(self, event: str, **fields: Any) -> None:
        """Sends an event, without a sentence for the user."""
        self.logger.log_event(event, **fields)

    def tell(self, text: str, event: str = MEMORY_TROUBLE, **fields: Any) -> None:
        """Keeps a sentence for the user, and sends an event with fields.

        No field may hold a part of a cell's text. By default the event says that a state is lost
        or can't be kept.
        """
        self._unseen.append(text)
        self.log(event, **fields)

    def tell_resumed(self, text: str, event: str, **fields: Any) -> None:
        """Keeps the sentence that the session goes on, which a page may show before any cell."""
        self._resumed = text
        self.log(event, **fields)

    def pop_resumed(self) -> str:
        """Returns the sentence that the session goes on; empty if the user has seen it."""
        text, self._resumed = self._resumed, ""
        return text

    def note(self, text: str, event: str, **fields: Any) -> None:
        """Sends an event, and has the page show the user a sentence, outside of a cell's output."""
        if self.page is not None:
            self.page(text)
        self.log(event, **fields)

    def pop_unseen(self) -> list[str]:
        """Returns the sentences that the user has not seen yet, and forgets them."""
        taken = [text] if (text := self.pop_resumed()) else []
        while self._unseen:  # one by one: other threads may add more
            taken.append(self._unseen.popleft())
        return taken

    def pop_last(self) -> str:
        """Returns the last sentence and forgets it: the caller shows it in another way."""
        return self._unseen.pop()


class EventFile:
    """A file that gets every event, one JSON object per line.

    It is for an application without a log of its own, such as a kernel. Any thread and any number
    of processes may write to one file, which its owner alone can read. A line that can't be written
    is dropped: an event never costs a cell.
    """

    def __init__(self, path: Path) -> None:
        """Opens the file, and makes it if missing. Raises `WasmKernelError` if that fails."""
        try:
            self._descriptor = os.open(path, _APPEND, _OWNER_ONLY)
        except OSError as problem:
            raise WasmKernelError(
                f"The file for events can't be opened ({problem.strerror}). Set event_log to a "
                "file that you can write to, or leave it out."
            ) from None
        self._guard = threading.Lock()
        self._torn = False  # the last line on disk has no end

    def logger(self) -> EventLogger:
        """Returns a structlog logger that writes its events here, each with its time and level."""
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
        """Writes one line; structlog calls it for every level."""
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
        """Closes the file; later events are dropped. Safe to call twice."""
        with self._guard:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1


def _send(logger: EventLogger, event: str, fields: dict[str, Any]) -> None:
    send = logger.warning if event in WARNINGS else logger.info
    logging = sys.modules.get("logging")  # an application with one of its loggers imported it
    if logging is not None and isinstance(logger, logging.Logger | logging.LoggerAdapter):
        text = " ".join([event, *(f"{name}={value!r}" for name, value in fields.items())])
        send("%s", text, extra={"event": event, "fields": fields})
    else:
        send(event, **fields)


def _lost(event: str, problem: BaseException) -> None:
    import logging

    with contextlib.suppress(Exception):
        logging.getLogger("wasm_kernel").warning(
            "the logger failed with %s; its event %s is lost", type(problem).__name__, event
        )


def _session(session_id: str | None) -> dict[str, str]:
    """Returns the field `session_id`; none if no session is named, so that a bound one stays."""
    return {} if session_id is None else {"session_id": session_id}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def _configured_logger() -> EventLogger | None:
    # An application that configured structlog has imported it. Importing it here, only to find it
    # unconfigured, would cost every kernel 50 ms of its start.
    structlog = sys.modules.get("structlog")
    if structlog is None or not structlog.is_configured():
        return None
    logger: EventLogger = structlog.get_logger("wasm_kernel")
    return logger
