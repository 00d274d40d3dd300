"""A MIME bundle, as a cell made it, and as it may be shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from typing import Any

from wasm_kernel.outputs import markdown, patience, terminal
from wasm_kernel.outputs.kinds import KINDS, STATIC
from wasm_kernel.outputs.removals import Refused, Removals
from wasm_kernel.record import record

TYPES_MOST = 32
TYPE_CHARACTERS = 100
DISPLAY_ID_CHARACTERS = 200
_NOTHING_LEFT = "[not shown]"
_PIXELS_MOST = 32_767
_MENU = {"export": True, "source": False, "compiled": False, "editor": False}


class Mode(str, Enum):
    """How much of an output is shown."""

    SAFE = "safe"
    STATIC = "static"
    TRUSTED = "trusted"


@record
class Shown:
    """What may be shown of an output; `removed` names what was taken out, as phrases."""

    data: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    removed: tuple[str, ...] = ()


def never() -> bool:
    """Somebody waits for an output until it is checked, however long that takes."""
    return False


def shown(
    data: Mapping[str, Any],
    metadata: Mapping[str, Any],
    mode: Mode,
    over: Callable[[], bool] = never,
) -> Shown:
    """A bundle as it may be shown.

    Args:
        data: Contents by MIME type.
        metadata: What front ends are told of them, by MIME type.
        mode: `safe` cleans, `static` keeps text and raster images, `trusted` keeps everything but
            terminal control.
        over: Whether nobody waits any more; what is not checked by then is left out.
    """
    if mode is Mode.TRUSTED:
        return Shown({mime: _trusted(mime, data[mime]) for mime in data}, dict(metadata))
    removals = Removals()
    kept: dict[str, Any] = {}
    for mime, content in list(data.items())[:TYPES_MOST]:
        kind = mime.lower().partition(";")[0].strip()
        if mode is Mode.STATIC and kind not in STATIC:
            removals.add(f"everything but text and raster images ({kind[:TYPE_CHARACTERS]})")
            continue
        with patience.until(over):
            _keep(kept, kind, content, removals)
    if data and not kept:
        kept["text/plain"] = _NOTHING_LEFT
    return Shown(kept, metadata_of(metadata, kept, mode), removals.phrases)


def _trusted(mime: str, content: Any) -> Any:
    if mime == "text/plain" and isinstance(content, str):
        return terminal.clean(content)
    return content


def _keep(kept: dict[str, Any], mime: str, content: Any, removals: Removals) -> None:
    kind = KINDS.get(mime)
    if kind is None:
        removals.add(f"a type of output that is not known here ({_named(mime)})")
        return
    try:
        if mime == "text/markdown" and isinstance(content, str) and not markdown.is_plain(content):
            kept.setdefault("text/html", markdown.as_html(content, removals))
        else:
            kept[mime] = kind.clean(content, removals)
    except Refused as refused:
        removals.add(str(refused))
    except (MemoryError, KeyboardInterrupt):
        raise
    except BaseException:  # nh3's panics are no Exceptions; what can't be checked is not shown
        removals.add(f"a content that could not be checked ({_named(mime)})")


def _named(mime: str) -> str:
    return "".join(c for c in mime[:TYPE_CHARACTERS] if c.isalnum() or c in "/.+-")


def metadata_of(metadata: Mapping[str, Any], kept: Mapping[str, Any], mode: Mode) -> dict[str, Any]:
    """What front ends may be told of the contents in `kept`: sizes, and how a tree begins.

    `isolated` goes: it has the front end parse the content a second time, as a document of its own,
    and what it is for is done by the output's own box.
    """
    if mode is Mode.TRUSTED:
        return dict(metadata)
    found: dict[str, Any] = {}
    for mime in kept:
        fields = metadata.get(mime)
        own = _known(fields) if isinstance(fields, Mapping) else {}
        if mime.startswith("application/vnd.vegalite."):
            own["embed_options"] = {"actions": _MENU}
        if own:
            found[mime] = own
    return found | _known(metadata)


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for name in ("width", "height"):
        value: Any = fields.get(name)
        if type(value) in (int, float) and 0 < value <= _PIXELS_MOST:
            known[name] = value
    for name in ("expanded", "unconfined"):
        if isinstance(fields.get(name), bool):
            known[name] = fields[name]
    if fields.get("needs_background") in ("light", "dark"):
        known["needs_background"] = fields["needs_background"]
    return known


def transient(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The transient fields of a display that front ends act on: `display_id`."""
    display_id = fields.get("display_id")
    if isinstance(display_id, str) and len(display_id) <= DISPLAY_ID_CHARACTERS:
        return {"display_id": display_id}
    return {}
