"""The result of a cell as content blocks: the parts that a model can use, within limits.

Outputs that are too large for a reply are saved in the session's files, and the reply says where.
Replies are made on the event loop that all clients share. So only the shown parts are cleaned and
searched there, and a thread encodes and writes whole outputs.
"""

from __future__ import annotations

import json
import mimetypes
import re
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any
from urllib.parse import quote

from mcp_types import ContentBlock, ResourceLink, TextContent

from wasm_kernel.errors import WasmKernelError, describe
from wasm_kernel.frontends.mcp import images
from wasm_kernel.frontends.mcp.sessions import AgentSession
from wasm_kernel.kernels.messages import count_of
from wasm_kernel.outputs import terminal
from wasm_kernel.outputs.bundle import TYPE_CHARACTERS
from wasm_kernel.result import CellError, Output, SandboxResult, first_of

TEXT_CHARACTERS = 20_000
"""The most characters of one stream, value or file in a reply, by default."""
_ERROR_CHARACTERS, _TRACE_CHARACTERS = 6_000, 60_000  # without and with colours
_PATHS_CHARACTERS = 4_000
_VALUES_MOST = 3  # values of full length in one reply
_BLOCK_CHARACTERS = 50  # characters of a value's block beside its own text
_IMAGES_MOST, _SAVED_MOST, _LINKS_MOST, _PATHS_MOST = 6, 50, 8, 20
_TEXTS = ("text/plain", "text/markdown", "text/latex", "application/json")
_NO_TEXT = re.compile(
    r"<Figure size [^>]*>|<IPython\.core\.display\.\w+ object>|<[\w.]+ (object )?at 0x[0-9a-f]+>"
)
"""The plain text of an object whose other form is shown, such as a figure's name."""
_NO_TEXT_CHARACTERS = 500
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_RULE = re.compile(r"^-{20,}\n", re.MULTILINE)
_NOT_BY_PIP = "%pip can't bring it in"  # the guest's words about a package of compiled code
_HELP = dict.fromkeys(
    ("OutOfFuel", "OutOfMemory", "CellTimeout", "GuestCrashed", "StackExhausted", "Interrupted"),
    "Go on from there: do the work in smaller steps, or in another way.",
) | {
    "MemoryError": "Variables are intact. Free what is not needed (del name), or work in pieces.",
    "KeyboardInterrupt": "The cell was interrupted. Variables are intact, with what it had done.",
    "WorkerLost": "Send the next cell: it gets a new process with these variables.",
    "GuestClosed": "The server is ending, or the session was deleted: make another one.",
    "ModuleNotFoundError": (
        "install_packages brings packages of pure Python; list_runtimes names those that are there."
    ),
    "StdinNotImplementedError": "No user is there to answer: write the value into the code.",
}


def text_block(text: str) -> TextContent:
    """Returns a text, without terminal control, as a block."""
    return TextContent(type="text", text=_encodable(plain(text)))


def _encodable(text: str) -> str:
    """Returns a text that UTF-8 can encode: guests may show lone surrogates."""
    return text.encode("utf-8", "replace").decode()


def plain(text: str) -> str:
    """Returns a text without colours or other terminal control."""
    return _COLOUR.sub("", terminal.clean(text))


def cut(text: str, most: int, note: str) -> str:
    """Returns a text; if it is too long, with a note in place of its middle."""
    if len(text) <= most:
        return text
    head = most * 2 // 3
    missing = len(text) - most
    return f"{text[:head]}\n[... {missing:,} characters left out{note} ...]\n{text[head - most :]}"


def link(session: AgentSession, path: str) -> ResourceLink:
    """Returns a link to a file of a session."""
    return ResourceLink(
        type="resource_link",
        uri=f"workspace://{session.handle}/{quote(path, errors='surrogateescape')}",
        name=_encodable(plain(path)),
        mime_type=mime_type_of(path),
    )


def mime_type_of(path: str) -> str:
    """Returns the MIME type of a file, by its name."""
    return mimetypes.guess_type(path)[0] or "application/octet-stream"


