"""Makes Jupyter's messages from a sandbox's outputs and replies, with pure functions.

Everything that a cell sends to the notebook is cleaned here, once. A guest's replies are untrusted
until checked: each function returns all fields of its message, even if the guest left some out or
sent other types.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from wasm_kernel import __version__
from wasm_kernel.errors import WasmKernelError, describe
from wasm_kernel.guests import base
from wasm_kernel.guests.protocol import (
    ClearOutput,
    Display,
    ErrorOutput,
    Output,
    Result,
    Stream,
    UpdateDisplay,
)
from wasm_kernel.outputs import bundle, terminal
from wasm_kernel.outputs.bundle import Mode
from wasm_kernel.outputs.cleaner import Cleaner, ShouldStop
from wasm_kernel.policy import RuntimeType
from wasm_kernel.result import CellError, CommMessage, SandboxResult

Content = dict[str, Any]
Message = tuple[str, Content]

PAYLOADS = 16
REPLY_SECONDS = 1.0
PAYLOAD_CHARACTERS = 4 * 1024 * 1024
_TYPES = "_jupyter_types_experimental"

_KINDS: Mapping[type, str] = {
    Stream: "stream",
    Display: "display_data",
    UpdateDisplay: "update_display_data",
    ClearOutput: "clear_output",
    Result: "execute_result",
    ErrorOutput: "error",
}


def of_output(output: Output) -> Message:
    """The type and content of the IOPub message that shows `output`."""
    content = error_fields(output) if isinstance(output, ErrorOutput) else asdict(output)
    return _KINDS[type(output)], content


def of_comm(message: CommMessage) -> Message:
    """The IOPub message on a comm, as its type and content."""
    content: Content = {"comm_id": message.comm_id, "data": dict(message.data)}
    if message.target_name:
        content |= {"target_name": message.target_name, "target_module": message.target_module}
    return f"comm_{message.kind}", content


def error_fields(error: ErrorOutput | CellError) -> Content:
    """The three fields of an error in Jupyter's messages."""
    return {"ename": error.ename, "evalue": error.evalue, "traceback": list(error.traceback)}


def own_error(ename: str, sentence: str) -> ErrorOutput:
    """An error of the kernel itself, in the form of a Python error."""
    return ErrorOutput(ename, sentence, (f"\x1b[31m{ename}\x1b[39m: {sentence}",))


def of_problem(problem: Exception) -> ErrorOutput:
    """The error that tells the user why the kernel could not run a cell."""
    name = type(problem).__name__
    if isinstance(problem, WasmKernelError):
        return own_error(name, str(problem))
    if isinstance(problem, OSError):
        return own_error(name, f"The sandbox could not be started: {describe(problem)}.")
    return own_error(
        name,
        "The kernel failed in a way that it never should; its log says more. The files in /app are "
        "kept. Restart the kernel, and report this, please.",
    )


def execute_reply(result: SandboxResult, execution_count: int, cleaner: Cleaner) -> Content:
    """The reply to an `execute_request` with this result."""
    asked, should_stop = result.reply, _in_a_moment()
    answers = _object(asked.get("user_expressions"))
    reply: Content = {
        "status": "ok",
        "execution_count": execution_count,
        "user_expressions": {
            name: _expression(each, cleaner, should_stop) for name, each in answers.items()
        },
        "payload": payloads(asked.get("payload"), cleaner, should_stop),
    }
    if not result.success:
        error = result.error or CellError("Error", "The cell failed and did not say how.")
        shown = clean_error(ErrorOutput(error.ename, error.evalue, error.traceback))
        reply |= {"status": "error"} | error_fields(shown)
    return reply


def add_notes(reply: Content, notes: deque[str]) -> None:
    """Moves quiet notes into a cell's reply, as a page of text, which tools do not store as output.

    JupyterLab shows the first page of a successful cell only, so notes may have to wait.
    """
    is_shown = reply["status"] == "ok"
    if not notes or not is_shown or any(each["source"] == "page" for each in reply["payload"]):
        return
    text = "".join(notes.popleft() for _ in range(len(notes)))
    reply["payload"].append({"source": "page", "data": {"text/plain": text.rstrip()}, "start": 0})


