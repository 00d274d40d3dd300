"""The errors that this package raises on purpose.

`WasmKernelError` is the root. Its subclasses carry fields, so that a front end can word its own
message. `str()` of each is a text for the person who meets it: what happened, what is kept, what to
do now. No message names a path of the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, Self


class Door(str, Enum):
    """The interface that a sandbox is used through, which decides the advice in texts.

    A text says what happened and what is kept. The advice differs: a program sets a field of
    `ExecutionPolicy`, the user of a kernel one of its traits, the user of `wasm-kernel run` an
    option, and an agent or a client of E2B's API can set nothing.
    """

    PROGRAM = "program"
    KERNEL = "kernel"
    BATCH = "batch"
    AGENT = "agent"
    SANDBOX = "sandbox"

    def raising(self, *settings: str, purpose: str = "to allow more") -> str:
        """Returns a sentence that names the settings which raise a limit.
        It is empty if there are none, or the user of this door can't set them.
        """
        names = [self.name_of(each) for each in settings if each]
        if not names or (self.forking and settings != (CALL_SECONDS,)):
            return ""
        return f"Raise {' or '.join(names)} {purpose}."

    def name_of(self, setting: str) -> str:
        """Returns the name of a setting for the user of this door."""
        options = {**BATCH_OPTIONS, **_MORE_OPTIONS} if self is Door.BATCH else {}
        if setting in options:
            return options[setting]
        is_trait = self in (Door.KERNEL, Door.BATCH) and setting != CALL_SECONDS
        return f"WasmKernel.{setting}" if is_trait else setting

    @property
    def is_served(self) -> bool:
        """True if a server has the sessions, and other servers may have them, too."""
        return self in (Door.AGENT, Door.SANDBOX)

    @property
    def forking(self) -> str:
        """A sentence on how a client copies a session if its cells can't; empty if they can."""
        return _FORKING.get(self, "")

    @property
    def home(self) -> str:
        """The path that clients of this door use for the guest's `/app`; empty if it is `/app`."""
        return "/home/user" if self is Door.SANDBOX else ""

    @property
    def bringing_files(self) -> str:
        """A sentence on how a user's file gets to cells; empty if the guest has better advice."""
        return _BRINGING_FILES.get(self, "")


_BRINGING_FILES = {
    Door.PROGRAM: (
        "Put it into the workspace first (a session's by write_session_file), or mount its folder "
        "(ExecutionPolicy.mounts)."
    ),
    Door.BATCH: (
        "The command's --input FILE copies a file into /app, and run's --mount HOST:GUEST shows "
        "cells a folder."
    ),
    Door.AGENT: "write_file brings a file in; list_files shows what is there.",
    Door.SANDBOX: "files.write of the sandbox brings a file in.",
}
_FORKING = {
    Door.AGENT: "fork_session copies this one.",
    Door.SANDBOX: "fork of the sandbox copies this one.",
}
BATCH_OPTIONS = {
    "cell_timeout": "--cell-seconds",
    "memory_bytes": "--memory",
    "fuel_budget": "--fuel",
    "session_output_bytes": "--output",
    "workspace_bytes": "--disk",
}
"""The options of `wasm-kernel run` and `grade` that set a limit, by the policy's fields."""
_MORE_OPTIONS = {"network": "--network", "network_mode": "--replay", "mounts": "--mount"}
CALL_SECONDS = "timeout_seconds"
"""The argument of a call that lowers its cell's time; its caller can raise it at any door."""


_FREE = "Free what is missing, for example by closing other sandboxes, and try again."


class WasmKernelError(Exception):
    """The root of every error that this package raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Batch runs carry errors between processes. Exception's own `__reduce__` would pass the
        # text to a constructor that takes fields.
        return self.revived, (self.args, vars(self))

    @classmethod
    def revived(cls, args: tuple[Any, ...], fields: dict[str, Any]) -> Self:
        """Returns an error of this class with these arguments and attributes."""
        error = cls.__new__(cls, *args)
        vars(error).update(fields)
        return error


class PolicyError(WasmKernelError, ValueError):
    """A policy field breaks its rule.

    `field` is the field's name, `rule` the rule in words, `where` the name of the file with the
    field, or empty. If a whole file is wrong, `field` is its name.
    """

    def __init__(self, field: str, rule: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {field} {rule}" if where else f"{field} {rule}")
        self.field = field
        self.rule = rule
        self.where = where


class SandboxClosed(WasmKernelError):
    """A sandbox or a service was used after `close()`, or in a forked copy of its process."""


class SessionInUse(WasmKernelError):
    """A session is in use, and the call would remove files from under its user."""


class BundleError(WasmKernelError):
    """The guest's files could not be found or laid out."""


