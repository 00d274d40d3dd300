"""The tools for cells and sessions, as a model calls them."""

from __future__ import annotations

import asyncio
import inspect
import posixpath
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult, ContentBlock, ToolAnnotations
from pydantic import BeforeValidator, Field

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.frontends.http.metrics import Metrics
from wasm_kernel.frontends.mcp.callers import CALLER
from wasm_kernel.frontends.mcp.cells import ClientLeft, run_cell
from wasm_kernel.frontends.mcp.info import listing, runtimes, usage_of, workspace_info
from wasm_kernel.frontends.mcp.results import TEXT_CHARACTERS, CellReply, cut, text_block
from wasm_kernel.frontends.mcp.sessions import AgentSession, AgentSessions
from wasm_kernel.policy import RuntimeType
from wasm_kernel.result import Travelled, first_of

_SPOKEN = {"py": "python", "python3": "python", "js": "javascript", "node": "javascript"}
_SPOKEN |= dict.fromkeys(("ts", "typescript"), "javascript")  # its guest runs both


def _spoken(name: object) -> object:
    """Returns the guest that a model's name of a language means; the enum refuses other names."""
    word = name.strip().lower() if isinstance(name, str) else name
    return _SPOKEN.get(word, word) or None if isinstance(word, str) else word


Handle = Annotated[str | None, Field(max_length=100)]
Language = Annotated[Literal["python", "javascript", "typescript"] | None, BeforeValidator(_spoken)]
Name = Annotated[str, Field(max_length=200)]
Packages = Annotated[list[Name], Field(max_length=50)] | Annotated[str, Field(max_length=2_000)]
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
CHANGES = ToolAnnotations(destructive_hint=False, open_world_hint=False)
DELETES = ToolAnnotations(destructive_hint=True)
FETCHES = ToolAnnotations(destructive_hint=False)
_BUSY = (
    "A cell runs in this session. Nothing was changed. Wait for it, or end it with "
    "cancel_execution."
)
_FORKS_MOST = 8
_FUNCTIONS = "\n\nCells can call these functions, which run outside of the sandbox:"
_CODE_CHARACTERS = 1_000_000
_TOO_LONG = (
    f"The code of a cell may have {_CODE_CHARACTERS:,} characters. Nothing was run. Bring data in "
    "with write_file."
)
_TOO_LATE = (
    "[note] timeout_seconds only lowers a cell's limit, which is {seconds:g} seconds here: that "
    "holds."
)
_TRAVEL_CHARACTERS = 2_000
_NAMED = 20  # the most files named in a reply that an undo left unchanged

Blocks = list[ContentBlock]


