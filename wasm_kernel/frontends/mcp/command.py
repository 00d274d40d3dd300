"""The command `wasm-kernel mcp`, its options, and its start."""

from __future__ import annotations

import argparse
import errno
import gc
import math
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wasm_kernel.errors import Door, PolicyError, WasmKernelError
from wasm_kernel.policy import MIB, ExecutionPolicy, read_toml, size_of
from wasm_kernel.result import readable
from wasm_kernel.service import fork_process
from wasm_kernel.service.functions import Functions
from wasm_kernel.service.named_functions import (
    add_functions,
    add_repeated,
    named_functions,
    path_of,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from wasm_kernel.frontends.http.limits import ClientLimits
    from wasm_kernel.frontends.http.serving import Address
    from wasm_kernel.frontends.mcp.sessions import AgentSessions
    from wasm_kernel.service.limits import ServiceLimits
    from wasm_kernel.service.service import Service

    Beside = Callable[[ASGIApp, AgentSessions, Address, ClientLimits], ASGIApp]

DEFAULTS = {
    "cell_timeout": 600.0,
    "stdout_bytes": 4 * MIB,
    "stderr_bytes": 4 * MIB,
    "text_file_bytes": 64 * MIB,
    "display_bytes": 64 * MIB,
}
"""The limits that differ from a kernel's, since an agent pays for the outputs that it reads."""
_NUMBERS: dict[str, tuple[float | None, str, str]] = {
    "sessions": (100, "N", "sessions in all"),
    "owner_sessions": (16, "N", "sessions of one owner, or of one connection without owners"),
    "memory": (
        None,
        "SIZE",
        "the memory of all sessions, as 2G or in MiB; by default what is free",
    ),
    "disk": (None, "SIZE", "what all sessions together may take on disk, as 20G or in MiB"),
    "idle_seconds": (600, "S", "the time without a call after which a session sleeps on disk"),
    "expire_seconds": (86_400, "S", "the time without a call after which a session is deleted"),
    "output_characters": (20_000, "N", "the most of one output, value or file that a reply has"),
}
"""The default, unit and meaning of each numeric option."""


def _size(text: str) -> int:
    try:
        return size_of(text, plain=MIB)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None


_KINDS: dict[str, Callable[[str], float]] = {"N": int, "S": float, "SIZE": _size}
_BEARERS = (
    "over HTTP, take these bearer tokens alone: a TOML file with token, admin, and a table owners; "
    "needed unless only this machine reaches the address"
)
_POLICY = "the limits of each session, as a TOML file"
_MOUNT = "let cells see this folder, read-only unless it ends in :rw"
_NETWORK = "a host that cells may send requests to, such as https://example.org"
_NO_ROOM = (
    "must be {least} or more, which one session may take; a smaller memory_bytes in the file of "
    "--policy lowers that"
)
_NO_EXTRA = "This command needs more packages: pip install 'wasm-kernel[mcp]'."
_BY_HAND = (
    "wasm-kernel: this speaks the Model Context Protocol over stdin and stdout, to a client that "
    'starts it. The client\'s configuration needs: {"mcpServers": {"wasm-kernel": {"command": '
    '"wasm-kernel", "args": ["mcp"]}}}. Ctrl-C ends it.\n'
)


def add_mcp(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to those of `wasm-kernel`."""
    mcp = commands.add_parser(
        "mcp",
        help="serve sessions to agents, by the Model Context Protocol",
        description="Serves sessions to agents: over stdin and stdout, or over HTTP.",
    )
    mcp.add_argument("--http", metavar="HOST:PORT", help="serve over HTTP, at /mcp")
    mcp.add_argument("--admin", action="store_true", help="offer list_active_sessions over stdio")
    add_service_options(mcp)
    mcp.set_defaults(run=run)


def add_service_options(command: argparse.ArgumentParser, **defaults: float) -> None:
    """Adds the options of sessions, and of a server over HTTP; `defaults` replace some."""
    add, repeat = command.add_argument, partial(add_repeated, command)
    add("--token-file", type=path_of, metavar="FILE", help=_BEARERS)
    repeat("--allow-host", "NAME", "over HTTP, a further name that clients reach this server by")
    add("--keep", action="store_true", help="leave sessions on disk at the end")
    add("--workspace", type=path_of, metavar="FOLDER", help="the folder of the sessions")
    add("--policy", type=path_of, metavar="FILE", help=_POLICY)
    repeat("--mount", "HOST:GUEST[:rw]", _MOUNT)
    repeat("--network", "URL", _NETWORK)
    add_functions(command)
    for name, (own, metavar, meaning) in _NUMBERS.items():
        default = defaults.get(name, own)
        shown = f"{meaning} ({default:g})" if default is not None else meaning
        add(_option(name), type=_KINDS[metavar], default=default, metavar=metavar, help=shown)


def run(options: argparse.Namespace, beside: Beside | None = None) -> int:
    """Serves until the client leaves or a signal comes; raises `WasmKernelError` if it can't.

    Over HTTP, `beside` puts a further door beside this one, and returns the application of both.
    """
    is_http = options.http is not None  # an empty address is a mistake
    for name in ("token_file", "allow_host"):
        if getattr(options, name) and not is_http:
            raise PolicyError(_option(name), "is for --http alone")
    if options.admin and is_http:
        raise PolicyError("--admin", "is for stdio; over HTTP, administrators have a token")
    policy = _policy(options.policy, options.mount, options.network)
    limits = _limits(options, policy)
    options.functions = named_functions(options.functions)
    try:
        if is_http:
            _run_http(options, limits, policy, beside)
        else:
            _run_stdio(options, limits, policy)
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] == "wasm_kernel":
            raise
        raise WasmKernelError(_NO_EXTRA) from problem
    return 0


def _run_stdio(options: argparse.Namespace, limits: ServiceLimits, policy: ExecutionPolicy) -> None:
    opening = _opening(options, limits, policy)  # while the SDK is loaded, which is slower
    gc.disable()  # loaded modules stay: collecting garbage would take a quarter of the time
    import anyio

    from wasm_kernel.frontends.http.callers import Caller
    from wasm_kernel.frontends.http.metrics import Metrics
    from wasm_kernel.frontends.mcp.server import WorkspaceServer, serve_stdio
    from wasm_kernel.frontends.mcp.sessions import AgentSessions

    if sys.stdin.isatty():
        sys.stderr.write(_BY_HAND)
    sessions = AgentSessions(opening, policy, keep=options.keep)
    local = Caller("process", "", "process", is_admin=options.admin)
    server = WorkspaceServer(sessions, Metrics(), local, **_server_options(options))
    gc.freeze()
    gc.enable()
    anyio.run(serve_stdio, server)


def _run_http(
    options: argparse.Namespace, limits: ServiceLimits, policy: ExecutionPolicy, door: Beside | None
) -> None:
    import anyio

    from wasm_kernel.frontends.http.callers import Tokens
    from wasm_kernel.frontends.http.limits import ClientLimits
    from wasm_kernel.frontends.http.metrics import Metrics
    from wasm_kernel.frontends.http.serving import Address, serve
    from wasm_kernel.frontends.mcp.http import http_app, http_server
    from wasm_kernel.frontends.mcp.sessions import AgentSessions

    tokens = None if options.token_file is None else Tokens.from_file(options.token_file)
    has_tokens = tokens is not None
    address = Address.parse(options.http, tuple(options.allow_host), has_tokens=has_tokens)
    with address.listening() as listener:
        sessions = AgentSessions(_opening(options, limits, policy), policy, keep=options.keep)
        host, port = address.host, listener.getsockname()[1]
        beside = "" if door is None else f", and E2B's API at http://{host}:{port}"
        sys.stderr.write(f"wasm-kernel: serving http://{host}:{port}/mcp{beside}\n")
        clients = ClientLimits(tokens, Metrics())
        server = http_server(sessions, address, clients, **_server_options(options))
        app = http_app(server, address, clients, options.expire_seconds)
        if door is not None:
            app = door(app, sessions, address, clients)
        anyio.run(partial(serve, app, listener, sessions.close, has_tokens=has_tokens))


def _limits(options: argparse.Namespace, policy: ExecutionPolicy) -> ServiceLimits:
    from wasm_kernel.linux.memory import available_memory
    from wasm_kernel.service.limits import WORKER_BYTES, ServiceLimits

    for name in _NUMBERS:
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise PolicyError(_option(name), f"must be a finite number above 0, not {value:g}")
    least = policy.memory_bytes + WORKER_BYTES  # for one session
    memory = max(available_memory(), least) if options.memory is None else options.memory
    if memory < least:
        raise PolicyError("--memory", _NO_ROOM.format(least=readable(least)))
    return ServiceLimits(
        sessions=options.sessions,
        owner_sessions=options.owner_sessions,
        memory_bytes=memory,
        disk_bytes=options.disk,
        idle_seconds=options.idle_seconds,
        expire_seconds=options.expire_seconds,
    )


def _server_options(options: argparse.Namespace) -> dict[str, Any]:
    lines = Functions(options.functions).lines
    return {"characters": options.output_characters, "functions": lines}


def _opening(
    options: argparse.Namespace, limits: ServiceLimits, policy: ExecutionPolicy
) -> Future[Service]:
    """Begins to open the service; does not wait for it."""
    # in the folder of sessions that are not kept, each server deletes those that killed ones left
    name = time.strftime("kept/%Y-%m-%d-%H%M%S") if options.keep else "sessions"
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    root = options.workspace or data / "wasm-kernel" / "mcp" / name
    _check_mounts(policy, root)
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(root, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "Permission denied")
    except OSError as problem:
        words = f"must be a folder that you can write to ({problem.strerror}: {str(root)!r})"
        raise PolicyError("--workspace", words) from None
    fork_process.start_early()
    if options.keep:
        sys.stderr.write(f"wasm-kernel: sessions stay in {root}\n")

    def run() -> Service:
        from wasm_kernel.service.service import Service

        return Service(root, limits=limits, policy=policy, functions=options.functions)

    return ThreadPoolExecutor(1, "opening").submit(run)


def _check_mounts(policy: ExecutionPolicy, root: Path) -> None:
    """Raises `PolicyError` for mounts with which no session could begin."""
    if policy.mounts:
        from wasm_kernel.sessions import ids
        from wasm_kernel.sessions.root import SessionsRoot

        SessionsRoot(root).check(ids.new(), policy.mounts)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _policy(file: Path | None, mounts: list[str], network: list[str]) -> ExecutionPolicy:
    named = {} if file is None else read_toml(file)
    try:
        base = ExecutionPolicy.from_values(DEFAULTS | named, file and file.parent)
    except PolicyError as problem:
        raise PolicyError(problem.field, problem.rule, where=file.name if file else "") from None
    try:
        return replace(
            base, mounts=(*base.mounts, *mounts), network=(*base.network, *network), door=Door.AGENT
        )
    except PolicyError as problem:
        option = "--mount" if problem.field == "mounts" else "--network"
        raise PolicyError(option, problem.rule) from None
