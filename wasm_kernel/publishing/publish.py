"""`%session_publish`: results of a session, copied into a folder beside its notebook.

The kernel's process may not write there, so the broker copies. The broker gets only names, decides
on them itself, opens both sides by descriptor without following a link, and takes the folder and
the limits from the user's settings, never from a request.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shlex
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel import events
from wasm_kernel.errors import WasmKernelError, describe
from wasm_kernel.folders.hiding import MetadataAndPlacesHidden, PlacesHidden
from wasm_kernel.folders.notebook import NotShown, check_target, open_here
from wasm_kernel.folders.notebook_file import NotebookFile
from wasm_kernel.guests.base import (
    ActionContext,
    CommandContext,
    CommandLine,
    CommandRefused,
    Json,
)
from wasm_kernel.linux.broker import Broker
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.task import QUIET, Cancelled, Task
from wasm_kernel.publishing.names import (
    PublishableNames,
    PublishError,
    PublishLimits,
    is_folder_name,
    is_too_long,
)
from wasm_kernel.result import DATA_SUFFIXES
from wasm_kernel.sessions.notebooks import Binding, notebooks_of
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.wasi_files.preopens import NOTHING_HIDDEN

if TYPE_CHECKING:
    from wasm_kernel.publishing.published_folder import PublishedFolder
    from wasm_kernel.sessions.session import Session

PUBLISH, PUBLISHED = "session_publish", "_session_published"
"""The command, and the one by which the guest asks for the link to a published file."""

_PATTERNS_MOST = 20  # each one is matched against all files
_PATTERN = re.compile(r"[*?[]")
NAMED_MOST = 10
"""The most files that a sentence names."""
AT_ONCE = 1_000
"""The most paths in one request."""
_GUEST_FOLDERS = ("/notebook/", "/app/", "./")
_MISSING = "the session has no such file. (What lies beside the notebook need not be published.)"
_NO_FILE = "it is a link, a folder or something else that is not a regular file."
_NO_FOLDER = (
    "It is not known which notebook this kernel belongs to, so there is no folder to publish into. "
    "Nothing was published. Name one in jupyter_wasm_kernel_config.py, such as "
    '`c.WasmKernel.publish_folder = "results"`: it is made in the folder that the kernel is '
    "started in."
)
_NOT_COLLECTED = "Nothing is published: files of notebooks that are graded are not kept."
_OFF = "Nothing may be published from this kernel: WasmKernel.publish_suffixes is empty."
_NOT_THERE = (
    "The folder {name} beside the notebook can't be used, as it {why}. Nothing was published. Move "
    "it away, or name another one with WasmKernel.publish_folder."
)
_A_LINK = "is a link, or something else that is not a folder"
_NO_MATCH = "No file of the session with a suffix of data matches {pattern}. Nothing was published."
_USAGE = "Usage: %session_publish FILES... (patterns such as *.csv, too; quote a path with spaces)"
_TOO_MANY = "So many files can't be published at once. Nothing was published."
_TOLD = "results-told"
"""The file in the private folder which records that `UnpublishedNotice` has spoken."""
_IN_SESSION = (
    "[wasm-kernel] {paths} {verb} in this session. {way}; with "
    '`c.WasmKernel.folder = "write"` cells write there themselves.\n'
)
_BY_COMMAND = "`%session_publish {words}` copies files beside the notebook"
_BY_SETTING = '`c.WasmKernel.publish_folder = "results"` copies results into a folder of that name'


class PublishFiles(Struct, frozen=True):
    """A request to publish files of the session, named by their paths in the workspace."""

    paths: tuple[str, ...]


class Published(Struct, frozen=True):
    """The outcome of `PublishFiles`.

    `links` maps published paths to their new paths, relative to the notebook; `refused` maps the
    others to the reason.
    """

    links: dict[str, str]
    refused: dict[str, str]


class PublishPlace(Struct, frozen=True):
    """The place that files of a session are published to, from the user's settings alone.

    Attributes:
        folder: The names that lead from this process's working folder to the folder for the files,
            as known when the process started; empty if unknown.
        kept: Folders of the front end that nothing is put into.
        follows: The notebook that the folder is named after, also after the notebook was renamed;
            None if the settings name the folder, or there is no such notebook.
    """

    root: SessionsRoot
    session_id: str
    folder: tuple[str, ...]
    names: PublishableNames
    limits: PublishLimits
    kept: tuple[Path, ...] = ()
    follows: NotebookFile | None = None

    @property
    def into(self) -> tuple[str, ...]:
        """The names that lead to the folder now; none if it is not known."""
        if self.follows is None:
            return self.folder
        notebook = self.follows.moved()
        name = f"{notebook.stem}.files"
        with suppress(OSError):  # the folder is gone
            if notebook.parent == Path.cwd() and is_folder_name(name):
                return (name,)
        return self.folder

    def is_anothers(self, session_id: str) -> bool:
        """Returns whether a session belongs to another notebook, which still exists."""
        known = notebooks_of(self.root).get(session_id, ())
        return any(each.is_there and not self._is_of(each) for each in known)

    def _is_of(self, binding: Binding) -> bool:
        return self.follows is not None and binding.is_of(self.follows)


def publish_files(place: PublishPlace) -> Callable[[PublishFiles, Task], Published]:
    """Returns the handler of `PublishFiles`.

    Callers can have files of one session copied into one folder, and nothing else.
    """

    def publish(request: PublishFiles, task: Task) -> Published:
        """Copies files; returns the reason for each file that can't be copied.

        Raises `WasmKernelError` if no file can be copied. After `Cancelled`, the copies made so far
        stay.
        """
        from wasm_kernel.publishing.published_folder import PublishedFolder

        names = place.into
        if not names or len(request.paths) > AT_ONCE:
            raise PublishError(_TOO_MANY if names else _NO_FOLDER)
        links, refused = dict[str, str](), dict[str, str]()
        with ExitStack() as held:
            workspace = held.enter_context(workspace_of(place))
            into = held.enter_context(_target(place, names))
            published = held.enter_context(
                PublishedFolder(
                    into,
                    PlacesHidden(into),
                    limits=place.limits,
                    session=place.session_id,
                    is_anothers=place.is_anothers,
                    task=task,
                )
            )
            for path in request.paths:
                if task.cancelled:
                    raise Cancelled
                why = place.names.refusal(path) or _published(workspace, path, published)
                if why:
                    refused[path] = why
                else:
                    links[path] = "/".join((*names, path))
        return Published(links, refused)

    return publish


def _published(workspace: Folder, path: str, into: PublishedFolder) -> str:
    """Publishes a file; returns why it can't be published, or empty text if it was."""
    from wasm_kernel.publishing.folder_beside import entered

    try:
        hidden = MetadataAndPlacesHidden(workspace)
        with entered(workspace.fd, path, hidden) as (folder, name):
            source = folder.open_regular(name)
    except FileNotFoundError:
        return _MISSING
    except OSError:  # one sentence covers all reasons
        return _NO_FILE
    try:
        into.put(path, source)
    except PublishError as problem:
        return str(problem)
    except OSError as problem:
        return f"it can't be written: {describe(problem)}."
    finally:
        os.close(source)
    return ""


