"""The description of sessions and runtimes, as text for a model."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.frontends.mcp import variables
from wasm_kernel.frontends.mcp.mounts import MountedFiles
from wasm_kernel.frontends.mcp.sessions import AgentSession
from wasm_kernel.guests.base import info_of, load
from wasm_kernel.guests.python.language import PythonLanguage
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.result import readable
from wasm_kernel.service.registry import SessionInfo
from wasm_kernel.service.service import Service

_CELLS, _FILES = 30, 100
_LIST_SECONDS = 10.0  # for the guest to list its variables


def listing(
    sessions: Sequence[AgentSession], usage: Mapping[str, SessionInfo] | None = None
) -> str:
    """Returns one line per session; with its `usage`, for administrators."""
    return "\n".join(_line(each, usage) for each in sessions)


def _line(session: AgentSession, usage: Mapping[str, SessionInfo] | None) -> str:
    kind = "automatic" if session.is_automatic else "explicit"
    idle = f"{time.time() - session.used:.0f} s ago"
    state = session.sandbox.sync.worker.state
    cells = "1 cell" if len(session.cells) == 1 else f"{len(session.cells)} cells"
    words = [kind, session.language, state, cells, f"used {idle}"]
    if (network := session.sandbox.sync.worker.network) is not None:
        words += [f"{network.used[0]:,} requests to the network"]
    owner, used = "", None if usage is None else usage.get(session.handle)
    if used is not None:
        owner = f" of {used.owner}"
        words += [
            f"disk {readable(used.disk_bytes or 0)}",
            f"guest memory {readable(used.guest_bytes)}",
            f"process memory {readable(used.host_bytes)}",
            f"processor {used.cpu_seconds:.1f} s",
            f"fuel {used.fuel:,}",
        ]
    return f'session="{session.handle}"{owner}: {", ".join(words)}'


def usage_of(sessions: Sequence[AgentSession], service: Service) -> dict[str, SessionInfo]:
    """Returns the usage of sessions, by their handles; measures all of their files."""
    found: dict[str, SessionInfo] = {}
    for each in sessions:
        with contextlib.suppress(WasmKernelError, OSError):  # it may have been deleted
            found[each.handle] = service.info(each.handle)
    return found


async def workspace_info(session: AgentSession, service: Service) -> str:
    """Returns a description of a session, without waiting for a cell."""
    if session.seen.is_stale and not session.running:
        await _look_again(session)
    info = await session.work(service.info, session.handle)
    files = await session.work(session.sandbox.files.list)
    kind = "automatic" if session.is_automatic else "explicit"
    as_of = " (as of the last cell that ended)" if session.running or session.seen.is_stale else ""
    rows = [
        f'session="{session.handle}": {kind}, {session.language}, {info.state}',
        f"made {datetime.fromtimestamp(session.created, UTC):%Y-%m-%d %H:%M:%S} UTC",
        *_variables(session, as_of),
        *_cells(session),
        f"files in /app ({len(files):,}): {', '.join(files[:_FILES]) or 'none'}"
        + (" ..." if len(files) > _FILES else ""),
        *_limits(session.sandbox.sync.policy, info),
    ]
    return "\n".join(rows)


async def _look_again(session: AgentSession) -> None:
    """Asks the guest for its variables, after a failed cell or an undo."""
    asked = variables.expressions(session.language)
    try:
        result = await session.sandbox.execute(
            "", silent=True, user_expressions=asked, timeout_seconds=_LIST_SECONDS
        )
    except WasmKernelError:
        return
    session.seen = variables.read(result.reply, session.seen)


def _variables(session: AgentSession, as_of: str) -> list[str]:
    seen = session.seen
    lines = [
        f"- {name}: {kind}" + (f" ({size})" if size else "") for name, kind, size in seen.variables
    ]
    more = [f"- and {seen.count - len(lines):,} more"] if seen.count > len(lines) else []
    head = f"variables{as_of}: {seen.count:,}" if seen.count else f"variables{as_of}: none"
    imports = [f"imported: {', '.join(seen.modules)}"] if seen.modules else []
    packages = [f"installed here: {', '.join(seen.packages)}"] if seen.packages else []
    return [head, *lines, *more, *imports, *packages]


def _cells(session: AgentSession) -> list[str]:
    cells = [*session.cells]
    head = f"history ({len(cells)} entries, newest last, times in UTC):"
    lines = [
        f"- {f'cell {each.number}' if each.number else '-'}: {each.code} -> {each.outcome}, "
        f"{each.seconds:.2f} s, at {datetime.fromtimestamp(each.at, UTC):%H:%M:%S}"
        for each in cells[-_CELLS:]
    ]
    return [head, *lines] if cells else ["history: no cell yet"]


def _limits(policy: ExecutionPolicy, info: SessionInfo) -> list[str]:
    fuel = "no limit" if policy.fuel_budget is None else f"{policy.fuel_budget:,} a cell"
    seconds = "no limit" if policy.cell_timeout is None else f"{policy.cell_timeout:g} s a cell"
    disk = f"{readable(info.disk_bytes or 0)} with history"
    most = f"{readable(policy.workspace_bytes)} and be {policy.workspace_files:,}"
    return [
        f"memory: {readable(info.guest_bytes)} of {readable(policy.memory_bytes)}",
        f"time: {seconds}; {info.cpu_seconds:.1f} s of processor used; fuel: {fuel}",
        f"disk: {disk}; files may take {most}",
        f"undo: up to {policy.history_cells} cells; network: {_network(policy, info)}",
        *([f"mounts: {MountedFiles(policy.mounts)}"] if policy.mounts else []),
    ]


def _network(policy: ExecutionPolicy, info: SessionInfo) -> str:
    if not policy.network:
        return "none"
    used = f"{info.requests:,} requests so far, {readable(info.request_bytes)}"
    return f"{', '.join(map(str, policy.network))} ({used})"


def runtimes() -> str:
    """Returns the languages and their built-in packages."""
    return "\n".join(map(_runtime, RuntimeType))


def _runtime(runtime: RuntimeType) -> str:
    language, line = load(runtime), f"{runtime.value}: {info_of(runtime).title}"
    if not isinstance(language, PythonLanguage):
        return f"{line}. install_packages adds packages of npm that are JavaScript alone."
    built_in = ", ".join(f"{name} {version}" for name, version in language.files.packages.items())
    return f"{line}. Built in: {built_in}. install_packages adds packages of pure Python."