class CellReply:
    """Makes the reply to a cell, from its result and the session that it ran in.

    It holds at most `characters` of one stream or value.
    """

    def __init__(self, session: AgentSession, result: SandboxResult, characters: int) -> None:
        self._left = _VALUES_MOST * characters
        self._most = characters
        self._unshown: list[object] = []
        self._unsaved = 0
        self._session = session
        self._result = result
        self._number = count_of(result.reply) or 0
        self._blocks: list[ContentBlock] = []
        self._images = 0
        self._image_bytes = images.REPLY_IMAGE_BYTES
        self._made = 0
        self._saved: list[str] = []

    async def blocks(self) -> list[ContentBlock]:
        """Returns the blocks; saves outputs that do not fit as files."""
        result = self._result
        for name, text in (("stdout", result.stdout), ("stderr", _besides_error(result))):
            if text and not text.isspace():
                shown = await self._bounded(text, name)
                self._say(f"[{name}]\n{shown.rstrip()}")
        for output in _shown(result.outputs):
            await self._add(output)
        for text in _pages(result.reply):
            await self._add_value("help", text)
        if self._unshown:
            text = await self._session.work(_joined, self._unshown)
            path = await self._save(f"outputs/cell-{self._number}-more.txt", text)
            self._say(f"[display] {len(self._unshown):,} more, in {path or 'no file'}")
        if self._unsaved:
            self._say(f"[display] {self._unsaved:,} more figures or pages, which are not saved")
        if result.error is not None:
            self._say(_error(result.error))
        self._add_files()
        self._say(self._end())
        notes = [text_block(f"[note] {note}") for note in self._session.take_notes()]
        return [*notes, *self._blocks]

    def _say(self, text: str) -> None:
        self._blocks.append(text_block(text))

    async def _bounded(self, text: str, name: str) -> str:
        if len(text) <= self._most:
            return text
        path = await self._save(f"outputs/cell-{self._number}-{name}.txt", text)
        return cut(text, self._most, f"; all of it is in {path}" if path else "")

    async def _save(self, path: str, data: bytes | str) -> str:
        """Writes a new file of the session; returns its path in the guest, empty if it can't.

        Numbers of cells begin again after a reset, and files of earlier cells stay.
        """
        try:
            path = await self._session.write_new(path, data)
        except (WasmKernelError, OSError) as problem:
            self._say(f"[note] {path} could not be saved: {describe(problem)}")
            return ""
        self._saved.append(path)
        return f"/app/{path}"

    async def _add(self, output: Output) -> None:
        label = "result" if output.kind == "result" else "display"
        picture = images.picture_in(output.data)
        if picture is not None:
            await self._add_picture(picture)
            return
        for mime_type in _TEXTS:
            value = output.data.get(mime_type)
            if value is not None and (len(output.data) == 1 or _says_something(value)):
                await self._add_value(label, value)
                return
        await self._add_other(output.data)

    async def _add_value(self, label: str, value: object) -> None:
        if self._left <= 0:
            self._unshown.append(value)
            return
        text = await self._text_of(value)
        shown = await self._bounded(text, f"{label}-{len(self._blocks)}")
        self._left -= len(shown) + _BLOCK_CHARACTERS
        self._say(f"[{label}]\n{shown.rstrip()}")

    async def _text_of(self, value: object) -> str:
        return value if isinstance(value, str) else await self._session.work(_json, value)

    def _may_save_more(self) -> bool:
        """Counts a file that a display would make; returns whether it may be made."""
        self._made += 1
        self._unsaved += self._made > _SAVED_MOST
        return self._made <= _SAVED_MOST

    async def _add_other(self, data: Mapping[str, Any]) -> None:
        for mime_type, value in data.items():
            if mime_type == "text/plain" and len(data) > 1:
                continue
            if not self._may_save_more():
                return
            suffix = mimetypes.guess_extension(mime_type) or ".json"
            name = f"outputs/cell-{self._number}-{len(self._blocks)}{suffix}"
            if path := await self._save(name, await self._text_of(value)):
                what = mime_type[:TYPE_CHARACTERS]
                self._say(f"[display] {what}, saved as {path}; only pictures are shown here.")
            return

    async def _add_picture(self, picture: images.Picture) -> None:
        if not self._may_save_more():
            return
        self._images += 1
        suffix = mimetypes.guess_extension(picture.mime_type) or ".bin"
        name = f"figures/cell-{self._number}-{self._images}{suffix}"
        path = await self._save(name, picture.data)
        if self._images > _IMAGES_MOST:
            self._say(f"[figure] one more, saved as {path}")
            return
        shown = await images.fitting(self._session, picture, path.removeprefix("/app/"))
        where = f"saved as {path}" if path else "not saved"
        if shown is None:
            self._say(f"[figure] can't be shown here, {where}")
            return
        self._image_bytes -= len(shown.data)
        if self._image_bytes < 0:
            self._say(f"[figure] one more, {where}")
            return
        scaled = "" if shown is picture else f", shown at {images.EDGE} pixels at most"
        self._say(f"[figure] {where}{scaled}")
        self._blocks.append(images.image_block(shown))

    def _add_files(self) -> None:
        result = self._result
        rows = {
            "created": result.files_created,
            "changed": tuple(set(result.files_modified) - set(result.files_created)),
            "deleted": result.files_deleted,
        }
        words = [f"{verb} {_paths(sorted(paths))}" for verb, paths in rows.items() if paths]
        if words:
            self._say(f"[files in /app] {'; '.join(words)}")
        new = [*dict.fromkeys([*self._saved, *result.files_created, *result.files_modified])]
        there = [path for path in new if path not in result.files_deleted]
        self._blocks += [link(self._session, path) for path in there[:_LINKS_MOST]]

    def _end(self) -> str:
        cell = f"cell {self._number}" if self._number else "cell"
        silence = "" if self._blocks else "no output; "
        return f"[{silence}{cell} of {self._session.name}, {self._result.duration:.2f} s]"


