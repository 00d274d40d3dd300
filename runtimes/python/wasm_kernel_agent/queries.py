"""What a front end asks about code without running it: completion, inspection, history."""

from __future__ import annotations

from typing import Any

from IPython.utils.tokenutil import token_at_cursor

from wasm_kernel_agent.completion import complete

Reply = dict[str, Any]


def inspect(shell: Any, request: Reply) -> Reply:
    """The reply to `inspect`: what is known of the name at the cursor."""
    name = token_at_cursor(request["code"], request["cursor_pos"])
    reply: Reply = {"status": "ok", "found": False, "data": {}, "metadata": {}}
    try:
        bundle = shell.object_inspect_mime(
            name,
            detail_level=request.get("detail_level", 0),
            omit_sections=tuple(request.get("omit_sections", ())),
        )
    except KeyError:
        return reply
    reply["data"] = {mime: text for mime, text in bundle.items() if isinstance(text, str)}
    reply["found"] = True
    return reply


def is_complete(shell: Any, request: Reply) -> Reply:
    """The reply to `is_complete`: whether Enter should run the code or continue it."""
    status, indent = shell.input_transformer_manager.check_complete(request["code"])
    reply: Reply = {"status": status}
    if status == "incomplete":
        reply["indent"] = " " * (indent or 0)
    return reply


def history(shell: Any, request: Reply) -> Reply:
    """The reply to `history`: inputs of this session, by range, tail or pattern."""
    manager = shell.history_manager
    kind = request.get("hist_access_type")
    raw, output = bool(request.get("raw", True)), bool(request.get("output", False))
    found: Any = ()
    if kind == "tail":
        found = manager.get_tail(request.get("n"), raw=raw, output=output, include_latest=True)
    elif kind == "range":
        session, start = request.get("session") or 0, request.get("start") or 0
        lines = manager.get_range(session, start, request.get("stop"), raw=raw, output=output)
        number = manager.session_number  # IPython calls the living session 0 here, but not in tail
        found = [(number, line, text) for _, line, text in lines]
    elif kind == "search":
        manager.writeout_cache()
        found = manager.search(
            request.get("pattern") or "*",
            raw=raw,
            output=output,
            n=request.get("n"),
            unique=bool(request.get("unique")),
        )
    return {"status": "ok", "history": list(found)}


EMPTY: dict[str, Reply] = {
    "complete": {"status": "ok", "matches": [], "cursor_start": 0, "cursor_end": 0, "metadata": {}},
    "inspect": {"status": "ok", "found": False, "data": {}, "metadata": {}},
    "is_complete": {"status": "unknown"},
    "history": {"status": "ok", "history": []},
}
"""The replies where a query was interrupted or failed: there is nothing to show."""

ANSWERS = {
    "complete": complete,
    "inspect": inspect,
    "is_complete": is_complete,
    "history": history,
}
