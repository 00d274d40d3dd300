"""The tools for cells and sessions, as a model calls them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult, ContentBlock, ToolAnnotations
from pydantic import Field

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.frontends.mcp.callers import Caller
from wasm_kernel.frontends.mcp.cells import run_cell
from wasm_kernel.frontends.mcp.info import listing, runtimes, workspace_info
from wasm_kernel.frontends.mcp.metrics import Metrics
from wasm_kernel.frontends.mcp.results import TEXT_CHARACTERS, CellReply, cut, text_block
from wasm_kernel.frontends.mcp.sessions import AgentSession, AgentSessions
from wasm_kernel.guests.base import load
from wasm_kernel.policy import RuntimeType
from wasm_kernel.result import Travelled
from wasm_kernel.service.async_session import on_thread
from wasm_kernel.sessions.forking import FORK

Handle = Annotated[
    str | None,
    Field(
        description="A session's handle, as results show it. Leave it out for your own one.",
        max_length=100,
    ),
]
Language = Annotated[
    str, Field(description="python, or another one that list_runtimes names.", max_length=50)
]
Name = Annotated[str, Field(max_length=200)]
Packages = Annotated[list[Name], Field(max_length=50)] | Annotated[str, Field(max_length=2_000)]
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
CHANGES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
DELETES = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
FETCHES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True)
_BUSY = (
    "A cell runs in this session. Nothing was changed. Wait for it, or end it with "
    "cancel_execution."
)
_FORKS_MOST = 8
_CODE_CHARACTERS = 1_000_000
_TOO_LONG = (
    f"The code of a cell may have {_CODE_CHARACTERS:,} characters. Nothing was run. Bring data in "
    "with write_file."
)
_FORK_CELL = (
    "%fork makes a session for a notebook, which no tool would find. Nothing was run. fork_session "
    "copies this one."
)
_TRAVEL_CHARACTERS = 2_000

Blocks = list[ContentBlock]


class Refused(WasmKernelError):
    """A call that asks for what can't be done; `str()` says why."""


