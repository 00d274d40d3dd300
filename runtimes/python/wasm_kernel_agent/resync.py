"""After memory was brought elsewhere, comms and what the front end shows must agree again."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

_MODEL = "IPY_MODEL_"
_CAPTURED = "msg_id"  # an Output's; nbclient fails where it is told to let go of nothing


def agree(manager: Any, present: Collection[str]) -> None:
    """Bring the front end to the state that the guest is in.

    Widgets that the front end still has are sent their state; those that it has closed since are
    opened again, each after those that it consists of. Any other comm that it has closed is closed
    here, too.

    Args:
        manager: The comm manager.
        present: The ids of the comms that the front end has.
    """
    there = set(present)
    for one in list(manager.comms.values()):
        widget = _widget_of(one)
        with contextlib.suppress(Exception):  # a widget of the user's own may fail to say its state
            if widget is None:
                if one.comm_id not in there:
                    _close(manager, one)
            elif one.comm_id in there:
                widget.send_state([key for key in widget.keys if key != _CAPTURED])
            else:
                _open(manager, widget, there)


def _widget_of(comm: Any) -> Any:
    owner = getattr(comm._msg_callback, "__self__", None)
    return owner if hasattr(owner, "send_state") and hasattr(owner, "get_state") else None


def _open(manager: Any, widget: Any, there: set[str]) -> None:
    before = widget.comm
    there.add(before.comm_id)
    for part in _models_in(widget.get_state()):
        other = manager.comms.get(part)
        if part not in there and other is not None and _widget_of(other) is not None:
            _open(manager, _widget_of(other), there)
    before._closed = True  # else its end, too, would be told to the front end
    widget.comm = None
    widget.open()


def _models_in(value: Any) -> list[str]:
    """The ids of the widgets that a state refers to."""
    if isinstance(value, str):
        return [value.removeprefix(_MODEL)] if value.startswith(_MODEL) else []
    if isinstance(value, dict):
        return [one for item in value.values() for one in _models_in(item)]
    if isinstance(value, list | tuple):
        return [one for item in value for one in _models_in(item)]
    return []


def _close(manager: Any, comm: Any) -> None:
    manager.comms.pop(comm.comm_id, None)
    comm._closed = True
    comm.handle_close({"content": {"comm_id": comm.comm_id, "data": {}}, "buffers": []})
