"""The places beside a notebook that files of its session may go to, and the broker's writing there.

The guest's process may not write there, so the broker does. The broker gets only paths, decides on
them itself, opens both sides by descriptor without following a link, and takes the folders and the
limits from the user's settings, never from a request.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from wasm_kernel.errors import describe
from wasm_kernel.folders.hiding import MetadataAndPlacesHidden, PlacesHidden
from wasm_kernel.folders.notebook import NotShown, check_target, open_here, shown
from wasm_kernel.folders.notebook_file import NotebookFile
from wasm_kernel.folders.places import state_subfolder
from wasm_kernel.folders.private import signing_key
from wasm_kernel.linux.folders import Folder, closing_fd
from wasm_kernel.linux.task import Cancelled, Task
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.publishing.names import (
    PublishableNames,
    PublishError,
    is_folder_name,
)
from wasm_kernel.publishing.tree import FileTree
from wasm_kernel.sessions.notebooks import notebooks_of
from wasm_kernel.sessions.root import SessionsRoot

if TYPE_CHECKING:
    from wasm_kernel.publishing.mirror import Mirror

AT_ONCE = 1_000
"""The most paths in one request."""
NO_FOLDER = (
    "It is not known which notebook this kernel belongs to, so there is no folder to publish into. "
    "Nothing was published. Name one in jupyter_wasm_kernel_config.py, such as "
    '`c.WasmKernel.publish_folder = "results"`: it is made in the folder that the kernel is '
    "started in."
)
TOO_MANY = f"At most {AT_ONCE:,} files can be published at once. Nothing was published."
MISSING = "the session has no such file. (Files beside the notebook need not be published.)"
_NO_FILE = "it is a link, a folder or something else that is not a regular file."
_A_LINK = "is a link, or something else that is not a folder"
_PUBLISHED, _WRITTEN = "published", "written"
"""The folders with records: in the state folder, and in a session's private folder."""


class PublishFiles(Struct, frozen=True):
    """A request to copy files of the session, named by their paths, into the folder for results."""

    paths: tuple[str, ...]


class WriteFiles(Struct, frozen=True):
    """A request to make paths of the notebook's folder the same as in the session's workspace."""

    paths: tuple[str, ...]


class AdoptFiles(Struct, frozen=True):
    """A request to copy the user's changes to the session; `paths` None for all that it wrote."""

    paths: tuple[str, ...] | None


class WriteOutcome(Struct, frozen=True):
    """The outcome of a request.

    Attributes:
        links: The paths at which files of the session lie now, relative to the notebook, by their
            paths in the session.
        refused: The paths that stay unchanged, each with the reason.
        known: The paths that the session has written or deleted in the notebook's folder.
    """

    links: dict[str, str]
    refused: dict[str, str]
    known: tuple[str, ...] = ()


