"""Links to files: IPython's `FileLink`, and the links of `%session_publish`.

A page reaches the files beside the notebook, but none of the session's. So a link leads to a file
that lies there or was published there; for other files a sentence says how to put them there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from IPython.core.error import UsageError
from IPython.lib.display import FileLink

LinkOf = Callable[[str], str | None]
"""Returns the path of a published file relative to the notebook, by its path in the session."""

_WORKSPACE, _NOTEBOOK = "/app/", "/notebook/"
_UNPUBLISHED = (
    "{path} lies in the session, where the page can't open it. If it is data, "
    "`%session_publish {path}` copies it beside the notebook, and gives a link."
)
_ELSEWHERE = "{path} lies in the sandbox, where the page can't open it: copy it to /app first."


def as_link(path: str) -> str:
    """Returns a link to a file beside the notebook, as HTML."""
    return f"<a href='{quote(path)}' target='_blank'>{escape(path)}</a>"


class PublishedFiles(dict[str, str]):
    """The published files: their paths in the session, and those relative to the notebook."""

    def __init__(self, links: Mapping[str, str]) -> None:
        super().__init__(links)

    def __repr__(self) -> str:
        return "\n".join(f"Published: {link}" for link in self.values())

    def _repr_html_(self) -> str:
        return "".join(f"Published: {as_link(link)}<br>" for link in self.values())


def install(link_of: LinkOf) -> None:
    """Makes IPython's `FileLink` link to files that the page can open.

    A link with its own prefix is left as it is.
    """
    kind: Any = FileLink
    original = kind._repr_html_

    def as_html(self: Any) -> str:
        if self.url_prefix or not Path(self.path).exists():
            return str(original(self))
        if Path(self.path).is_dir():  # `FileLinks`, which would link to each file in the session
            return f"<pre>{escape(repr(self))}</pre>"
        link, problem = _found(self.path, link_of)
        shown = as_link(link) if link else escape(problem)
        return f"{self.result_html_prefix}{shown}{self.result_html_suffix}"

    def as_text(self: Any) -> str:
        if not Path(self.path).exists():
            return str(os.path.abspath(self.path))  # noqa: PTH100 - a link stays
        link, problem = _found(self.path, link_of)
        return link or problem

    kind._repr_html_ = as_html
    kind.__repr__ = as_text


def _found(path: str, link_of: LinkOf) -> tuple[str, str]:
    """Returns the path of a file relative to the notebook; or why there is none."""
    place = os.path.abspath(path)  # noqa: PTH100 - a link stays
    for folder in (_WORKSPACE, _NOTEBOOK):
        if not place.startswith(folder):
            continue
        inside = place.removeprefix(folder)
        try:
            link = link_of(inside)
        except UsageError:  # no kernel, so nothing is published
            link = None
        if link is None and folder == _NOTEBOOK and not Path(_WORKSPACE + inside).exists():
            link = inside  # the file is the notebook's own
        return link or "", _UNPUBLISHED.format(path=inside)
    return "", _ELSEWHERE.format(path=path)
