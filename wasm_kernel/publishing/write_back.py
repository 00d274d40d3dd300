"""`folder=write`: files that cells write in the notebook's folder land there after the cell.

The kernel's process may not write there, so the broker does, as for `%session_publish`. The broker
gets the paths that changed, and looks itself at the session's files there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from wasm_kernel import events
from wasm_kernel.errors import WasmKernelError, describe
from wasm_kernel.folders.hiding import MetadataAndPlacesHidden
from wasm_kernel.folders.notebook import open_here, shown
from wasm_kernel.guests.base import ActionContext, CommandContext, CommandLine, Json
from wasm_kernel.linux.broker import Handlers
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.task import Cancelled, Task
from wasm_kernel.publishing.names import PublishableNames, PublishError, is_public
from wasm_kernel.publishing.publish import AT_ONCE, PublishPlace, batches, some_of, workspace_of
from wasm_kernel.wasi_files.preopens import covered_by

if TYPE_CHECKING:
    from wasm_kernel.publishing.written_folder import WrittenFolder
    from wasm_kernel.sessions.session import Session

_WAITING_MOST = 20_000  # remembered paths; about as many as a session can hold
_STAYS = "[wasm-kernel] In the session, but not beside the notebook:"
_FAILED = (
    "[wasm-kernel] What changed in the notebook's folder is in the session, but not beside the "
    "notebook: {why} It is tried again after the next cell.\n"
)
_UNLIKE = (-1,)
"""The status that no file has: it is looked at before the next cell."""
_INTERRUPTED = "it was interrupted."


class WriteFiles(Struct, frozen=True):
    """A request to make paths of the notebook's folder the same as in the session's workspace."""

    paths: tuple[str, ...]


class WrittenFiles(Struct, frozen=True):
    """The outcome of `WriteFiles` and `AdoptFiles`.

    Attributes:
        known: The paths that the session has written or deleted beside the notebook.
        refused: The paths that stay unchanged, each with the reason.
        written: The paths at which the session's files lie now.
    """

    known: tuple[str, ...]
    refused: dict[str, str]
    written: tuple[str, ...] = ()


class AdoptFiles(Struct, frozen=True):
    """A request to copy the user's changes to the session; `paths` None for all that it wrote."""

    paths: tuple[str, ...] | None


class WritePlace(Struct, frozen=True):
    """The place that a session writes to, from the user's settings alone.

    The connection file `secret` is never touched. Originals of up to `most_kept` bytes are kept.
    """

    place: PublishPlace
    secret: Path
    most_kept: int

    @contextmanager
    def opened(self, task: Task) -> Iterator[WrittenFolder]:
        """The notebook's folder, open for the session to write to."""
        from wasm_kernel.publishing.written_folder import WrittenFolder

        place = self.place
        with ExitStack() as held:
            here = held.enter_context(open_here())
            hidden = shown(here, place.root.privates, self.secret, place.kept).hidden
            workspace = held.enter_context(workspace_of(place))
            own, _ = held.enter_context(place.root.private_of(place.session_id)())
            yield held.enter_context(
                WrittenFolder(
                    here,
                    hidden,
                    workspace=workspace,
                    unseen=MetadataAndPlacesHidden(workspace),
                    private=own,
                    names=place.names,
                    most_own=place.limits.bytes,
                    most_kept=self.most_kept,
                    task=task,
                )
            )

    def handlers(self) -> Handlers:
        """Returns the handlers of `WriteFiles` and `AdoptFiles`.

        Callers can have this session's files copied to the notebook's folder, and files there with
        suffixes of data replaced or deleted (originals are kept), or copied to the session. Nothing
        else.
        """
        return {WriteFiles: self.write, AdoptFiles: self.adopt}

    def write(self, request: WriteFiles, task: Task) -> WrittenFiles:
        """Makes paths the same as in the session; after `Cancelled`, finished paths stay so."""
        if len(request.paths) > AT_ONCE:
            raise PublishError("so many files can't be written at once.")
        with self.opened(task) as folder:
            paths = folder.with_those_below(request.paths)
            written = list[str]()

            def bring(path: str) -> None:
                if folder.bring(path):
                    written.append(path)

            refused = _for_each(paths, bring, task)
            return WrittenFiles(tuple(folder.known(paths)), refused, tuple(written))

    def adopt(self, request: AdoptFiles, task: Task) -> WrittenFiles:
        """Copies the user's changes to the session; after `Cancelled`, finished paths stay so."""
        if request.paths is not None and len(request.paths) > AT_ONCE:
            raise PublishError("so many files can't be read at once.")
        with self.opened(task) as folder:
            paths = folder.paths if request.paths is None else sorted({*request.paths})
            refused = _for_each(paths, folder.pull_user_changes, task)
            return WrittenFiles(tuple(folder.known(paths)), refused)


