"""`folder=write`: files that cells write in the notebook's folder land there after the cell.

The broker gets the paths that changed, and looks itself at the session's files there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.guests.base import ActionContext, CommandContext, CommandLine, Json
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.task import Cancelled
from wasm_kernel.publishing.names import PublishableNames, is_public, is_too_long
from wasm_kernel.publishing.place import AdoptFiles, WriteFiles, WriteOutcome
from wasm_kernel.publishing.publish import outcomes, some_of
from wasm_kernel.publishing.tree import FileTree, content_of
from wasm_kernel.sessions.last_use import LastUse
from wasm_kernel.wasi_files.preopens import covered_by

_WAITING_MOST = 20_000  # remembered paths; about as many as a session can hold
_STAYS = "[wasm-kernel] In the session, but not beside the notebook:"
_FAILED = (
    "[wasm-kernel] Changes in the notebook's folder are in the session, but not beside the "
    "notebook: {why} After the next cell, the kernel tries again.\n"
)
_UNLIKE = (-1,)
"""The status of no file: a file noted with this status is looked at before the next cell."""


class WriteBack:
    """Writes the changes of turns to the notebook's folder. The guest's thread uses it.

    `note` takes notices about names that never land there.
    """

    def __init__(
        self, session: LastUse, folder: Folder, names: PublishableNames, note: Callable[[str], None]
    ) -> None:
        self._session = session
        self._note = note
        self._beside = FileTree(folder)
        self._names = names
        self._looked = False
        self._there: dict[str, tuple[int, ...] | None] = {}
        self._waiting: set[str] = set()
        self._told: set[str] = set()

    def cell_begins(self, context: ActionContext) -> None:
        """Shows the cell the user's changes to files that the session wrote or deleted."""
        broker = context.broker
        try:
            if not self._looked:  # finds changes from before this kernel
                self._remember((), broker.call(AdoptFiles(None), WriteOutcome, context))
                self._looked = True
            changed = [path for path, was in self._there.items() if self._status(path) != was]
            for some, done in outcomes(self._session, AdoptFiles, sorted(changed), broker, context):
                self._remember(some, done)
        except (WasmKernelError, Cancelled):
            return  # the next cell tries again

    def files_changed(self, paths: Collection[str], context: ActionContext) -> None:
        """Writes a turn's changes; tells the cell's author about files that stay in the session."""
        self._waiting |= {covered_by(path) or path for path in paths}
        public = sorted(path for path in self._waiting if is_public(path))
        refused = {path: self._names.refusal_beside(path) for path in public if is_too_long(path)}
        waiting = [path for path in public if path not in refused]
        try:
            for some, done in outcomes(self._session, WriteFiles, waiting, context.broker, context):
                self._remember(some, done)
                self._there.update(dict.fromkeys(done.refused.keys() & done.known, _UNLIKE))
                refused |= done.refused
        except (WasmKernelError, Cancelled) as problem:
            context.say(_FAILED.format(why=str(problem) or "it was interrupted."), "stderr")
            self._waiting = set(waiting[:_WAITING_MOST])
            return
        self._waiting.clear()
        self._tell(refused, context)

    def _remember(self, asked: Collection[str], done: WriteOutcome) -> None:
        """Notes the status of files beside the notebook, to see later if the user changed them."""
        for path in asked:
            self._there.pop(path, None)
        for path in done.known:
            self._there[path] = self._status(path)

    def _status(self, path: str) -> tuple[int, ...] | None:
        """Returns the fields that change with a file beside the notebook; None if there is none."""
        there = self._beside.status(path)
        return there and content_of(there)

    def _tell(self, refused: dict[str, str], context: ActionContext) -> None:
        if len(self._told) > _WAITING_MOST:
            self._told.clear()
        by_reason, never = defaultdict[str, list[str]](list), set[str]()
        for path, why in sorted(refused.items()):
            if path in self._told:
                continue
            by_reason[why].append(path)
            if self._names.refusal_beside(path):  # once is enough
                self._told.add(path)
                never.add(why)
        listed = {why: f"{some_of(paths)}: {why}" for why, paths in sorted(by_reason.items())}
        for why in listed.keys() - never:
            context.say(f"{_STAYS} {listed[why]}\n", "stderr")
        if never:  # nothing went wrong: files of such names never land there
            self._note(f"{_STAYS} {' '.join(listed[why] for why in sorted(never))}\n")

    def link(self, line: CommandLine, context: CommandContext) -> Json:
        """Returns the path of a file relative to the notebook; None if it is never written there.

        A file that the running cell has written lies there when the cell is over.
        """
        return None if self._names.refusal_beside(line.line) else line.line