def _shown(outputs: Iterable[Output]) -> list[Output]:
    """Returns the outputs visible at the end: updated displays once, without cleared ones."""
    left: list[tuple[int, Output]] = []
    updates: dict[str, tuple[int, Output]] = {}  # the last one of each display
    for number, output in enumerate(outputs):
        if output.kind == "clear":
            left.clear()
        elif output.kind == "update":
            updates[_identity(output)] = (number, output)
        elif output.kind != "error":
            left.append((number, output))
    updates.pop("", None)
    found = [(each, updates.get(_identity(each[1]), each)) for each in left]
    return [max(versions, key=itemgetter(0))[1] for versions in found]


def _says_something(value: object) -> bool:
    """Returns whether a text is more than a name such as `<Figure size 640x480>`."""
    if not isinstance(value, str) or len(value) > _NO_TEXT_CHARACTERS:
        return True
    return not _NO_TEXT.fullmatch(value.strip())


def _joined(values: Iterable[object]) -> str:
    return "\n".join(value if isinstance(value, str) else _json(value) for value in values)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _identity(output: Output) -> str:
    """Returns the name of a display; empty if it has none."""
    identity = output.transient.get("display_id")
    return identity if isinstance(identity, str) else ""


def _pages(reply: Mapping[str, Any]) -> list[str]:
    """Returns the texts that a cell has shown in a pager, as `print?` does."""
    found = reply.get("payload")
    pages = [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
    shown = [each.get("data") for each in pages if each.get("source") == "page"]
    texts = [each.get("text/plain") for each in shown if isinstance(each, Mapping)]
    return [each for each in texts if isinstance(each, str)]


def _besides_error(result: SandboxResult) -> str:
    """Returns standard error without the sentence that the reply shows as the cell's error."""
    error = result.error
    if error is None or error.traceback:
        return result.stderr
    return result.stderr.replace(f"{error.ename}: {error.evalue}", "")


def _error(error: CellError) -> str:
    trace = "\n".join(error.traceback) or f"{error.ename}: {error.evalue}"
    text = plain(cut(trace, _TRACE_CHARACTERS, ""))
    text = cut(_RULE.sub("", text).strip(), _ERROR_CHARACTERS, " of the traceback")
    hint = "" if _NOT_BY_PIP in trace else _HELP.get(error.ename)
    return f"[error]\n{text}" + (f"\n[hint] {hint}" if hint else "")


def _paths(paths: Sequence[str]) -> str:
    return cut(", ".join(first_of(paths, _PATHS_MOST)), _PATHS_CHARACTERS, "")
