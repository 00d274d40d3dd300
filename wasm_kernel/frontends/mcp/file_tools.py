"""The tools for files, and files as resources: the host reads and writes them, without a guest."""

from __future__ import annotations

import contextlib
import errno
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import unquote

from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError
from mcp_types import Resource, ResourceTemplate, TextContent
from pydantic import Field

from wasm_kernel.errors import LimitReached, WasmKernelError, describe
from wasm_kernel.frontends.http.callers import LEASE
from wasm_kernel.frontends.mcp.callers import CALLER
from wasm_kernel.frontends.mcp.images import IMAGES, Picture, fitting, image_block
from wasm_kernel.frontends.mcp.mounts import MountedFiles
from wasm_kernel.frontends.mcp.results import TEXT_CHARACTERS, cut, link, mime_type_of, text_block
from wasm_kernel.frontends.mcp.sessions import AgentSession, AgentSessions
from wasm_kernel.frontends.mcp.tools import (
    CHANGES,
    DELETES,
    READS,
    Blocks,
    Handle,
    Language,
    offer,
    said,
)
from wasm_kernel.policy import MIB
from wasm_kernel.result import first_of, readable

SCHEME = "workspace"
_FOLDER = "/app/"
_ALL = ("", ".")  # patterns that list all files
FILE_BYTES = 32 * MIB
"""The most bytes of a file that one call reads or writes."""
RESOURCE_BYTES = 8 * MIB
"""The most bytes of a file read as a resource, which the SDK sends as a whole."""
_CONTROLS = bytes({*range(32)} - {*b"\t\n\r"})  # six times as long in JSON
_LARGE = (
    "A resource may have {most}, and this file is larger: read it in parts, by read_file with "
    'encoding="base64" and an offset.'
)
_URI_CHARACTERS = 20_000
_NO_FILE = "There is no such file."
_LISTED = 500
TEMPLATE = ResourceTemplate(
    uri_template=f"{SCHEME}://{{session}}/{{+path}}",
    name="workspace file",
    description="A file in /app of a session; links in results have this form.",
)

Path = Annotated[str, Field(max_length=4096)]
Encoding = Literal["utf-8", "base64"]