class PlaceBeside(Struct, frozen=True):
    """The place beside the notebook that files of a session go to, from the user's settings alone.

    Its methods `publish`, `write` and `adopt` handle requests. Callers can have this session's
    files copied into one folder for results; and with `write` and `adopt` to the notebook's folder,
    where files with suffixes of data are replaced or deleted (originals are kept), or copied to the
    session. Nothing else. After `Cancelled`, finished files stay so.

    Attributes:
        folder: The names that lead from the notebook's folder to the folder for results, as known
            when the process started; empty if unknown.
        kept: Folders of the front end that nothing is put into.
        follows: The notebook that the folder is named after, also after the notebook was renamed;
            None if the settings name the folder, or there is no such notebook.
        secret: The connection file, which is never touched.
        policy: Its limits hold for the written files, and for kept originals.
        start: The notebook's folder; by default this process's working folder.
    """

    root: SessionsRoot
    session_id: str
    folder: tuple[str, ...]
    names: PublishableNames
    policy: ExecutionPolicy
    secret: Path
    kept: tuple[Path, ...] = ()
    follows: NotebookFile | None = None
    start: Path = Path()

    @property
    def into(self) -> tuple[str, ...]:
        """The names that lead to the folder for results now; none if it is not known."""
        if self.follows is None:
            return self.folder
        notebook = self.follows.moved()
        name = f"{notebook.stem}.files"
        with suppress(OSError):  # the folder is gone
            if notebook.parent == Path.cwd() and is_folder_name(name):
                return (name,)
        return self.folder

    def publish(self, request: PublishFiles, task: Task) -> WriteOutcome:
        """Copies files into the folder for results; `WasmKernelError` if none can be copied."""
        from wasm_kernel.publishing.writer import FolderWriter

        names = self.into
        if not names or len(request.paths) > AT_ONCE:
            raise PublishError(TOO_MANY if names else NO_FOLDER)
        with ExitStack() as held:
            workspace = held.enter_context(self._workspace(task))
            into = held.enter_context(self._target(names))
            place = state_subfolder(_PUBLISHED, make=True)
            if place is None:
                raise PublishError(
                    "This user has no folder for state that other users can't change, so a later "
                    "session could not tell which files were published. Nothing was published."
                )
            writer = FolderWriter(
                FileTree(into, PlacesHidden(into), task),
                held.enter_context(place),
                self.session_id,
                is_anothers=self._is_anothers,
                limits=self.policy,
            )
            held.enter_context(writer)

            def put(path: str) -> bool:
                if why := self.names.refusal(path):
                    raise PublishError(why)
                with closing_fd(_source(workspace, path)) as source:
                    writer.put(path, source)
                return True

            return _for_each(request.paths, put, task, names)

    def write(self, request: WriteFiles, task: Task) -> WriteOutcome:
        """Makes paths the same as in the session."""
        if len(request.paths) > AT_ONCE:
            raise PublishError(TOO_MANY)
        with self._mirror(task) as mirror:
            paths = mirror.with_those_below(request.paths)
            done = _for_each(paths, mirror.bring, task)
            return WriteOutcome(done.links, done.refused, mirror.known(paths))

    def adopt(self, request: AdoptFiles, task: Task) -> WriteOutcome:
        """Copies the user's changes to the session."""
        if request.paths is not None and len(request.paths) > AT_ONCE:
            raise PublishError(TOO_MANY)
        with self._mirror(task) as mirror:
            paths = mirror.paths if request.paths is None else sorted({*request.paths})
            done = _for_each(paths, mirror.adopt, task)
            return WriteOutcome({}, done.refused, mirror.known(paths))

    def _is_anothers(self, session_id: str) -> bool:
        """Returns whether a session belongs to another notebook, which still exists."""
        own, known = self.follows, notebooks_of(self.root).get(session_id, ())
        return any(each.is_there and (own is None or not each.is_of(own)) for each in known)

    @contextmanager
    def _workspace(self, task: Task) -> Iterator[FileTree]:
        name = self.root.target_of(self.session_id)
        with Folder.open(self.root.path) as top, top.enter(name) as workspace:
            yield FileTree(workspace, MetadataAndPlacesHidden(workspace), task)

    @contextmanager
    def _mirror(self, task: Task) -> Iterator[Mirror]:
        """The notebook's folder, open for the session to write to."""
        from wasm_kernel.publishing.mirror import Mirror
        from wasm_kernel.publishing.writer import FolderWriter

        with ExitStack() as held:
            here = held.enter_context(open_here(self.start))
            hidden = shown(here, self.root.privates, self.secret, self.kept).hidden
            workspace = held.enter_context(self._workspace(task))
            private, path = held.enter_context(self.root.private_of(self.session_id)())
            place = held.enter_context(private.enter(_WRITTEN, make=True))
            tree, most = FileTree(here, hidden, task), self.policy.files_history_bytes
            writer = FolderWriter(tree, place, self.session_id, most_kept=most, key=_key_of(path))
            held.enter_context(writer)
            yield Mirror(writer, workspace, self.names, self.policy.workspace_bytes)

    def _target(self, names: tuple[str, ...]) -> Folder:
        """Opens the folder for results, or makes it; `PublishError` if it can't."""
        path = "/".join((*names, ""))
        try:
            with (
                open_here(self.start) as here,
                FileTree(here).entered(path, make=True) as (last, _),
            ):
                check_target(last, self.root.privates, self.kept)
                return last.enter()
        except NotShown as problem:
            why = problem.why
        except OSError as problem:
            is_other = problem.errno in (errno.ELOOP, errno.ENOTDIR)
            why = _A_LINK if is_other else f"can't be opened ({describe(problem)})"
        raise PublishError(
            f"The folder {'/'.join(names)} beside the notebook can't be used, as it {why}. Nothing "
            "was published. Move it away, or name another one with WasmKernel.publish_folder."
        )


def _key_of(private: Path) -> bytes:
    """Returns the key that signs records in one private folder, whose name is never used again."""
    return hashlib.blake2b(private.name.encode(), key=signing_key(private.parent)).digest()


def _source(workspace: FileTree, path: str) -> int:
    """Opens a file of the session; `PublishError` if there is no regular file."""
    try:
        return workspace.open_regular(path)
    except FileNotFoundError:
        raise PublishError(MISSING) from None
    except OSError:  # one sentence covers all reasons
        raise PublishError(_NO_FILE) from None


def _for_each(
    paths: Collection[str], act: Callable[[str], object], task: Task, into: tuple[str, ...] = ()
) -> WriteOutcome:
    """Calls `act` for each path; the links are those for which it returns True.

    The names `into` lead from the notebook to the folder that the paths are in.
    """
    links, refused = dict[str, str](), dict[str, str]()
    for path in paths:
        if task.cancelled:
            raise Cancelled
        try:
            if act(path):
                links[path] = "/".join((*into, path))
        except PublishError as problem:
            refused[path] = str(problem)
        except OSError as problem:
            refused[path] = f"it can't be written there ({describe(problem)})."
    return WriteOutcome(links, refused)
