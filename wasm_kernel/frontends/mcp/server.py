"""The SDK's server, with our tools and resources, and errors that say what to do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import anyio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, InputRequiredResult, Resource, ResourceTemplate, Tool
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, is_version_at_least
from pydantic import ValidationError

from wasm_kernel import __version__
from wasm_kernel.errors import Door, GuestStopped, LimitReached, WasmKernelError
from wasm_kernel.frontends.http.callers import LEASE, LEASE_KEY, Caller
from wasm_kernel.frontends.http.metrics import Metrics
from wasm_kernel.frontends.mcp.callers import CALLER, NO_CALLER, caller_of
from wasm_kernel.frontends.mcp.file_tools import TEMPLATE, FileTools
from wasm_kernel.frontends.mcp.mounts import MountedFiles
from wasm_kernel.frontends.mcp.results import TEXT_CHARACTERS, cut, text_block
from wasm_kernel.frontends.mcp.sessions import AgentSessions
from wasm_kernel.frontends.mcp.tools import CellTools

_INSTRUCTIONS = """\
A notebook in a sandbox: Python, or JavaScript and TypeScript in a session of their own.
execute_code runs a cell; variables, imports and files stay for the next one, so build on what is
there, and send small cells. Your session begins by itself. The other tools take the session used
last: name another one by its `language`, or by `session`, a handle as results show it.

- Files live in /app, the current folder. write_file brings data in, read_file and the links in
  results bring it out. {mounts}
- {network}
- numpy, pandas, scipy, scikit-learn, statsmodels, matplotlib, seaborn, sympy, networkx, pillow and
  more are there (list_runtimes has the list). install_packages adds others: pure Python, or npm.
- The value of the last line is shown, and so are matplotlib figures (call plt.show() or end the
  cell); each is saved in /app/figures as well. Print little: long output is cut, and all of it is
  in a file that the reply names.
- When a cell hits a limit (time, memory, fuel) or crashes, variables are as they were before it.
  undo takes cells back, checkpoint and restore name states, fork_session copies a session so that
  you can try variants. get_workspace_info shows variables, files, history and limits.
- pandas reads and writes Parquet and Feather, though pyarrow is not there. It reads no ORC.
"""
_NO_NETWORK = """There is no network, there are no processes or sockets; threads run one after
  another. Do not try requests, urllib or subprocess: put data in with write_file."""
_NETWORK = """Cells may send HTTP requests, with urllib, requests or httpx, to these hosts alone:
  {rules}. There are no processes; threads run one after another."""
_NO_MOUNTS = "Nothing else of the machine is there."
_MOUNTS = """Of the machine there is also {mounts}: cells, list_files and
  read_file take such paths."""
_REFUSAL_CHARACTERS = 2_000
_NO_ROOM = (
    "[note] An image is left out: too many large replies are under way. Ask for it once more."
)
_LINKS_SINCE = "2025-06-18"
Answered = CallToolResult | InputRequiredResult
_ADMINS = "list_active_sessions"
_LONG, _SHORT_CHARACTERS = {"code", "content"}, 5_000  # arguments of any length; the most of others
_SHOWN = {"type", "description", "enum", "items"}
_ADVICE = dict.fromkeys(
    ("sessions", "owner_sessions", "disk_bytes"),
    "list_sessions shows yours, destroy_session ends one.",
) | {
    "memory_bytes": "Try again when other sessions are idle.",
    "queue": "Wait for one of them, or end the one that runs with cancel_execution.",
    "workspace_bytes": "Delete what is not needed any more.",
    "reply_bytes": "Read one after the other.",
}
"""The advice to an agent about each limit."""


class WorkspaceServer(MCPServer[None]):
    """The server of all clients; `local` is the caller over stdio. Metrics count refusals, too.

    A reply holds at most `characters` of one output. `functions` are those of the host that cells
    may call, each described in a line.
    """

    def __init__(
        self,
        sessions: AgentSessions,
        metrics: Metrics,
        local: Caller = NO_CALLER,
        *,
        characters: int = TEXT_CHARACTERS,
        functions: Sequence[str] = (),
        **options: Any,
    ) -> None:
        mounts = MountedFiles(sessions.policy.mounts)
        named = _MOUNTS.format(mounts=mounts) if sessions.policy.mounts else _NO_MOUNTS
        rules = ", ".join(map(str, sessions.policy.network))
        network = _NETWORK.format(rules=rules) if rules else _NO_NETWORK
        super().__init__(
            "wasm-kernel",
            title="wasm-kernel",
            description="A code interpreter in a WebAssembly sandbox.",
            instructions=_INSTRUCTIONS.format(mounts=named, network=network),
            version=__version__,
            log_level="WARNING",
            lifespan=self._lifespan,
            middleware=[self._remember_caller],
            subscriptions=False,
            **options,
        )
        self.sessions = sessions
        self.metrics = metrics
        self._local = local
        self._tools: list[Tool] = []
        self._files = FileTools(sessions, mounts, characters)
        CellTools(sessions, metrics, characters).add_to(self, functions)
        self._files.add_to(self)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: MCPServer[None]) -> AsyncIterator[None]:
        looking = asyncio.ensure_future(self.sessions.look_after())
        try:
            yield
        finally:
            looking.cancel()
            with anyio.CancelScope(shield=True):
                await self.sessions.close()

    async def _remember_caller(
        self, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        caller = caller_of(ctx, self._local)
        token = CALLER.set(caller)
        lease = LEASE.set(ctx.request.scope.get(LEASE_KEY) if ctx.request is not None else None)
        try:
            result = await call_next(ctx)
            if ctx.method == "server/discover" and not caller.scope and isinstance(result, dict):
                # sessions need the handshake of earlier versions: clients of both versions then
                # use it, as the SDKs' own servers with sessions require
                result["supportedVersions"] = [*HANDSHAKE_PROTOCOL_VERSIONS]
            return result
        finally:
            LEASE.reset(lease)
            CALLER.reset(token)

    async def list_tools(self) -> list[Tool]:
        """Returns the tools that the caller may use."""
        tools = await self._all_tools()
        return [each for each in tools if each.name != _ADMINS or CALLER.get().is_admin]

    async def _all_tools(self) -> list[Tool]:
        if not self._tools:
            self._tools = await super().list_tools()
            for each in self._tools:
                each.input_schema = _shortened(each.input_schema)
        return self._tools

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[None, Any] | None = None
    ) -> Answered:
        """Calls a tool; turns its refusals into error results with words."""
        try:
            await self._check(name, arguments)
            return _held(_as_of(await super().call_tool(name, arguments, context), context))
        except ToolError as failure:
            cause = failure.__cause__
            if isinstance(cause, LimitReached):
                self.metrics.refused(cause.limit)
            if (text := _refusal(name, cause)) is None:
                raise
            return CallToolResult(
                content=[text_block(cut(text, _REFUSAL_CHARACTERS, ""))], is_error=True
            )

    async def _check(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Raises `ToolError` for arguments that the SDK would accept.

        The SDK drops arguments that the tool does not have. It also parses a text as JSON, unless
        its argument takes only texts, and a text could hold any number of values.
        """
        tools = {each.name: each.input_schema["properties"] for each in await self._all_tools()}
        known = tools.get(name, arguments)
        unknown = sorted(arguments.keys() - set(known))
        if unknown:
            there = ", ".join(known) or "none"
            _refuse(f"It has no argument {unknown[0][:50]!r}; there are: {there}.")
        for key, value in arguments.items():
            if key not in _LONG and isinstance(value, str) and len(value) > _SHORT_CHARACTERS:
                _refuse(f"{key} may have {_SHORT_CHARACTERS:,} characters. Nothing was done.")

    async def list_resources(self) -> list[Resource]:
        """Returns the files of the caller's own session."""
        return await self._files.resources()

    async def list_resource_templates(self) -> list[ResourceTemplate]:
        """Returns the template of files' addresses."""
        return [TEMPLATE]

    async def read_resource(
        self, uri: Any, context: Context[None, Any] | None = None
    ) -> Iterable[ReadResourceContents]:
        """Returns the content of a file."""
        return await self._files.read_resource(str(uri))