class CellTools:
    """The tools for cells and sessions; `caller` returns who calls."""

    def __init__(
        self, sessions: AgentSessions, caller: Callable[[], Caller], metrics: Metrics
    ) -> None:
        self._sessions = sessions
        self._caller = caller
        self._metrics = metrics

    def add_to(self, server: MCPServer[None]) -> None:
        """Offers the tools."""
        rows: list[tuple[Callable[..., Awaitable[Blocks | CallToolResult]], ToolAnnotations]] = [
            (self.execute_code, CHANGES),
            (self.install_packages, FETCHES),
            (self.get_workspace_info, READS),
            (self.create_session, CHANGES),
            (self.list_sessions, READS),
            (self.reset_session, DELETES),
            (self.destroy_session, DELETES),
            (self.undo, DELETES),
            (self.checkpoint, CHANGES),
            (self.restore, DELETES),
            (self.fork_session, CHANGES),
            (self.cancel_execution, CHANGES),
            (self.list_runtimes, READS),
            (self.list_active_sessions, READS),
        ]
        for tool, hints in rows:
            offer(server, tool, hints)

    # -- cells

    async def execute_code(
        self,
        ctx: Context,
        code: Annotated[str, Field(description="The code of one cell.")],
        language: Language = "python",
        session: Handle = None,
        timeout_seconds: Annotated[
            float | None, Field(description="Lowers the time limit of this cell.", gt=0)
        ] = None,
    ) -> CallToolResult:
        r"""Run code. Variables, imports and files in /app stay for the next call.

        The value of the last line and matplotlib figures are shown, as in a notebook. There is no
        network; numpy, pandas, scipy, scikit-learn, matplotlib and more are there.
        Example: {"code": "import pandas as pd\ndf = pd.read_csv('data.csv')\ndf.describe()"}
        """
        if len(code) > _CODE_CHARACTERS:
            raise Refused(_TOO_LONG)
        found = await self._sessions.of(self._caller(), session, language)
        if FORK in code and await on_thread(_forks, found.language, code):
            raise Refused(_FORK_CELL)
        return await self._run(ctx, found, code, timeout_seconds)

    async def install_packages(
        self,
        ctx: Context,
        packages: Annotated[Packages, Field(description="Names, also with versions.")],
        session: Handle = None,
    ) -> CallToolResult:
        """Install packages into the session: pure Python, or JavaScript from npm.

        numpy, pandas, scipy, scikit-learn, matplotlib and many more are there already.
        Example: {"packages": ["humanize", "tabulate==0.9.0"]}
        """
        found = await self._sessions.of(self._caller(), session)
        texts = [packages] if isinstance(packages, str) else packages
        words = [word for text in texts for word in text.split()]
        if not words or any(word.startswith("-") for word in words):
            raise Refused("Name packages, such as humanize or tabulate==0.9.0, without options.")
        command = "%pip" if found.language == RuntimeType.PYTHON else "%npm"
        return await self._run(ctx, found, f"{command} install {' '.join(words)}", None)

    async def _run(
        self, ctx: Context, session: AgentSession, code: str, timeout_seconds: float | None
    ) -> CallToolResult:
        async def tell(seconds: float, line: str) -> None:
            words = f"{seconds:.0f} s: {line}" if line else f"{seconds:.0f} s"
            await ctx.report_progress(seconds, message=words)

        try:
            result = await run_cell(session, code, timeout_seconds, tell)
        except asyncio.CancelledError:
            self._metrics.cell_cancelled()
            raise
        self._metrics.cell_ended(result)
        blocks = await CellReply(session, result).blocks()
        return CallToolResult(content=blocks, is_error=not result.success)

    async def cancel_execution(self, session: Handle = None) -> Blocks:
        """Interrupt the cell that runs in a session. Its variables stay."""
        found = await self._sessions.existing(self._caller(), session)
        is_interrupted = await found.sandbox.interrupt()
        return _said("The cell was interrupted." if is_interrupted else "No cell was running.")

    # -- sessions

    async def create_session(self, language: Language = "python") -> Blocks:
        """Make a further session, with variables and files of its own, beside your own one.

        It stays until destroy_session, or until nobody has used it for long.
        """
        made = await self._sessions.create(self._caller(), language)
        return _said(f'Made session="{made.handle}" ({made.language}). Pass it to the other tools.')

    async def list_sessions(self, session: Handle = None) -> Blocks:
        """List your sessions."""
        found = self._sessions.listed(self._caller(), session)
        return _said(listing(found) if found else "You have no session yet.")

    async def list_active_sessions(self) -> Blocks:
        """List the sessions of all clients, with what they use. For administrators."""
        if not self._caller().is_admin:
            raise Refused("Only administrators may list the sessions of all clients.")
        service = await self._sessions.service()
        usage = {each.session_id: each for each in await service.list()}
        return _said(listing(self._sessions.all(), usage) or "There is no session.")

    async def reset_session(self, session: Handle = None) -> Blocks:
        """Begin anew: all variables and the history go, files in /app stay."""
        found = await self._sessions.existing(self._caller(), session)
        await found.sandbox.reset()
        found.begin_anew()
        return _said("All variables are gone; the files in /app are still there.")

    async def destroy_session(self, session: Handle = None) -> Blocks:
        """Delete a session with its variables and files. This can't be undone."""
        found = await self._sessions.existing(self._caller(), session)
        await self._sessions.destroy(found)
        return _said("The session is gone, with its variables and files.")

    async def get_workspace_info(self, session: Handle = None) -> Blocks:
        """Show a session: variables, files, packages, history of cells, and limits.

        It answers at once, also while a cell runs.
        """
        found = await self._sessions.to_look_at(self._caller(), session)
        info = await workspace_info(found, await self._sessions.service())
        return _said(cut(info, TEXT_CHARACTERS, ""))

    async def list_runtimes(self) -> Blocks:
        """List the languages, and the packages that they have built in."""
        return _said(await anyio.to_thread.run_sync(runtimes))

    # -- its history

    async def undo(
        self,
        cells: Annotated[int, Field(description="How many cells.", ge=1)] = 1,
        files: Annotated[bool, Field(description="Take back changes of files, too.")] = False,
        session: Handle = None,
    ) -> Blocks:
        """Take back what the last cells did to variables."""
        found = await self._quiet(session)
        travelled = await found.sandbox.undo(cells, files=files)
        return _travelled(found, "undo", "These cells are taken back", travelled)

    async def checkpoint(
        self,
        name: Annotated[Name, Field(description="A name of your choice.")],
        session: Handle = None,
    ) -> Blocks:
        """Name the present state of all variables, so that restore can bring it back."""
        found = await self._quiet(session)
        await found.sandbox.checkpoint(name)
        return _said(f"This state is named {name!r} now.")

    async def restore(
        self,
        name: Annotated[Name | int, Field(description="A checkpoint's name, or a cell's number.")],
        files: Annotated[bool, Field(description="Bring files back, too.")] = False,
        session: Handle = None,
    ) -> Blocks:
        """Bring all variables back as they were at a checkpoint, or after a cell.

        Example: {"name": "cleaned"} or {"name": "3"}
        """
        found = await self._quiet(session)
        travelled = await found.sandbox.restore(name, files=files)
        return _travelled(
            found, f"restore {name}", f"Variables are as they were at {name!r}.", travelled
        )

    async def fork_session(
        self,
        count: Annotated[int, Field(description="How many copies.", ge=1, le=_FORKS_MOST)] = 1,
        session: Handle = None,
    ) -> Blocks:
        """Copy a session with its variables and files, to try variants side by side."""
        found = await self._quiet(session)
        made = await self._sessions.fork(found, self._caller(), count)
        handles = "\n".join(f'session="{each.handle}"' for each in made)
        return _said(f"Made {len(made)}, with the same variables and files:\n{handles}")

    async def _quiet(self, handle: str | None) -> AgentSession:
        """Returns a session that no cell runs in, or raises `Refused`.

        A call would wait for the running one without a word.
        """
        found = await self._sessions.existing(self._caller(), handle)
        if found.is_busy:
            raise Refused(_BUSY)
        return found


def offer(server: MCPServer[None], tool: Callable[..., Any], hints: ToolAnnotations) -> None:
    """Offers a tool; its docstring is what the model reads."""
    description = inspect.getdoc(tool)
    server.add_tool(tool, description=description, annotations=hints, structured_output=False)


def _forks(language: str, code: str) -> bool:
    return bool(load(RuntimeType(language)).parse_cell(code).commands({FORK}))


def _said(text: str) -> Blocks:
    return [text_block(text)]


def _travelled(session: AgentSession, what: str, done: str, travelled: Travelled) -> Blocks:
    session.travelled(what)
    missed = [f"{path}: {why}" for path, why in travelled.files_missed.items()]
    cells = "".join(f"\n- {line}" for line in travelled.cells)
    rows = {
        done: f":{cells}" if cells else " ",
        "Files that are back: ": ", ".join(travelled.files_back),
        "Files that are gone: ": ", ".join(travelled.files_removed),
        "Not brought back: ": "; ".join(missed),
    }
    text = "\n".join(head + rest for head, rest in rows.items() if rest)
    return _said(cut(text.strip(), _TRAVEL_CHARACTERS, ""))