@dataclass
class CellTools:
    """The tools for cells and sessions. A reply holds at most `characters` of one output."""

    sessions: AgentSessions
    metrics: Metrics
    characters: int

    def add_to(self, server: MCPServer[None], functions: Sequence[str]) -> None:
        """Adds the tools to a server; `functions` describes those of the host for cells."""
        more = "\n".join([_FUNCTIONS, *functions]) if functions else ""
        offer(server, self.execute_code, CHANGES, more)
        offer(server, self.install_packages, FETCHES)
        offer(server, self.get_workspace_info, READS)
        offer(server, self.create_session, CHANGES)
        offer(server, self.list_sessions, READS)
        offer(server, self.reset_session, DELETES)
        offer(server, self.destroy_session, DELETES)
        offer(server, self.undo, DELETES)
        offer(server, self.checkpoint, CHANGES)
        offer(server, self.restore, DELETES)
        offer(server, self.fork_session, CHANGES)
        offer(server, self.cancel_execution, CHANGES)
        offer(server, self.list_runtimes, READS)
        offer(server, self.list_active_sessions, READS)

    # -- cells

    async def execute_code(
        self,
        ctx: Context,
        code: str,
        language: Language = None,
        session: Annotated[
            Handle, Field(description="A handle that a result shows; by default your own session.")
        ] = None,
        timeout_seconds: Annotated[
            float | None, Field(description="Lowers the cell's time limit.", gt=0)
        ] = None,
    ) -> CallToolResult:
        """Run a cell. Variables, imports and files in /app stay for the next one.

        Shows what is printed, the value of the last line, and matplotlib figures.
        """
        if len(code) > _CODE_CHARACTERS:
            raise WasmKernelError(_TOO_LONG)
        asked = language or (None if session else RuntimeType.PYTHON.value)
        found = await self.sessions.of(CALLER.get(), session, asked)
        answer = await self._run(ctx, found, code, timeout_seconds)
        most = self.sessions.policy.cell_timeout
        if most is not None and (timeout_seconds or 0) > most:
            answer.content.insert(0, text_block(_TOO_LATE.format(seconds=most)))
        return answer

    async def install_packages(
        self,
        ctx: Context,
        packages: Packages | None = None,
        requirements: Annotated[
            str | None, Field(description="A requirements file.", max_length=4096)
        ] = None,
        language: Language = None,
        session: Handle = None,
    ) -> CallToolResult:
        """Install packages, such as humanize: pure Python, or JavaScript from npm."""
        found = await self.sessions.of(CALLER.get(), session, language)
        texts = [packages] if isinstance(packages, str) else packages or []
        words = [word for text in texts for word in text.split()]
        if not (words or requirements) or any(word.startswith("-") for word in words):
            raise WasmKernelError(
                "Name packages, such as humanize or tomlkit==0.13.2, without options."
            )
        if requirements and found.language != RuntimeType.PYTHON:
            why = f"A requirements file names packages of Python, not of {found.name}."
            raise WasmKernelError(why)
        if requirements:
            words.append(f"-r {shlex.quote(posixpath.join('/app', requirements))}")
        command = "%pip" if found.language == RuntimeType.PYTHON else "%npm"
        return await self._run(ctx, found, f"{command} install {' '.join(words)}", None)

    async def _run(
        self, ctx: Context, session: AgentSession, code: str, timeout_seconds: float | None
    ) -> CallToolResult:
        try:
            result = await run_cell(session, code, timeout_seconds, ctx)
        except (asyncio.CancelledError, ClientLeft):
            self.metrics.cell_cancelled()
            raise
        self.metrics.cell_ended(result)
        blocks = await CellReply(session, result, self.characters).blocks()
        return CallToolResult(content=blocks, is_error=not result.success)

    async def cancel_execution(self, session: Handle = None) -> Blocks:
        """Interrupt the running cell. Variables stay."""
        found = await self.sessions.of(CALLER.get(), session, make=False)
        is_interrupted = await found.sandbox.interrupt()
        what = "The cell was interrupted in" if is_interrupted else "No cell was running in"
        return said(found, f"{what} {found.name}.")

    # -- sessions

    async def create_session(self, language: Language = None) -> Blocks:
        """Make a further session beside your own one; it stays until destroy_session."""
        asked = language or RuntimeType.PYTHON.value
        made = await self.sessions.create(CALLER.get(), asked)
        return said(made, f"Made {made.name}. Pass that handle to the other tools.")

    async def list_sessions(self, session: Handle = None) -> Blocks:
        """List your sessions."""
        found = await self.sessions.listed(CALLER.get(), session)
        return [text_block(listing(found) if found else "You have no session yet.")]

    async def list_active_sessions(self) -> Blocks:
        """List the sessions of all clients, with what they use. For administrators."""
        if not CALLER.get().is_admin:
            raise WasmKernelError("Only administrators may list the sessions of all clients.")
        service, host = (await self.sessions.service()).sync, self.sessions.host
        usage = await host.work(CALLER.get(), usage_of, self.sessions.all(), service)
        return [text_block(listing(self.sessions.all(), usage) or "There is no session.")]

    async def reset_session(self, language: Language = None, session: Handle = None) -> Blocks:
        """Begin anew: variables go; files and named checkpoints stay."""
        found = await self.sessions.of(CALLER.get(), session, language)
        await found.sandbox.reset()
        found.begin_anew()
        kept = "its files and named checkpoints are still there"
        return said(found, f"All variables of {found.name} are gone; {kept}.")

    async def destroy_session(self, language: Language = None, session: Handle = None) -> Blocks:
        """Delete a session with its variables and files, for good."""
        found = await self.sessions.of(CALLER.get(), session, language, make=False)
        await self.sessions.destroy(found)
        return said(found, f"Gone, with its variables and files: {found.name}.")

    async def get_workspace_info(self, language: Language = None, session: Handle = None) -> Blocks:
        """Show variables, files, packages, history, and limits, also while a cell runs."""
        found = await self.sessions.of(CALLER.get(), session, language)
        info = await workspace_info(found, (await self.sessions.service()).sync)
        return said(found, cut(info, TEXT_CHARACTERS, ""))

    async def list_runtimes(self) -> Blocks:
        """List the languages and their built-in packages."""
        return [text_block(await anyio.to_thread.run_sync(runtimes))]

    # -- its history

    async def undo(
        self,
        cells: Annotated[int, Field(ge=1)] = 1,
        files: Annotated[bool, Field(description="Also undo changes of files.")] = False,
        language: Language = None,
        session: Handle = None,
    ) -> Blocks:
        """Take back what the last cells did to variables."""
        found = await self._quiet(session, language)
        travelled = await found.sandbox.undo(cells, files=files)
        done = f"These cells of {found.name} are taken back"
        return _travelled(found, "undo", done, travelled)

    async def checkpoint(
        self, name: Name, language: Language = None, session: Handle = None
    ) -> Blocks:
        """Name the present state of all variables, for restore."""
        found = await self._quiet(session, language)
        await found.sandbox.checkpoint(name)
        return said(found, f"This state of {found.name} is named {name!r} now.")

    async def restore(
        self,
        name: Name | int,
        files: Annotated[bool, Field(description="Also bring files back.")] = False,
        language: Language = None,
        session: Handle = None,
    ) -> Blocks:
        """Bring variables back to a checkpoint, by its name, or to after a cell, by its number."""
        found = await self._quiet(session, language)
        travelled = await found.sandbox.restore(name, files=files)
        done = f"The variables of {found.name} are as they were at {name!r}."
        return _travelled(found, f"restore {name}", done, travelled)

    async def fork_session(
        self,
        count: Annotated[int, Field(ge=1, le=_FORKS_MOST)] = 1,
        language: Language = None,
        session: Handle = None,
    ) -> Blocks:
        """Copy a session with variables and files, to try variants."""
        found = await self._quiet(session, language)
        made = await self.sessions.fork(found, CALLER.get(), count)
        handles = "\n".join(each.name for each in made)
        words = f"They begin with the variables and files of {found.name}."
        return said(found, f"Made {len(made)}:\n{handles}\n{words}")

    async def _quiet(self, handle: str | None, language: str | None) -> AgentSession:
        """Returns a session without a running cell, or raises `WasmKernelError`.

        Otherwise a call would wait for the cell silently.
        """
        found = await self.sessions.of(CALLER.get(), handle, language)
        if found.running:
            raise WasmKernelError(_BUSY)
        return found


