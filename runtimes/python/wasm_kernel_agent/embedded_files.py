"""Pictures, sounds and films that HTML and Markdown name by a file: they go into the output itself.

A page reaches none of the session's files. So an output that names one, such as
`HTML("<img src='chart.png'>")`, `Markdown("![](chart.png)")` or `Video("film.mp4")`, would show
nothing.
"""

from __future__ import annotations

import base64
import mimetypes
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

_MOST = 7 * 1024 * 1024
"""The most bytes of the files in one part of an output."""
_TAG = (
    r"(?P<tag><(?:img|audio|video|source)\s(?:[^<>]*?\s)?src\s*=\s*)"
    r"(?:\"(?P<double>[^\"<>]+)\"|'(?P<single>[^'<>]+)')"
)
_PICTURE = r"(?P<mark>!\[[^\[\]]*\]\()\s*(?P<picture>[^()\s<>]+)(?=\s*\)|\s+[\"'])"
_CODE = r"```.*?(?:```|\Z)|`[^`]+`"
_NAMED = {
    "text/html": re.compile(_TAG, re.IGNORECASE),
    "text/markdown": re.compile(f"{_CODE}|{_TAG}|{_PICTURE}", re.IGNORECASE | re.DOTALL),
}
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:|//|#")


def embedded(data: Any) -> Any:
    """Returns a MIME bundle whose HTML and Markdown hold the files that they name."""
    if not isinstance(data, Mapping):
        return data
    texts = {kind: data.get(kind) for kind in _NAMED}
    return {
        **data,
        **{k: _NAMED[k].sub(_Files().put, text) for k, text in texts.items() if type(text) is str},
    }


class _Files:
    """The files that go into one text; those that do not fit stay names."""

    def __init__(self) -> None:
        self._left = _MOST

    def put(self, found: re.Match[str]) -> str:
        """Returns the part of a text that names a file, with the file's content."""
        named = {name: text for name, text in found.groupdict().items() if text}
        for kind in ("picture", "double", "single"):
            if kind in named and (address := self._address(named[kind])):
                tag = named.get("tag")
                return f'{tag}"{address}"' if tag else f"{named['mark']}{address}"
        return found[0]

    def _address(self, name: str) -> str | None:
        kind = (mimetypes.guess_type(name)[0] or "").replace("vnd.wave", "wav")
        if _ADDRESS.match(name) or not kind.startswith(("image/", "audio/", "video/")):
            return None
        for path in (name, unquote(name)):
            try:
                if os.path.getsize(path) <= self._left:  # noqa: PTH202 - a cell may have changed Path
                    with open(path, "rb") as file:  # noqa: PTH123 - as above
                        content = file.read(self._left)
                    self._left -= len(content)
                    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
            except (OSError, ValueError):
                continue
        return None