def batches(paths: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yields paths in batches of the size of one request to the broker."""
    for at in range(0, len(paths), AT_ONCE):
        yield tuple(paths[at : at + AT_ONCE])


@contextmanager
def workspace_of(place: PublishPlace) -> Iterator[Folder]:
    """The workspace of the session, open."""
    name = place.root.target_of(place.session_id)
    with Folder.open(place.root.path) as top, top.enter(name) as workspace:
        yield workspace


def _target(place: PublishPlace, names: tuple[str, ...]) -> Folder:
    """Opens the folder that files are put into, or makes it; `PublishError` if it can't."""
    from wasm_kernel.publishing.folder_beside import entered

    path = "/".join((*names, ""))
    try:
        with open_here() as here, entered(here.fd, path, NOTHING_HIDDEN, make=True) as (last, _):
            folder = last.enter()
        try:
            check_target(folder, place.root.privates, place.kept)
        except BaseException:
            folder.close()
            raise
        return folder
    except NotShown as problem:
        why = problem.why
    except OSError as problem:
        is_other = problem.errno in (errno.ELOOP, errno.ENOTDIR)
        why = _A_LINK if is_other else f"can't be opened ({describe(problem)})"
    raise PublishError(_NOT_THERE.format(name="/".join(names), why=why)) from None


class PublishCommand:
    """The command `%session_publish FILES...`, and its results. The guest's thread uses it.

    `links` maps published paths to their paths relative to the notebook.
    """

    def __init__(self, session: Session, place: PublishPlace) -> None:
        self._session = session
        self.place = place
        self.links: dict[str, str] = {}

    def run(self, line: CommandLine, context: CommandContext) -> Json:
        """Publishes files; returns their links, and the reasons for refused files."""
        if not self.place.into:
            raise CommandRefused(_NO_FOLDER)
        if self.place.names.none:
            raise CommandRefused(_OFF)
        paths_of = self._paths_of(_words_of(line.line), context)
        reasons = {path: self.place.names.refusal(path) for path in paths_of}
        paths = [path for path, why in reasons.items() if not why]
        done = self._publish(paths, context.broker, context)
        refused = {path: why for path, why in reasons.items() if why} | done.refused
        return {"links": done.links, "refused": refused}

    def link(self, line: CommandLine, context: CommandContext) -> Json:
        """Returns the path of a published file, relative to the notebook; None for others."""
        return self.links.get(line.line)

    def publish_all(self, broker: Broker) -> None:
        """Publishes all data files of the session; logs those that were not published."""
        log = logging.getLogger("wasm_kernel")
        try:
            paths = [p for p in self._files(None) if not self.place.names.refusal(p)]
            done = self._publish(paths, broker, QUIET)
        except (OSError, WasmKernelError) as problem:
            log.warning("no result was published: %s", describe(problem))
            return
        for path, why in done.refused.items():
            log.warning("%s was not published: %s", path, why)

    def _publish(self, paths: Sequence[str], broker: Broker, task: Task) -> Published:
        done = Published({}, {})
        for some in batches(paths):
            answer = broker.call(PublishFiles(some), Published, task)
            done.links.update(answer.links)
            done.refused.update(answer.refused)
        self.links.update(done.links)
        for path in done.links:
            self._session.logger.log_event(
                events.FILE_PUBLISHED, session_id=self._session.id, path=path
            )
        return done

    def _files(self, pattern: str | None) -> list[str]:
        from wasm_kernel.sessions.files import Pattern, files_in

        wanted = None if pattern is None else Pattern(pattern)
        return sorted(files_in(self._session.folders.real, wanted))

    def _paths_of(self, words: Sequence[str], task: Task) -> dict[str, None]:
        """Returns the paths that words stand for, each once.

        Raises `CommandRefused` if a pattern matches no file, or there are too many words.
        """
        paths = dict[str, None]()
        if len(words) > AT_ONCE or sum(map(_is_pattern, words)) > _PATTERNS_MOST:
            raise CommandRefused(_TOO_MANY)
        for word in words:
            if task.cancelled:
                raise Cancelled
            path = _in_workspace(word)
            if not _is_pattern(path):
                paths[path] = None
                continue
            try:
                found = [p for p in self._files(path) if not self.place.names.refusal(p)]
            except (ValueError, OSError):
                found = []
            if not found:
                raise CommandRefused(_NO_MATCH.format(pattern=word))
            paths |= dict.fromkeys(found)
        return paths


class CollectedFiles(PublishCommand):
    """The command in a batch, which collects all results when the notebook has ended.

    So it copies nothing, and returns the links that the files will have then. The suffixes of data
    are those of this command, not those of the settings.
    """

    def __init__(self, session: Session, place: PublishPlace) -> None:
        super().__init__(session, replace(place, names=PublishableNames(DATA_SUFFIXES)))

    def run(self, line: CommandLine, context: CommandContext) -> Json:
        """Returns the links of files, and the reasons for files without a link."""
        if not self.place.into:
            raise CommandRefused(_NOT_COLLECTED)
        return super().run(line, context)

    def link(self, line: CommandLine, context: CommandContext) -> Json:
        """Returns the path that a file will have, relative to the notebook; None for others."""
        is_one = self.place.into and not self.place.names.refusal(line.line)
        return "/".join((*self.place.into, line.line)) if is_one else None

    def _publish(self, paths: Sequence[str], broker: Broker, task: Task) -> Published:
        there = {*self._files(None)}
        links = {p: "/".join((*self.place.into, p)) for p in paths if p in there}
        return Published(links, {p: _MISSING for p in paths if p not in there})


class UnpublishedNotice:
    """Says once a session that files which cells write do not lie beside the notebook.

    `note` takes the notice's text.
    """

    def __init__(
        self, session: Session, publishing: PublishCommand, note: Callable[[str], None]
    ) -> None:
        self._private, self._workspace = session.folders.private, session.folders.workspace
        self._publishing = publishing
        self._note = note
        self._spoken = False

    def cell_begins(self, context: ActionContext) -> None:
        """Does nothing before a cell."""

    def files_changed(self, paths: Collection[str], context: ActionContext) -> None:
        """Gives the notice if there are unpublished data files among `paths`."""
        if self._spoken:
            return
        place, links = self._publishing.place, self._publishing.links
        found = (p for p in sorted(paths) if not place.names.refusal(p) and p not in links)
        written = [path for path in found if self._is_there(path)]
        if not written:
            return
        self._spoken = True
        try:
            os.close(self._private.open_regular(_TOLD, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        except OSError:  # an earlier kernel of the session has spoken
            return
        words = " ".join(f"'{path}'" if " " in path else path for path in written[:NAMED_MOST])
        if len(written) > NAMED_MOST:
            words += " ..."
        way = _BY_COMMAND.format(words=words) if place.into else _BY_SETTING
        verb = "lies" if len(written) == 1 else "lie"
        self._note(_IN_SESSION.format(paths=some_of(written), verb=verb, way=way))

    def _is_there(self, path: str) -> bool:
        from wasm_kernel.publishing.folder_beside import status_of

        there = status_of(self._workspace, path)
        return there is not None and stat.S_ISREG(there.st_mode)


def some_of(paths: Sequence[str]) -> str:
    """Returns the names of some files for a sentence, and how many more there are."""
    shown = [path if path.isprintable() else ascii(path) for path in paths[:NAMED_MOST]]
    more = len(paths) - NAMED_MOST
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def _is_pattern(word: str) -> bool:
    return bool(_PATTERN.search(word)) and not is_too_long(word)


def _words_of(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", ""
    try:
        words = list(lexer)
    except ValueError:
        words = []
    if not words or any(word.startswith("--") for word in words):
        raise CommandRefused(_USAGE)
    return words


def _in_workspace(path: str) -> str:
    """Returns a guest's path relative to its workspace, without the folder that a cell may name."""
    for folder in _GUEST_FOLDERS:
        path = path.removeprefix(folder)
    return path