def offer(
    server: MCPServer[None], tool: Callable[..., Any], hints: ToolAnnotations, more: str = ""
) -> None:
    """Adds a tool to a server; the model reads its docstring, and `more`."""
    description = f"{inspect.getdoc(tool)}{more}"
    server.add_tool(tool, description=description, annotations=hints, structured_output=False)


def said(session: AgentSession, text: str) -> Blocks:
    """Returns the result of a tool as blocks; it begins with the notes of its session."""
    return [text_block("\n".join([*(f"[note] {note}" for note in session.take_notes()), text]))]


def _left(paths: Sequence[str]) -> str:
    """Returns the names of files that stayed, and how to undo them; empty if none stayed."""
    names = ", ".join(first_of(paths, _NAMED))
    return f"{names}. Run the cell %restore --files to take that back, too." if paths else ""


def _travelled(session: AgentSession, what: str, done: str, travelled: Travelled) -> Blocks:
    session.travelled(what)
    missed = [f"{path}: {why}" for path, why in travelled.files_missed.items()]
    cells = "".join(f"\n- {line}" for line in travelled.cells)
    rows = {
        done: f":{cells}" if cells else " ",
        "Files that are back: ": ", ".join(travelled.files_back),
        "Files that are gone: ": ", ".join(travelled.files_removed),
        "Not brought back: ": "; ".join(missed),
        "Files that stay as they are: ": _left(travelled.files_left),
    }
    text = "\n".join(head + rest for head, rest in rows.items() if rest)
    return said(session, cut(text.strip(), _TRAVEL_CHARACTERS, ""))
