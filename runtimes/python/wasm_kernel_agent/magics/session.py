"""Facts of the session (`%session_info`, `%policy`, `%fuel`), and actions that the host runs.

The host runs `%session_path` and `%prune_sessions` only if they stand in the cell's own text.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class, no_var_expand

from wasm_kernel_agent.host import run_host_command
from wasm_kernel_agent.magics.tables import Row, ShownAsTable, as_html, as_text, readable

_NAMES = {
    "session_id": "session",
    "runtime": "language",
    "created_at": "created",
    "updated_at": "last used",
    "memory_bytes": "memory",
    "memory_limit_bytes": "memory, at most",
    "cell_timeout": "seconds a cell, at most",
    "fuel_budget": "fuel a cell, at most",
    "workspace_limit_bytes": "files, at most",
    "workspace_limit_files": "number of files, at most",
    "history_states": "states to go back to (%checkpoints)",
    "history_bytes": "history",
    "history_is_saved": "variables outlive a crash of the guest",
    "network": "network",
    "notebook_folder": "the notebook's folder",
    "confinement": "walls around the kernel's process",
    "workspace": "its files",
    "host_folder": "their folder on the host",
}
_PRUNING = re.compile(r"(?:.*=\s*)?%?prune_sessions\s")
_UNMETERED = (
    "This kernel does not count fuel: its code runs a third faster or more without, and "
    "cell_timeout alone ends a cell that goes on for ever. To count it, start the kernel with a "
    "budget (WasmKernel.fuel_budget, or ExecutionPolicy(fuel_budget=...)), such as 100_000_000_000."
)


def _value(name: str, value: Any) -> str:
    if value is None:
        return "not counted" if name == "fuel_budget" else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return readable(value) if name.endswith("_bytes") else f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key}={each}" for key, each in value.items()) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


class SessionInfoTable(ShownAsTable, dict[str, Any]):
    """Facts about the session, by name."""

    def _rows(self) -> list[Row]:
        known = [name for name in _NAMES if name in self]
        names = [*known, *(name for name in self if name not in _NAMES)]
        return [(_NAMES.get(name, name), _value(name, self[name])) for name in names]


class Policy(ShownAsTable, dict[str, Any]):
    """The limits by name; `meanings` explains each."""

    _headings = ("limit", "value", "meaning")

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__({row["name"]: row["value"] for row in rows})
        self.meanings = {row["name"]: row["meaning"] for row in rows}

    def _rows(self) -> list[Row]:
        return [(name, _value(name, value), self.meanings[name]) for name, value in self.items()]

    def __repr__(self) -> str:
        """The table without the meanings, which would make lines of hundreds of characters."""
        return as_text(("limit", "value"), [row[:2] for row in self._rows()])


class FuelUse(dict[str, Any]):
    """Fuel in units of about one WebAssembly instruction."""

    def __repr__(self) -> str:
        if not self["metered"]:
            return _UNMETERED
        text = f"This cell has burnt {self['consumed']:,} of its {self['budget']:,} so far; "
        text += f"{self['left']:,} are left."
        last = self["last"]
        return text if last is None else f"{text} The last cell burnt {last:,}."


class PrunedSessions(ShownAsTable, dict[str, Any]):
    """The result of pruning: `deleted` are ids, the others give a reason for each id."""

    _headings = ("session", "what", "why")

    def _rows(self) -> list[Row]:
        done = "would be deleted" if self["dry_run"] else "deleted"
        return [
            *((name, done, "") for name in self["deleted"]),
            *((name, "skipped", why) for name, why in self["skipped"].items()),
            *((name, "in use", why) for name, why in self.get("in_use", {}).items()),
            *((name, "failed", why) for name, why in self["errors"].items()),
        ]

    def __repr__(self) -> str:
        return f"{self['summary']}\n{super().__repr__()}" if self._rows() else self["summary"]

    def _repr_html_(self) -> str:
        table = as_html(self._headings, self._rows()) if self._rows() else ""
        return f"<p>{escape(self['summary'])}</p>{table}"


def _options(_: Any, event: Any) -> list[str]:
    """The options of `%prune_sessions`, for IPython's completer."""
    return ["--older-than", "--dry-run", "--apply"] if event.symbol.startswith("-") else []


@magics_class
class SessionMagics(Magics):
    """Facts about this session, and actions that the host runs."""

    shell: Any

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        shell.set_hook("complete_command", _options, re_key=_PRUNING)

    def _refuse_words(self, name: str, line: str) -> None:
        if line.strip():
            raise UsageError(f"%{name} takes no words")

    @no_var_expand
    @line_magic
    def session_info(self, line: str) -> SessionInfoTable:
        """Facts about this session: id, times, memory, limits, history: `%session_info`.

        The value is a dict:

            info = %session_info
            info["session_id"]
        """
        self._refuse_words("session_info", line)
        return SessionInfoTable(run_host_command(self.shell, "session_info", ""))

    @no_var_expand
    @line_magic
    def policy(self, line: str) -> Policy:
        """The limits of this session, and what each means: `%policy`.

        The value is a dict of the limits by name. They are set when the kernel starts, as
        `WasmKernel.NAME=VALUE`; `%limit` lowers some for one cell.
        """
        self._refuse_words("policy", line)
        return Policy(run_host_command(self.shell, "policy", ""))

    @no_var_expand
    @line_magic
    def fuel(self, line: str) -> FuelUse:
        """The fuel that this cell has burnt and has left, and that the last one burnt: `%fuel`.

        Fuel is roughly the number of WebAssembly instructions. The value is a dict with `metered`,
        `budget`, `consumed`, `left` and `last`.
        """
        self._refuse_words("fuel", line)
        return FuelUse(run_host_command(self.shell, "fuel", ""))

    @no_var_expand
    @line_magic
    def session_path(self, line: str) -> None:
        """Print where the session's files lie on the host: `%session_path`.

        The host prints it: the code in the sandbox does not learn it. It works only if it stands
        in the cell itself, on a line of its own.
        """
        self._refuse_words("session_path", line)
        run_host_command(self.shell, "session_path", line)

    @no_var_expand
    @line_magic
    def prune_sessions(self, line: str) -> PrunedSessions:
        """Delete old sessions: `%prune_sessions --older-than 24h [--dry-run | --apply]`.

        Without `--apply`, as with `--dry-run`, it only tells what would be deleted. `--older-than`
        takes minutes, hours, days or weeks: `30m`, `24h`, `7d`, `2w`. Sessions that are in use are
        spared, those without metadata are skipped, and those with an id that is not a UUID are
        ignored.

        It reaches other sessions, so it works only if it stands in the cell itself, on a line of
        its own, and only in a kernel that was started with `WasmKernel.prune_sessions=True`.
        """
        return PrunedSessions(run_host_command(self.shell, "prune_sessions", line))