def _for_each(paths: Collection[str], act: Callable[[str], object], task: Task) -> dict[str, str]:
    """Calls `act` for each path; returns the paths that it failed for, each with the reason."""
    refused = dict[str, str]()
    for path in paths:
        if task.cancelled:
            raise Cancelled
        try:
            act(path)
        except PublishError as problem:
            refused[path] = str(problem)
        except OSError as problem:
            refused[path] = f"it can't be written there ({describe(problem)})."
    return refused


class WriteBack:
    """Writes the changes of turns to the notebook's folder. The guest's thread uses it.

    `note` takes notices about names that never land there.
    """

    def __init__(
        self,
        session: Session,
        folder: Folder,
        names: PublishableNames,
        note: Callable[[str], None],
    ) -> None:
        self._session = session
        self._note = note
        self._folder = folder
        self._names = names
        self._looked = False
        self._there: dict[str, tuple[int, ...] | None] = {}
        self._waiting: set[str] = set()
        self._told: set[str] = set()

    def cell_begins(self, context: ActionContext) -> None:
        """Shows the cell the user's changes to files that the session wrote or deleted."""
        broker = context.broker
        try:
            if not self._looked:  # at changes from before this kernel
                self._remember((), broker.call(AdoptFiles(None), WrittenFiles, context))
                self._looked = True
            changed = [path for path, was in self._there.items() if self._status(path) != was]
            for some in batches(sorted(changed)):
                self._remember(some, broker.call(AdoptFiles(some), WrittenFiles, context))
        except (WasmKernelError, Cancelled):
            return  # the next cell tries again

    def files_changed(self, paths: Collection[str], context: ActionContext) -> None:
        """Writes a turn's changes; tells the cell's author about files that stay in the session."""
        self._waiting |= {covered_by(path) or path for path in paths}
        waiting = sorted(path for path in self._waiting if is_public(path))
        if not waiting:
            return
        refused = dict[str, str]()
        try:
            for some in batches(waiting):
                done = context.broker.call(WriteFiles(some), WrittenFiles, context)
                self._remember(some, done)
                self._there.update(dict.fromkeys(done.refused.keys() & done.known, _UNLIKE))
                refused |= done.refused
        except (WasmKernelError, Cancelled) as problem:
            context.say(_FAILED.format(why=str(problem) or _INTERRUPTED), "stderr")
            self._waiting = set(waiting[:_WAITING_MOST])
            return
        self._waiting.clear()
        self._tell(refused, context)

    def _remember(self, asked: Collection[str], done: WrittenFiles) -> None:
        """Notes the status of files beside the notebook, to see later if the user changed them."""
        for path in asked:
            self._there.pop(path, None)
        for path in done.known:
            self._there[path] = self._status(path)
        for path in done.written:
            self._session.logger.log_event(
                events.FILE_PUBLISHED, session_id=self._session.id, path=path
            )

    def _status(self, path: str) -> tuple[int, ...] | None:
        """Returns the fields that change with a file beside the notebook; None if there is none."""
        from wasm_kernel.publishing.folder_beside import status_of

        there = status_of(self._folder, path)
        return there and (there.st_dev, there.st_ino, there.st_size, there.st_mtime_ns)

    def _tell(self, refused: dict[str, str], context: ActionContext) -> None:
        if len(self._told) > _WAITING_MOST:
            self._told.clear()
        new = {(path, why) for path, why in refused.items() if path not in self._told}
        self._told |= {
            path for path, _ in new if self._names.refusal_beside(path)
        }  # once is enough
        by_reason = defaultdict[str, list[str]](list)
        for path, why in sorted(new):
            by_reason[why].append(path)
        named = {why for path, why in new if self._names.refusal_beside(path)}
        for why in by_reason.keys() - named:
            context.say(f"{_STAYS} {some_of(by_reason[why])}: {why}\n", "stderr")
        if named:  # nothing went wrong: files of such names never land there
            listed = [f"{some_of(by_reason[why])}: {why}" for why in sorted(named)]
            self._note(f"{_STAYS} {' '.join(listed)}\n")

    def link(self, line: CommandLine, context: CommandContext) -> Json:
        """Returns the path of a file relative to the notebook; None if it is never written there.

        A file that the running cell has written lies there when the cell is over.
        """
        return None if self._names.refusal_beside(line.line) else line.line