def _refuse(words: str) -> NoReturn:
    refusal = ValueError(words)
    raise ToolError(words) from refusal


def _shortened(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a tool's schema without titles, nulls, defaults and bounds: clients pay for it."""
    rows = {name: _shortened_row(row) for name, row in schema["properties"].items()}
    required = {"required": schema["required"]} if "required" in schema else {}
    return {"type": "object", "properties": rows, **required}


def _shortened_row(row: dict[str, Any]) -> dict[str, Any]:
    row = {**row.get("anyOf", [{}])[0], **row}  # an argument's first type is the one to use
    kept = {key: value for key, value in row.items() if key in _SHOWN}
    return kept | ({"items": _shortened_row(kept["items"])} if "items" in kept else {})


def _as_of(result: Answered, context: Context[None, Any] | None) -> Answered:
    """Returns a result without links, if its client's version is too old for links."""
    version = context.protocol_version if context is not None else None
    if version is None or is_version_at_least(version, _LINKS_SINCE):
        return result
    if isinstance(result, CallToolResult):
        result.content = [each for each in result.content if each.type != "resource_link"]
    return result


def _held(result: Answered) -> Answered:
    """Returns a result without images that exceed the client's limit of memory."""
    lease = LEASE.get()
    if lease is not None and isinstance(result, CallToolResult):
        for place, block in enumerate(result.content):
            if block.type == "image" and not lease.reserve(len(block.data)):
                result.content[place] = text_block(_NO_ROOM)
    return result


def _refusal(name: str, cause: BaseException | None) -> str | None:
    """Returns the words of a tool's refusal; None if the error has no words of ours."""
    match cause:
        case ValidationError():
            rows = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in cause.errors())
            return f"{name} was not called: {'; '.join(rows)}."
        case LimitReached():
            return f"{cause.happened} Nothing was changed. {_ADVICE.get(cause.limit, '')}".rstrip()
        case GuestStopped():
            return cause.text(Door.AGENT)
        case WasmKernelError() | ValueError():
            return str(cause)
        case OSError():
            name = cause.filename
            is_relative = isinstance(name, str) and not name.startswith("/")
            return f"{cause.strerror or cause}{f': {name[:200]!r}' if is_relative else ''}"
    return None


async def serve_stdio(server: WorkspaceServer) -> None:
    """Serves the client over stdin and stdout, until it closes them."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_by_signal, server.sessions.close)
        await server.run_stdio_async()
        tasks.cancel_scope.cancel()


async def _end_by_signal(close: Callable[[], Any]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            await close()
            os._exit(128 + number)  # a thread waits for a line on stdin, and no signal wakes it