def error_reply(error: ErrorOutput, execution_count: int) -> Content:
    """The reply to an `execute_request` that never reached the sandbox."""
    counted = {"status": "error", "execution_count": execution_count}
    return counted | {"user_expressions": {}, "payload": []} | error_fields(error)


def count_of(reply: Mapping[str, Any]) -> int | None:
    """The guest's number for the cell; None if there is no valid one."""
    count = reply.get("execution_count")
    return count if _is_count(count) else None


class _PlainText(Struct, frozen=True, rename={"text": "text/plain"}):
    text: str


class Expression(Struct, frozen=True):
    """The value of an expression in a cell's reply, or its error."""

    status: str
    ename: str = ""
    evalue: str = ""
    data: _PlainText = _PlainText("")

    @classmethod
    def found(cls, reply: Mapping[str, Any], name: str) -> Expression:
        """Returns an expression; raises `KeyError` or `ValueError` if the reply lacks it."""
        return msgspec.convert(reply["user_expressions"], dict[str, Expression])[name]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _in_a_moment() -> ShouldStop:
    """Returns a function that is true once a reply has waited `REPLY_SECONDS` for checks."""
    end = time.monotonic() + REPLY_SECONDS
    return lambda: time.monotonic() > end


def _expression(answer: Any, cleaner: Cleaner, should_stop: ShouldStop) -> Content:
    if isinstance(answer, dict) and answer.get("status") == "ok":
        return {"status": "ok"} | _shown(answer, cleaner, should_stop)
    fields = _object(answer)
    error = ErrorOutput(
        _text(fields, "ename"), _text(fields, "evalue"), _lines(fields, "traceback")
    )
    return {"status": "error"} | error_fields(clean_error(error))


def _shown(answer: Mapping[str, Any], cleaner: Cleaner, should_stop: ShouldStop) -> Content:
    """The cleaned bundle in an answer of the guest."""
    data, metadata = _object(answer.get("data")), _object(answer.get("metadata"))
    shown = cleaner.bundle(data, metadata, should_stop)
    return {"data": shown.data, "metadata": shown.metadata}


def payloads(value: Any, cleaner: Cleaner, should_stop: ShouldStop) -> list[Content]:
    """The last `PAYLOADS` payloads, if a front end acts on them, cut to size."""
    last = value[-PAYLOADS:] if isinstance(value, list) else []
    found = [_payload(item, cleaner, should_stop) for item in last]
    return [payload for payload in found if payload]


def _payload(item: Any, cleaner: Cleaner, should_stop: ShouldStop) -> Content:
    fields = _object(item)
    match fields.get("source"):
        case "page":
            data = cleaner.bundle(_object(fields.get("data")), {}, should_stop).data
            start = fields.get("start")
            shown = {mime: _cut(text) for mime, text in data.items() if isinstance(text, str)}
            return {"source": "page", "data": shown, "start": start if _is_count(start) else 0}
        case "set_next_input":
            text = _cut(terminal.clean(_text(fields, "text")))
            replace = fields.get("replace") is True
            return {"source": "set_next_input", "text": text, "replace": replace}
        case "ask_exit":
            return {"source": "ask_exit", "keepkernel": fields.get("keepkernel") is True}
    return {}


def _cut(text: str) -> str:
    if len(text) <= PAYLOAD_CHARACTERS:
        return text
    return text[:PAYLOAD_CHARACTERS] + "\n[cut: it is longer than a cell may send]"


def complete_reply(reply: Mapping[str, Any], cursor_pos: int) -> Content:
    """The reply to a `complete_request`; an empty `reply` makes an empty one."""
    matches = [terminal.clean(match) for match in _lines(reply, "matches")]
    start, end = reply.get("cursor_start"), reply.get("cursor_end")
    return {
        "status": "ok",
        "matches": matches,
        "cursor_start": start if _is_count(start) else cursor_pos,
        "cursor_end": end if _is_count(end) else cursor_pos,
        "metadata": _typed(_object(reply.get("metadata"))),
    }


def _typed(metadata: Content) -> Content:
    """The types of the completions, in IPython's form, without other metadata."""
    found = metadata.get(_TYPES)
    listed = [_object(item) for item in found] if isinstance(found, list) else []
    types = [
        {name: terminal.clean(_text(item, name)) for name in ("text", "type", "signature")}
        | {name: item[name] for name in ("start", "end") if _is_count(item.get(name))}
        for item in listed
    ]
    return {_TYPES: types} if listed else {}


