"""The outcome of a notebook's run, `Outcome`, and its limits, `Budgets`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from msgspec import Struct

from wasm_kernel.errors import PolicyError, WasmKernelError
from wasm_kernel.policy import ExecutionPolicy, check_limit, user_path

Item = TypeVar("Item")
Verdict = Literal[
    "ok",
    "error",
    "timeout",
    "out-of-fuel",
    "out-of-memory",
    "output-limit",
    "disk-full",
    "kernel-lost",
    "cancelled",
]
VERDICTS: tuple[str, ...] = get_args(Verdict)

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

REASON_CHARACTERS, HINT_CHARACTERS = 300, 600
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_NOWHERE = re.compile(r"[\ud800-\udfff\ufffe\uffff]")  # not allowed in XML, some not even in UTF-8
_LIMITS = {
    "cell_seconds": "cell_timeout",
    "memory_bytes": "memory_bytes",
    "fuel": "fuel_budget",
    "output_bytes": "session_output_bytes",
    "disk_bytes": "workspace_bytes",
}
_EXTRAS = {"distributed": "distributed", "cryptography": "distributed"}
_EXTRAS |= {"h11": "network", "httpcore": "network"}
"""The extra of this package that brings a module, if it is not `batch`."""


class NotebookEnded(Exception):
    """The end of a notebook, with a verdict, before its last cell is done."""

    def __init__(
        self, verdict: Verdict, reason: str, *, can_go_on: bool = False, **told: str
    ) -> None:
        super().__init__(reason)
        self.can_go_on = can_go_on
        self.fields: dict[str, Any] = {"verdict": verdict, "reason": reason, **told}


class BatchError(WasmKernelError):
    """A run that can't begin; nothing was run."""


def items_in(name: str, given: Iterable[Item]) -> tuple[Item, ...]:
    """Returns the items of an argument; `BatchError` for one text, whose letters are not items."""
    if isinstance(given, str | bytes | Path) or not isinstance(given, Iterable):
        raise BatchError(f"{name} is a list, not {given!r}. Nothing was run.")
    return tuple(given)


def paths_in(name: str, given: Iterable[Path | str]) -> list[str]:
    """Returns the paths in an argument, with the home folder for `~`, unless it is a file's name.

    A shell's pattern may find a folder `~`, which holds files of strangers. Raises `BatchError` for
    one path.
    """
    paths = map(str, items_in(name, given))
    return [str(user_path(one)) if one and not os.path.lexists(one) else one for one in paths]


def out_in(out: Path | str) -> Path:
    """Returns the path of an argument `out`; `BatchError` for an empty text."""
    if out == "":  # often a variable that is not set; it would be the current folder
        raise BatchError("out is an empty text. Nothing was run. Name a folder, such as '.'.")
    return user_path(out)


class BatchStopped(BatchError):
    """A run that can't go on; the notebooks executed so far are kept."""


def require(what: str, *modules: str) -> None:
    """Imports the modules that `what` needs; `BatchError` names the extra that brings them."""
    for name in modules:
        try:
            import_module(name)
        except ImportError as problem:
            missing = (problem.name or name).partition(".")[0]
            raise BatchError(
                f"{what} needs {missing}, which is not installed. Nothing was run. Get it with: "
                f"pip install 'wasm-kernel[{_EXTRAS.get(name, 'batch')}]'"
            ) from None


class Outcome(Struct, frozen=True, omit_defaults=True):
    """The outcome of one notebook.

    Attributes:
        notebook: Its name, as given to the command.
        verdict: One of `VERDICTS`.
        reason: Why it is not `ok`, in words for people.
        hint: What may help, in a sentence.
        traceback: The lines of the error that it ended with.
        cell: The number of the cell that it ended at, among all cells of the notebook, from 1; 0
            for none.
        cells: How many code cells were run now.
        kept: How many code cells were not run again, because an earlier run did it (`--resume`).
        note: Anything else to say, such as why cells were run again.
        difference: How its outputs differ from those that were stored (`--compare`).
        seconds: How long it took.
        output: The executed notebook's path; empty if none was written.
        files: The results that were collected, by paths relative to the executed notebook.
        left: Some of the results that could not be collected, by their paths in the session.
    """

    notebook: str
    verdict: Verdict
    reason: str = ""
    hint: str = ""
    traceback: str = ""
    cell: int = 0
    cells: int = 0
    kept: int = 0
    note: str = ""
    difference: str = ""
    seconds: float = 0.0
    output: str = ""
    files: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if every cell ran as it should."""
        return self.verdict == "ok"

    @property
    def is_complete(self) -> bool:
        """True if every cell ran as it should, and all results were collected."""
        return self.ok and not self.left

    @property
    def why(self) -> str:
        """The reason, and what may help."""
        reason, hint = plain(self.reason), plain(self.hint, HINT_CHARACTERS)
        if reason and hint and reason[-1] not in ".!?…":
            reason += "."
        return f"{reason} {hint}".strip()


class Budgets(Struct, frozen=True, kw_only=True):
    """The most that a notebook may use; None stands for the kernel's own limit.

    Attributes:
        cell_seconds: Seconds that a cell may take.
        notebook_seconds: Seconds that a notebook may take, from when its kernel is ready.
        memory_bytes: Bytes of memory.
        fuel: Fuel that a cell may burn, roughly one unit an instruction.
        output_bytes: Bytes of text and rich output that the notebook may show.
        disk_bytes: Bytes that its files may hold.
    """

    cell_seconds: float | None = None
    notebook_seconds: float | None = None
    memory_bytes: int | None = None
    fuel: int | None = None
    output_bytes: int | None = 64 * 1024 * 1024
    disk_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None:
                check_limit(name, value)
        try:
            ExecutionPolicy.from_values(self.limits())
        except PolicyError as problem:
            (name,) = [each for each, limit in _LIMITS.items() if limit == problem.field]
            raise PolicyError(name, problem.rule) from None

    def limits(self) -> dict[str, Any]:
        """Returns the budgets as fields of `ExecutionPolicy`."""
        fields = {limit: getattr(self, name) for name, limit in _LIMITS.items()}
        return {limit: value for limit, value in fields.items() if value is not None}


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


def plain(text: str, most: int = REASON_CHARACTERS) -> str:
    """Returns a guest's text on one line, without control characters for terminals or pages."""
    line = " ".join(cleaned(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def cleaned(text: str) -> str:
    """Returns a guest's text with its lines, without control characters for terminals."""
    shown = _NOWHERE.sub("\ufffd", _COLOURS.sub("", text))
    return "\n".join(_CONTROLS.sub(" ", line) for line in shown.split("\n"))
