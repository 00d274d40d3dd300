"""`%session_publish`: results of a session, copied into a folder beside its notebook."""

from __future__ import annotations

import logging
import os
import re
import shlex
import stat
from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec import Struct

from wasm_kernel import events
from wasm_kernel.errors import WasmKernelError, describe
from wasm_kernel.guests.base import ActionContext, CommandContext, CommandLine, CommandRefused, Json
from wasm_kernel.linux.broker import Broker
from wasm_kernel.linux.task import QUIET, Cancelled, Task
from wasm_kernel.publishing.names import PublishableNames, is_too_long
from wasm_kernel.publishing.place import (
    AT_ONCE,
    MISSING,
    NO_FOLDER,
    TOO_MANY,
    AdoptFiles,
    PublishFiles,
    WriteFiles,
    WriteOutcome,
)
from wasm_kernel.publishing.tree import FileTree
from wasm_kernel.result import DATA_SUFFIXES, first_of
from wasm_kernel.sessions.last_use import LastUse

PUBLISH, PUBLISHED = "session_publish", "_session_published"
"""The command, and the one by which the guest asks for the link to a published file."""

_PATTERNS_MOST = 20  # each one is matched against all files
_PATTERN = re.compile(r"[*?[]")
NAMED_MOST = 10
"""The most files that a sentence names."""
_GUEST_FOLDERS = ("/notebook/", "/app/", "./")
_NOT_COLLECTED = "Nothing is published: files of notebooks that are graded are not kept."
_OFF = "Nothing may be published from this kernel: WasmKernel.publish_suffixes is empty."
_NO_MATCH = "No file of the session with a suffix of data matches {pattern}. Nothing was published."
_PATTERNS = f"At most {_PATTERNS_MOST} patterns can be published at once. Nothing was published."
_USAGE = "Usage: %session_publish FILES... (patterns such as *.csv, too; quote a path with spaces)"
_TOLD = "results-told"
"""The file in the private folder that exists once `UnpublishedNotice` was shown."""
_IN_SESSION = (
    "[wasm-kernel] {paths} {verb} written into this session, not beside the notebook. {way}; with "
    '`c.WasmKernel.folder = "write"` cells write there themselves.\n'
)
_BY_COMMAND = "`%session_publish {words}` copies files beside the notebook"
_BY_SETTING = '`c.WasmKernel.publish_folder = "results"` copies results into a folder of that name'


class ResultsNames(Struct, frozen=True):
    """The names that lead to the folder for results, none if unknown, and files' names there."""

    into: tuple[str, ...]
    names: PublishableNames


def outcomes(
    session: LastUse,
    request: type[PublishFiles | WriteFiles | AdoptFiles],
    paths: Sequence[str],
    broker: Broker,
    task: Task,
) -> Iterator[tuple[tuple[str, ...], WriteOutcome]]:
    """Requests work on paths, in groups of the allowed size; yields each group and its outcome."""
    for at in range(0, len(paths), AT_ONCE):
        some = tuple(paths[at : at + AT_ONCE])
        done = broker.call(request(some), WriteOutcome, task)
        log_published(session, done)
        yield some, done


def log_published(session: LastUse, done: WriteOutcome) -> None:
    """Logs the files that lie beside the notebook now."""
    for path in done.links:
        session.logger.log_event(events.FILE_PUBLISHED, session_id=session.id, path=path)


class PublishCommand:
    """The command `%session_publish FILES...`, and its results. The guest's thread uses it.

    `links` maps published paths to their paths relative to the notebook.
    """

    no_folder = NO_FOLDER

    def __init__(self, session: LastUse, results: ResultsNames) -> None:
        self._session = session
        self.results = results
        self.links: dict[str, str] = {}

    def run(self, line: CommandLine, context: CommandContext) -> Json:
        """Publishes files; returns their links, and the reasons for refused files."""
        if not self.results.into:
            raise CommandRefused(self.no_folder)
        if not self.results.names.suffixes:
            raise CommandRefused(_OFF)
        paths_of = self._paths_of(_words_of(line.line), context)
        reasons = {path: self.results.names.refusal(path) for path in paths_of}
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
            paths = [p for p in self._files(None) if not self.results.names.refusal(p)]
            done = self._publish(paths, broker, QUIET)
        except (OSError, WasmKernelError) as problem:
            log.warning("no result was published: %s", describe(problem))
            return
        for path, why in done.refused.items():
            log.warning("%s was not published: %s", path, why)

    def _publish(self, paths: Sequence[str], broker: Broker, task: Task) -> WriteOutcome:
        done = WriteOutcome({}, {})
        for _, some in outcomes(self._session, PublishFiles, paths, broker, task):
            done.links.update(some.links)
            done.refused.update(some.refused)
        self.links.update(done.links)
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
        if len(words) > AT_ONCE:
            raise CommandRefused(TOO_MANY)
        if sum(map(_is_pattern, words)) > _PATTERNS_MOST:
            raise CommandRefused(_PATTERNS)
        for word in words:
            if task.cancelled:
                raise Cancelled
            path = _in_workspace(word)
            if not _is_pattern(path):
                paths[path] = None
                continue
            try:
                found = [p for p in self._files(path) if not self.results.names.refusal(p)]
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

    no_folder = _NOT_COLLECTED

    def __init__(self, session: LastUse, results: ResultsNames) -> None:
        super().__init__(session, ResultsNames(results.into, PublishableNames(DATA_SUFFIXES)))

    def link(self, line: CommandLine, context: CommandContext) -> Json:
        """Returns the path that a file will have, relative to the notebook; None for others."""
        is_one = self.results.into and not self.results.names.refusal(line.line)
        return "/".join((*self.results.into, line.line)) if is_one else None

    def _publish(self, paths: Sequence[str], broker: Broker, task: Task) -> WriteOutcome:
        there = {*self._files(None)}
        links = {p: "/".join((*self.results.into, p)) for p in paths if p in there}
        return WriteOutcome(links, {p: MISSING for p in paths if p not in there})


class UnpublishedNotice:
    """Says, once a session, that files of cells do not lie beside the notebook.

    `note` takes the notice's text.
    """

    def __init__(
        self, session: LastUse, publishing: PublishCommand, note: Callable[[str], None]
    ) -> None:
        self._private = session.folders.private
        self._workspace = FileTree(session.folders.workspace)
        self._publishing = publishing
        self._note = note
        self._spoken = False

    def cell_begins(self, context: ActionContext) -> None:
        """Does nothing before a cell."""

    def files_changed(self, paths: Collection[str], context: ActionContext) -> None:
        """Gives the notice if there are unpublished data files among `paths`."""
        if self._spoken:
            return
        results, links = self._publishing.results, self._publishing.links
        found = (p for p in sorted(paths) if not results.names.refusal(p) and p not in links)
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
        way = _BY_COMMAND.format(words=words) if results.into else _BY_SETTING
        verb = "was" if len(written) == 1 else "were"
        self._note(_IN_SESSION.format(paths=some_of(written), verb=verb, way=way))

    def _is_there(self, path: str) -> bool:
        there = self._workspace.status(path)
        return there is not None and stat.S_ISREG(there.st_mode)


def some_of(paths: Sequence[str]) -> str:
    """Returns the names of some files for a sentence, and how many more there are."""
    shown = [path if path.isprintable() else ascii(path) for path in paths]
    return ", ".join(first_of(shown, NAMED_MOST))


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
    """Returns a guest's path relative to its workspace, also if it is absolute."""
    for folder in _GUEST_FOLDERS:
        path = path.removeprefix(folder)
    return path