@dataclass
class FileTools:
    """The tools for files.

    They also list and read the files of `mounts`. A reply holds at most `characters` of a file.
    """

    sessions: AgentSessions
    mounts: MountedFiles
    characters: int

    def add_to(self, server: MCPServer[None]) -> None:
        """Adds the tools to a server."""
        offer(server, self.list_files, READS)
        offer(server, self.read_file, READS)
        offer(server, self.write_file, CHANGES)
        offer(server, self.delete_file, DELETES)

    async def list_files(
        self,
        pattern: Annotated[
            str | None, Field(description="A folder, or a glob such as **/*.png.", max_length=1000)
        ] = None,
        language: Language = None,
        session: Handle = None,
    ) -> Blocks:
        """List the files in /app, or in another folder that cells see."""
        name = _relative(pattern or "").rstrip("/")
        if self.mounts.holds(name):
            paths = await self.sessions.host.work(CALLER.get(), self.mounts.list, name)
            return [text_block(_listing(paths) or _NO_FILE)]
        found = await self.sessions.of(CALLER.get(), session, language)
        paths = await found.work(_paths, found, None if name in _ALL else name)
        if not paths:
            which = "No files yet" if name in _ALL else "There is no such file"
            return said(found, f"{which} in {found.name}.")
        return said(found, f"In {found.name}:\n{_listing(paths)}")

    async def read_file(
        self,
        path: Path,
        offset: Annotated[int, Field(ge=0)] = 0,
        encoding: Encoding = "utf-8",
        language: Language = None,
        session: Handle = None,
    ) -> Blocks:
        """Read a file: text as it is, in parts if it is long; images as images."""
        name = _relative(path)
        if self.mounts.holds(name):
            data = await self._content(None, name)
            return _shown(name, data, offset, encoding, self.characters)
        found = await self.sessions.of(CALLER.get(), session, language)
        with _missing_there(found, name):
            data = await self._content(found, name)
        if (mime_type := mime_type_of(name)) in IMAGES and encoding == "utf-8":
            shown = await fitting(found, Picture(mime_type, data), name)
            if shown is not None:
                return [image_block(shown), link(found, name)]
        return _shown(name, data, offset, encoding, self.characters)

    async def write_file(
        self,
        path: Path,
        content: str,
        encoding: Encoding = "utf-8",
        language: Language = None,
        session: Handle = None,
    ) -> Blocks:
        """Write a file in /app, with the folders on its way, or over one that is there."""
        name = self._writable(path)
        try:
            data = content.encode() if encoding == "utf-8" else b64decode(content, validate=True)
        except ValueError as problem:
            raise WasmKernelError(
                f"Nothing was written: the content is not {encoding} ({problem})."
            ) from None
        if len(data) > FILE_BYTES:
            raise WasmKernelError(
                f"Nothing was written: a call writes {readable(FILE_BYTES)} at most, and this is "
                f"{readable(len(data))}."
            )
        found = await self.sessions.of(CALLER.get(), session, language)
        await found.write(name, data)
        words = f"Wrote /app/{name} ({readable(len(data))}) in {found.name}."
        return [*said(found, words), link(found, name)]

    async def delete_file(
        self, path: Path, recursive: bool = False, language: Language = None, session: Handle = None
    ) -> Blocks:
        """Delete a file or a folder in /app. undo does not bring it back."""
        name = self._writable(path)
        found = await self.sessions.of(CALLER.get(), session, language)
        with _missing_there(found, name):
            await found.work(found.sandbox.files.delete, name, recursive=recursive)
        return said(found, f"Deleted /app/{name} in {found.name}.")

    def _writable(self, path: str) -> str:
        """Returns a path below `/app`; raises an error if it leads into a mount."""
        name = _relative(path)
        if self.mounts.holds(name):
            raise WasmKernelError(
                f"Nothing was changed: this tool changes files in /app alone. There are also "
                f"{self.mounts}; a cell can write into a writable one."
            )
        return name

    async def _content(
        self, session: AgentSession | None, path: str, most: int = FILE_BYTES
    ) -> bytes:
        """Returns the content of a file of a session or a mount.

        Raises `LimitReached` if too many large replies are under way.
        """
        if session is None:
            data = await self.sessions.host.work(CALLER.get(), self.mounts.read, path, most)
        else:
            data = await session.work(session.sandbox.files.read, path, max_bytes=most)
        lease = LEASE.get()
        if lease is not None and not lease.reserve(len(data)):
            raise LimitReached("reply_bytes", "Too many large files at once.", "")
        return data

    # -- resources

    async def resources(self) -> list[Resource]:
        """Returns the files of the caller's own session."""
        caller = CALLER.get()
        found = self.sessions.known(caller, None)
        if found is None:
            return []
        paths = await found.work(_paths, found, None)
        links = [link(found, path) for path in paths[:_LISTED]]
        return [Resource(uri=one.uri, name=one.name, mime_type=one.mime_type) for one in links]

    async def read_resource(self, uri: str) -> Iterable[ReadResourceContents]:
        """Returns the content of a file, or raises `ResourceError`."""
        scheme, _, rest = uri[:_URI_CHARACTERS].partition("://")
        handle, _, quoted = rest.partition("/")
        path = unquote(quoted, errors="surrogateescape")
        if scheme != SCHEME or not path:
            raise ResourceNotFoundError(f"Files are {TEMPLATE.uri_template}, not {uri[:200]!r}.")
        try:
            found = await self.sessions.of(CALLER.get(), handle, make=False)
            data = await self._content(found, path, RESOURCE_BYTES)
        except FileNotFoundError:
            raise ResourceNotFoundError(f"There is no file {path[:200]!r}.") from None
        except (WasmKernelError, OSError) as problem:
            is_large = isinstance(problem, OSError) and problem.errno == errno.EFBIG
            words = _LARGE.format(most=readable(RESOURCE_BYTES)) if is_large else describe(problem)
            raise ResourceError(words) from None
        mime_type = mime_type_of(path)
        try:
            is_text = mime_type.startswith("text/") or mime_type == "application/json"
            is_text = is_text and len(data.translate(None, _CONTROLS)) == len(data)
            return [ReadResourceContents(data.decode() if is_text else data, mime_type)]
        except UnicodeDecodeError:
            return [ReadResourceContents(data, mime_type)]


@contextlib.contextmanager
def _missing_there(session: AgentSession, path: str) -> Iterator[None]:
    """Turns a missing file into an error that names the session: another one may have it."""
    try:
        yield
    except FileNotFoundError:
        raise WasmKernelError(f"There is no file {path[:200]!r} in {session.name}.") from None


def _paths(session: AgentSession, pattern: str | None) -> list[str]:
    """Returns the files that match a glob or lie in a folder of that name; all files for None."""
    files = session.sandbox.files
    found = files.list(pattern)
    return found if found or pattern is None else files.list(f"{pattern}/**")


def _listing(paths: Sequence[str]) -> str:
    return cut("\n".join(first_of(paths, _LISTED)), TEXT_CHARACTERS, "")


def _shown(name: str, data: bytes, offset: int, encoding: Encoding, most: int) -> Blocks:
    """Returns a part of a file, and a note on how to read the next one.

    The offset is in characters for text, and in bytes for encoded content.
    """
    if encoding == "base64":
        size = most // 4 * 3
        left = len(data) - offset - size
        part, unit = b64encode(data[offset : offset + size]).decode(), "bytes"
    else:
        try:
            text = data.decode()
        except UnicodeDecodeError:
            words = f"{name} is not a text ({readable(len(data))})."
            return [text_block(f'{words} Read it in execute_code, or with encoding="base64".')]
        size, unit = most, "characters"
        left, part = len(text) - offset - size, text[offset : offset + size]
    note = f"[{left:,} {unit} follow: offset={offset + size}]"
    content = TextContent(type="text", text=part)  # the file's own, whatever is in it
    return [content, *([text_block(note)] if left > 0 else [])]


def _relative(path: str) -> str:
    """Returns a path relative to `/app`; models often write the whole path."""
    return "." if path == "/app" else path.removeprefix(_FOLDER).removeprefix("./")
