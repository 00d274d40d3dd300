"""The memory of a guest that is asked about states, while the session's own guest rests."""

from __future__ import annotations

import os
from collections.abc import Sequence

from wasm_kernel.engine.instance import Instance
from wasm_kernel.state import pages
from wasm_kernel.state.commits import GuestPages
from wasm_kernel.state.history import History
from wasm_kernel.state.image import BaseImage
from wasm_kernel.state.index import Commit
from wasm_kernel.state.pages import Tracker
from wasm_kernel.state.parked import differing

_MAP_PAGES = 8  # a question touches few pages


class AskedMemory:
    """The memory of an instance that goes from one commit to the next in its place.

    Two states of a session differ in few pages: those, and the pages that the first question wrote,
    are laid for the second one. The guest's thread owns it; close it after the instance.
    """

    def __init__(self, history: History, image: BaseImage, instance: Instance) -> None:
        """Takes an instance that has the base image's memory."""
        self._history, self._image, self._instance = history, image, instance
        self._line: Sequence[Commit] = ()
        self._tracker: Tracker | None = None

    def go_to(self, commit_id: int) -> None:
        """Lays the pages of a commit; raises as `History.fill`."""
        history, instance = self._history, self._instance
        with history.lock:
            history.check([commit_id])
            line, used = history.tree.lineage(commit_id), instance.memory.size
            instance.grow_to(line[0].size)
            changed = None if self._tracker is None else self._tracker.changed(used)
            only = None if changed is None else differing(self._line, line, changed)
            laid = GuestPages(instance, [(0, used)], only, map_pages=_MAP_PAGES)
            history.lay(laid, filter(laid.needs, line))
        if self._tracker is None:
            self._tracker = pages.best(instance.memory.address, instance.memory.size)
        else:
            self._tracker.cleared(pages.merge([*laid.mapped, *laid.cleared]))
            for start, end in laid.left():  # the image's pages: commits have all pages behind it
                content = os.pread(self._image.keep_open(), end - start, start)
                instance.memory.write(start, content)
        self._line = line

    def close(self) -> None:
        """Ends the tracking of its pages. Safe to call twice."""
        if self._tracker is not None:
            self._tracker.close()