def inspect_reply(reply: Mapping[str, Any], cleaner: Cleaner) -> Content:
    """The reply to an `inspect_request`; an empty `reply` makes one that found nothing."""
    shown = _shown(reply, cleaner, _in_a_moment())
    found = reply.get("found") is True and bool(shown["data"])
    return {"status": "ok", "found": found} | shown


def is_complete_reply(reply: Mapping[str, Any]) -> Content:
    """The reply to an `is_complete_request`; an empty `reply` makes it `unknown`."""
    status = reply.get("status")
    if status == "incomplete":
        return {"status": "incomplete", "indent": _text(reply, "indent")}
    return {"status": status if status in ("complete", "invalid") else "unknown"}


def history_reply(reply: Mapping[str, Any]) -> Content:
    """The reply to a `history_request`; an empty `reply` makes an empty one."""
    history = reply.get("history")
    return {"status": "ok", "history": _cleaned(history) if isinstance(history, list) else []}


def _cleaned(value: Any) -> Any:
    """The value of JSON, with terminal control but colours removed from its texts."""
    if isinstance(value, str):
        return terminal.clean(value)
    if isinstance(value, dict):
        return {terminal.clean(key): _cleaned(item) for key, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list) else value


def _object(value: Any) -> Content:
    return value if isinstance(value, dict) else {}


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def _lines(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = fields.get(name)
    return tuple(v for v in value if isinstance(v, str)) if isinstance(value, list) else ()


# -- cleaned outputs

_WHY = {
    Mode.SAFE: (
        " An output can't run code, load anything or reach out of its place in the page. "
        "c.WasmKernel.outputs = 'trusted' shows outputs as they are, with all that they do."
    ),
    Mode.STATIC: (
        " Only text and raster images are shown here (outputs = 'static'). "
        "c.WasmKernel.outputs = 'safe' shows more."
    ),
}


def clean_error(error: ErrorOutput) -> ErrorOutput:
    """The error, with terminal control but colours removed from name, text and traceback."""
    clean = terminal.clean
    return ErrorOutput(clean(error.ename), clean(error.evalue), tuple(map(clean, error.traceback)))


def clean_output(
    output: Output, cleaner: Cleaner, should_stop: ShouldStop
) -> tuple[Output, tuple[str, ...]]:
    """Returns the cleaned output, and phrases for the removed parts.

    Streams pass: they come in pieces, which `terminal.StreamCleaner` cleans. Parts that are not
    checked when `should_stop` is true are left out.
    """
    if isinstance(output, ErrorOutput):
        return clean_error(output), ()
    if not isinstance(output, Display | Result):
        return output, ()
    shown = cleaner.bundle(output.data, output.metadata, should_stop)
    clean = replace(output, data=shown.data, metadata=shown.metadata)
    if isinstance(clean, Display) and cleaner.mode is not Mode.TRUSTED:
        clean = replace(clean, transient=bundle.transient(clean.transient))
    return clean, shown.removed


def removal_notice(removed: Iterable[str], mode: Mode, *, first: bool = True) -> str:
    """The line that names the parts left out of an output; the first in a cell also says why."""
    listed = ", ".join(terminal.clean(phrase) for phrase in removed)
    why = _WHY.get(mode, "") if first else ""
    return f"[wasm-kernel] Left out of this output: {listed}.{why}\n"


# -- the kernel itself

PROTOCOL = "5.3"  # the version of Jupyter's messages, as in ipykernel's base class

_LINKS = (("wasm-kernel", "https://pypi.org/project/wasm-kernel/"),)


def kernel_info(runtime: RuntimeType) -> dict[str, Any]:
    """The content of `kernel_info_reply`, without its status; needs no running guest."""
    language = base.info_of(runtime)
    return {
        "protocol_version": PROTOCOL,
        "implementation": "wasm-kernel",
        "implementation_version": __version__,
        "banner": f"{language.title} in a WebAssembly sandbox (wasm-kernel {__version__})",
        "help_links": [{"text": text, "url": url} for text, url in (*_LINKS, *language.help_links)],
        "supported_features": [],
        "debugger": False,
        "language_info": dict(language.language_info),
    }