class CompileError(WasmKernelError):
    """The guest's WebAssembly could not be compiled or loaded."""


class ImageError(WasmKernelError):
    """The base image could not be built or attached."""


class HistoryError(WasmKernelError):
    """A session's memory history is damaged, belongs to another version, or is not on disk."""


class TravelError(WasmKernelError, ValueError):
    """The session's history has no such state; nothing was changed."""


class ForkError(WasmKernelError):
    """A session could not be forked: nothing was made, and the session is unchanged.

    `why` is a clause; `advice` is a sentence on what to do, which may be empty.
    """

    def __init__(self, why: str, advice: str = "") -> None:
        super().__init__(
            f"The fork could not be made ({why}). Nothing of it is left, and this session is as it "
            f"was. {advice}".rstrip()
        )
        self.why = why


class PackageError(WasmKernelError):
    """A package was not fetched, failed its checks, or does not exist; nothing was changed."""


class FrameError(WasmKernelError):
    """A frame from the guest breaks the protocol; `why` says in which way."""

    def __init__(self, why: str) -> None:
        super().__init__(f"frame refused: {why}")
        self.why = why


class HostFailed(WasmKernelError):
    """The host lacks a resource that it needs, such as memory or open files; `why` names it.

    `advice` says what the user can do.
    """

    def __init__(self, why: str, advice: str = _FREE) -> None:
        super().__init__(
            f"The host could not go on ({why}). The variables are kept as they were after the last "
            f"cell that ended, and files are as they are. {advice}"
        )
        self.why = why


class OutOfDescriptors(HostFailed):
    """This process may not open as many files as another sandbox needs.

    `used` is the number of its open files, `limit` its limit, `needed` the number that another
    sandbox takes.
    """

    def __init__(self, used: int, limit: int, needed: int) -> None:
        super().__init__(f"{used:,} of {limit:,} file descriptors are in use")
        sentences = (
            f"This process can't hold another sandbox: {used:,} of the {limit:,} file descriptors "
            f"that it may have are in use, and {needed:,} more are needed. Nothing was run or "
            "changed, and the sandboxes that are open go on. Close one of them, or allow more "
            "(ulimit -n in a shell, LimitNOFILE= in a service), and try again."
        )
        self.args = (sentences,)
        self.used, self.limit, self.needed = used, limit, needed


def out_of_threads() -> HostFailed:
    """Returns the error of a process that can't start another thread."""
    return HostFailed(
        "the system allows no more threads and processes",
        "Close other programs, or allow more (ulimit -u in a shell, TasksMax= in a service, "
        "pids.max of a control group), and try again.",
    )


class CacheWarning(UserWarning):
    """A file of the cache was not trusted, and was replaced."""


class GuestStopped(WasmKernelError):
    """The guest did not return from a turn: its instance is gone.

    `kept` says what the session still has; the code that knows it sets it. `setting` names the
    policy field, or the argument of the call, to change; it is empty if none would help. `str()`
    has the advice for a program; `text` has the advice for any door.
    """

    setting = ""

    def __init__(self, happened: str, kept: str = "") -> None:
        super().__init__(happened)
        self.happened = happened
        self.kept = kept

    def advice(self, door: Door) -> str:
        """Returns a sentence on what the user can do now; empty if there is nothing to do."""
        return door.raising(self.setting)

    def text(self, door: Door) -> str:
        """Returns what happened, what is kept, and what the user of this door can do."""
        return " ".join(part for part in (self.happened, self.kept, self.advice(door)) if part)

    def __str__(self) -> str:
        return self.text(Door.PROGRAM)


class OutOfFuel(GuestStopped):
    """The turn used up its fuel; `budget` is the fuel that it had."""

    setting = "fuel_budget"

    def __init__(self, budget: int) -> None:
        super().__init__(f"The cell used up its fuel budget of {budget:,}.")
        self.budget = budget


