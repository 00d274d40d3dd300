"""The tools for files, and files as resources: the host reads and writes them, without a guest."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Literal
from urllib.parse import unquote

from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp_types import Resource, ResourceTemplate, ToolAnnotations
from pydantic import Field

from wasm_kernel.errors import LimitReached, WasmKernelError, describe
from wasm_kernel.frontends.mcp.callers import SHARE, Caller
from wasm_kernel.frontends.mcp.images import IMAGES, Picture, fitting, image_block
from wasm_kernel.frontends.mcp.results import (
    TEXT_CHARACTERS,
    cut,
    link,
    mime_type_of,
    size_of,
    text_block,
    uri_of,
)
from wasm_kernel.frontends.mcp.sessions import AgentSession, AgentSessions
from wasm_kernel.frontends.mcp.tools import CHANGES, DELETES, READS, Blocks, Handle, Refused, offer
from wasm_kernel.policy import MIB

SCHEME = "workspace"
_FOLDER = "/app/"
_ALL = ("", ".")  # as what is to be listed
_READ_BYTES = 32 * MIB
CONTENT_CHARACTERS = 32 * MIB
"""The most characters that a call may write into a file."""
_LISTED = 500
TEMPLATE = ResourceTemplate(
    uri_template=f"{SCHEME}://{{session}}/{{+path}}",
    name="workspace file",
    description="A file in /app of a session; links in results have this form.",
)

Path = Annotated[
    str, Field(description="A path in /app, such as data.csv or out/plot.png.", max_length=4096)
]


class FileTools:
    """The tools for files; `caller` returns who calls."""

    def __init__(self, sessions: AgentSessions, caller: Callable[[], Caller]) -> None:
        self._sessions = sessions
        self._caller = caller

    def add_to(self, server: MCPServer[None]) -> None:
        """Offers the tools."""
        rows: list[tuple[Callable[..., Awaitable[Blocks]], ToolAnnotations]] = [
            (self.list_files, READS),
            (self.read_file, READS),
            (self.write_file, CHANGES),
            (self.delete_file, DELETES),
        ]
        for tool, hints in rows:
            offer(server, tool, hints)

    async def list_files(
        self,
        pattern: Annotated[
            str | None,
            Field(description="A folder, or a glob such as *.csv or **/*.png.", max_length=1000),
        ] = None,
        session: Handle = None,
    ) -> Blocks:
        """List the files in /app."""
        found = await self._sessions.to_look_at(self._caller(), session)
        name = _relative(pattern or "").rstrip("/")
        paths = await found.sandbox.list_files(None if name in _ALL else name)
        if not paths and name not in _ALL:
            paths = await found.sandbox.list_files(f"{name}/**")
        more = f"\n... and {len(paths) - _LISTED:,} more" if len(paths) > _LISTED else ""
        text = cut("\n".join(paths[:_LISTED]), TEXT_CHARACTERS, "") + more
        return [text_block(text or ("No files yet." if name in _ALL else "There is no such file."))]

    async def read_file(
        self,
        path: Path,
        offset: Annotated[int, Field(description="Characters to skip.", ge=0)] = 0,
        session: Handle = None,
    ) -> Blocks:
        """Read a file: text as it is, images as images.

        Long texts come in parts. To analyse data, rather read it in execute_code.
        """
        found = await self._sessions.to_look_at(self._caller(), session)
        name = _relative(path)
        data = await _content(found, name)
        if (mime_type := mime_type_of(name)) in IMAGES:
            shown = await fitting(found, Picture(mime_type, data), name)
            if shown is not None:
                return [image_block(shown), link(found, name)]
        try:
            text = data.decode()
        except UnicodeDecodeError:
            words = f"{name} is no text ({size_of(data)}): read it in execute_code."
            return [text_block(words), link(found, name)]
        part = text[offset : offset + TEXT_CHARACTERS]
        left = len(text) - offset - len(part)
        note = [text_block(f"[{left:,} characters follow: offset={offset + len(part)}]")]
        return [text_block(part), *(note if left > 0 else [])]

    async def write_file(
        self,
        path: Path,
        content: Annotated[
            str, Field(description="The whole content.", max_length=CONTENT_CHARACTERS)
        ],
        encoding: Annotated[
            Literal["utf-8", "base64"], Field(description="base64 for what is no text.")
        ] = "utf-8",
        session: Handle = None,
    ) -> Blocks:
        r"""Write a file in /app; folders are made, a file that is there is replaced.

        Example: {"path": "data.csv", "content": "a,b\n1,2\n"}
        """
        found = await self._sessions.of(self._caller(), session)
        name = _relative(path)
        try:
            data = content.encode() if encoding == "utf-8" else b64decode(content, validate=True)
        except (binascii.Error, UnicodeEncodeError) as problem:
            raise Refused(
                f"Nothing was written: the content is not {encoding} ({problem})."
            ) from None
        await found.write(name, data)
        notes, found.notes = found.notes, []
        said = "\n".join([f"Wrote /app/{name} ({size_of(data)}).", *notes])
        return [text_block(said), link(found, name)]

    async def delete_file(
        self,
        path: Path,
        recursive: Annotated[bool, Field(description="Also a folder that is not empty.")] = False,
        session: Handle = None,
    ) -> Blocks:
        """Delete a file or a folder in /app. undo does not bring it back."""
        found = await self._sessions.existing(self._caller(), session)
        name = _relative(path)
        await found.sandbox.delete_file(name, recursive=recursive)
        return [text_block(f"Deleted /app/{name}.")]

    # -- resources

    async def resources(self) -> list[Resource]:
        """Returns the files of the caller's own session."""
        caller = self._caller()
        found = self._sessions.known(caller, None) if caller.scope else None
        if found is None:
            return []
        paths = await found.sandbox.list_files()
        return [
            Resource(
                uri=uri_of(found, path), name=link(found, path).name, mime_type=mime_type_of(path)
            )
            for path in paths[:_LISTED]
        ]

    async def read_resource(self, uri: str) -> Iterable[ReadResourceContents]:
        """Returns the content of a file, or raises `ResourceError`."""
        scheme, _, rest = uri.partition("://")
        handle, _, quoted = rest.partition("/")
        path = unquote(quoted, errors="surrogateescape")
        if scheme != SCHEME or not path:
            raise ResourceNotFoundError(f"Files are {TEMPLATE.uri_template}, not {uri[:200]!r}.")
        try:
            found = await self._sessions.existing(self._caller(), handle)
            data = await _content(found, path)
        except FileNotFoundError:
            raise ResourceNotFoundError(f"There is no file {path[:200]!r}.") from None
        except (WasmKernelError, OSError) as problem:
            raise ResourceError(describe(problem)) from None
        mime_type = mime_type_of(path)
        try:
            is_text = mime_type.startswith("text/") or mime_type == "application/json"
            return [ReadResourceContents(data.decode() if is_text else data, mime_type)]
        except UnicodeDecodeError:
            return [ReadResourceContents(data, mime_type)]


async def _content(session: AgentSession, path: str) -> bytes:
    """Returns the content of a file; `LimitReached` if too many large replies are under way."""
    share = SHARE.get()
    if share is None:
        return await session.sandbox.read_file(path, max_bytes=_READ_BYTES)
    async with share.reading:
        data = await session.sandbox.read_file(path, max_bytes=_READ_BYTES)
    if not share.take(len(data)):
        raise LimitReached("reply_bytes", "Too many large files at once.", "")
    return data


def _relative(path: str) -> str:
    """Returns a path below `/app`, which models often put before it."""
    return "." if path == "/app" else path.removeprefix(_FOLDER).removeprefix("./")