class CellTimeout(GuestStopped):
    """The turn ran past its deadline.

    `seconds` is its limit; `own` is True if the cell lowered the limit itself.
    """

    setting = "cell_timeout"

    def __init__(self, seconds: float, *, own: bool = False) -> None:
        super().__init__(f"The cell ran longer than its limit of {_duration(seconds)}.")
        self.seconds = seconds
        self.own = own

    def advice(self, door: Door) -> str:
        """Returns a sentence on what the user can do now."""
        return "The cell set this limit itself, with %%limit." if self.own else super().advice(door)


class OutOfMemory(GuestStopped):
    """The turn used up the guest's memory.

    `limit` is the most memory that the guest may have, `free` the part that was free when the turn
    began, both in bytes. `trace` are the lines of the guest's own traceback, without the error
    itself.
    """

    setting = "memory_bytes"

    def __init__(self, limit: int, free: int, trace: tuple[str, ...] = ()) -> None:
        super().__init__(
            f"The cell used up the sandbox's memory of {limit / 2**20:,.0f} MiB, of which "
            f"{free / 2**20:,.0f} MiB were free when it began."
        )
        self.limit, self.free, self.trace = limit, free, trace


class NeverBegan(GuestStopped):
    """The guest did not ask for its turn's request within `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"The interpreter in the sandbox did not begin within {_duration(seconds)}."
        )
        self.seconds = seconds


class StackExhausted(GuestStopped):
    """The guest's native stack ran out: a recursion too deep for the interpreter."""

    def __init__(self) -> None:
        super().__init__("The cell exhausted the interpreter's stack (a recursion without end?).")


class GuestCrashed(GuestStopped):
    """The interpreter itself crashed; `trap` is wasmtime's name of the trap."""

    def __init__(self, trap: str) -> None:
        super().__init__(f"The interpreter in the sandbox crashed ({trap}).")
        self.trap = trap


class GuestExited(GuestStopped):
    """The guest ended its own process; `code` is its exit status."""

    def __init__(self, code: int) -> None:
        super().__init__(f"The cell ended the interpreter's process with status {code}.")
        self.code = code


class GuestClosed(GuestStopped):
    """The cell was stopped because its sandbox was closed."""

    def __init__(self) -> None:
        super().__init__(
            "The cell was stopped, as its sandbox was closed; a kernel that shuts down or restarts "
            "does that."
        )


class WorkerLost(GuestStopped):
    """The process of the session's guest is gone; the next call gets another one."""

    def __init__(self, why: str, kept: str = "") -> None:
        super().__init__(f"The process of this session {why}.", kept)


class LimitReached(WasmKernelError):
    """A call would exceed one of its service's limits; nothing was changed.

    `limit` is the field of `ServiceLimits`; `happened` says how the limit was met, and `advice`
    what the program that has the service can do.
    """

    def __init__(self, limit: str, happened: str, advice: str) -> None:
        super().__init__(f"{happened} Nothing was changed. {advice}")
        self.limit = limit
        self.happened = happened


class Interrupted(GuestStopped):
    """The cell did not react to an interrupt within its grace time, and its guest was stopped.

    `grace` is that time in seconds.
    """

    setting = "grace_seconds"

    def __init__(self, grace: float) -> None:
        super().__init__(
            f"The cell did not answer the interrupt within {_duration(grace)} and was stopped."
        )
        self.grace = grace

    def advice(self, door: Door) -> str:
        """Returns a sentence on what the user can do now."""
        return door.raising(self.setting, purpose="to give cells more time to clean up")


def _duration(seconds: float) -> str:
    return "1 second" if seconds == 1 else f"{seconds:g} seconds"


def describe(problem: Exception) -> str:
    """Returns a problem in words, for people; the words for an `OSError` have no path."""
    text = problem.strerror if isinstance(problem, OSError) else ""
    silent = "no memory is left" if isinstance(problem, MemoryError) else type(problem).__name__
    return text or str(problem) or silent


@contextmanager
def host_failures() -> Iterator[None]:
    """Raises a `HostFailed`, in words, in place of an error of the host's system in a block."""
    try:
        yield
    except (OSError, MemoryError) as problem:
        if isinstance(problem, WasmKernelError):
            raise
        raise HostFailed(describe(problem)) from problem
