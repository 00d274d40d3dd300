"""The deleter of sessions and of their histories, and the rules by which sessions are deleted.

A caller names a rule. The deleter checks it, keeps all users of the session out, checks it again,
and deletes: it never deletes a session that is open.

| rule | caller | deletes |
|---|---|---|
| `ASKED` | `delete_session_workspace` | any session; its sandbox in this process is closed first |
| a `Rule` of pruning | `prune_sessions` | a session in which no cell has ended for some hours |
| a `Rule` of upkeep | a kernel | a session without its notebook that was not used for days |
| a `Rule` of expiry | a service | a session of a service that had no call for some time |
| `evict`, by age or room | a kernel's upkeep | an idle session's history; its files stay |

A deleted session is first renamed, so that it is gone at once for all others. The rename, to a name
that is not a session id, happens under the lock that keeps all users out. A folder that then has
the session's name is another, new session. After that the files are deleted one by one. If one
can't be deleted, the session gets its id back, and the next removal tries again. A removal that is
killed is finished by the next one.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path

from msgspec import Struct

from wasm_kernel import events
from wasm_kernel.errors import SessionInUse, WasmKernelError, describe
from wasm_kernel.events import SandboxLogger
from wasm_kernel.folders import orphans
from wasm_kernel.folders.hiding import ASIDE
from wasm_kernel.folders.locks import HOLDER, exclusively, note_evicted
from wasm_kernel.folders.private import PrivateFolder, discard, removing
from wasm_kernel.linux import trees
from wasm_kernel.linux.files import take_name
from wasm_kernel.linux.folders import Folder, open_named
from wasm_kernel.linux.locks import wait_lock
from wasm_kernel.sessions import ids, metadata
from wasm_kernel.sessions.disk_use import HISTORY, idle_seconds, stamp_of
from wasm_kernel.sessions.metadata import MetadataCorrupted
from wasm_kernel.sessions.open_sandboxes import OPEN_SANDBOXES
from wasm_kernel.sessions.paths import WORKSPACE_ROOT
from wasm_kernel.sessions.root import SessionsRoot, WorkspaceError, remove_links
from wasm_kernel.sessions.staging import aside_name

_WAIT_SECONDS = 30.0  # for another process that still reads the metadata
_LEFT = re.compile(rf"{re.escape(ASIDE)}([A-Za-z0-9-]+)-[0-9a-f]{{8}}")
_EVICTED = ".evicted-"
_PRIVATE_MOST = 1_000  # names at the top of a private folder, which a session's process can make


class NotDue(WasmKernelError):
    """The error of a session that is too young for the rule by which it would be deleted."""


def last_cell(name: str, workspace: Folder) -> float | None:
    """Returns when a cell last ended in a session, in seconds since 1970; None without metadata.

    Raises `MetadataCorrupted`.
    """
    known = metadata.read(workspace, name)
    return None if known is None else known.updated_at.timestamp()


class Rule(Struct, frozen=True):
    """A rule by which sessions are deleted.

    Attributes:
        seconds: A session that was last used longer ago is due; None if every session is.
        last_use: Returns when a session was last used, by its id and its folder, in seconds since
            1970; None if that is not known, and the session stays.
        closes: The error of later calls on the session's sandbox in this process, which is closed
            unless a cell runs in it. If it is empty, an open sandbox keeps its session.
        begins: Called with the session's id when its deletion is certain, before it begins.
    """

    seconds: float | None
    last_use: Callable[[str, Folder], float | None] = last_cell
    closes: str = ""
    begins: Callable[[str], None] = lambda name: None

    @property
    def is_asked(self) -> bool:
        """True if a caller names the session: its running cell is stopped, its folder opened."""
        return self.seconds is None

    def age(self, name: str, workspace: Folder) -> float | None:
        """Returns the seconds since a session was last used; None if that is not known."""
        used = self.last_use(name, workspace)
        return None if used is None else time.time() - used

    def is_due(self, age: float | None) -> bool:
        """Returns whether a session of an age is due."""
        return self.seconds is None or (age is not None and age > self.seconds)

    def check(self, name: str, workspace: Folder) -> None:
        """Raises `NotDue` if a session is not due."""
        if not (self.is_asked or self.is_due(self.age(name, workspace))):
            raise NotDue(f"session {name} was used since")


ASKED = Rule(
    None,
    closes="This sandbox was closed because its session was about to be deleted. Get the session "
    "again with get_session_sandbox: it goes on with what is left, or begins empty.",
)
"""The rule of a session that a caller names: it is deleted even if a cell of this process runs."""


class Deleter:
    """Deletes sessions of a root, whose folder its owner keeps open."""

    def __init__(self, root: SessionsRoot, top: Folder) -> None:
        self._root, self._top = root, top

    @cached_property
    def _links(self) -> dict[str, list[str]]:
        return self._root.aliases()

    def finish_earlier(self) -> dict[str, OSError]:
        """Finishes removals that were killed, as `finish_removals`, and removes old orphans."""
        orphans.remove_due_daily()
        return finish_removals(self._top)

    def check_free(self, name: str) -> None:
        """Raises `SessionInUse` if a session has a user that would keep it; changes nothing."""
        workspace = self._root.path / name
        if OPEN_SANDBOXES.check(workspace) is None and self._root.is_used(name):
            raise SessionInUse

    def delete(self, name: str, rule: Rule) -> None:
        """Deletes a session with its private folder and all links to it.

        By `ASKED`, a folder that its owner can't enter is made accessible.

        Raises:
            NotDue: the session is not due by the rule.
            FileNotFoundError: there is no such folder, or another one took its place, which is not
                touched.
            SessionInUse: the session is used; nothing was deleted.
            MetadataCorrupted: the rule can't be checked.
            PrivateFolderError: there is no place for the lock that keeps others out.
            OSError: it is not a folder, or a file in it can't be deleted. The rest keeps the
                session's id.
        """
        if not rule.is_asked:
            with self._top.enter(name) as workspace:
                rule.check(name, workspace)
        links = self._links.get(name, [])
        if rule.closes:
            path = self._root.path / name
            OPEN_SANDBOXES.close(path, rule.closes, stop_cell=rule.is_asked)
        self._remove(name, rule)
        remove_links(self._top, links)

    def _remove(self, name: str, rule: Rule) -> None:
        top = self._top
        with ExitStack() as held:
            workspace = held.enter_context(top.enter(name, force=rule.is_asked))
            found = held.enter_context(self._private_of(name, workspace))
            with exclusively(found):
                try:
                    if not top.has(name, workspace.fd):
                        raise _gone(name)
                    rule.check(name, workspace)
                    rule.begins(name)
                    aside = _set_aside(top, name, workspace)
                except BaseException:
                    if found.made:  # it was made only for the lock
                        discard(found.path)
                    raise
                if aside == name:
                    _delete(top, name, workspace)
                held.enter_context(removing(found.path))
            if aside != name:
                try:
                    _delete(top, aside, workspace)
                except OSError:
                    take_name(top.fd, aside, name)
                    raise

    def _private_of(self, name: str, workspace: Folder) -> PrivateFolder:
        """Opens the session's private folder, which has the lock; makes it if there is none."""
        if (found := self._root.privates.find(name, workspace)) is not None:
            return found
        if not self._top.has(name, workspace.fd):
            raise _gone(name)
        return self._root.privates.open(name, workspace)


def _gone(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "Another program has deleted this session", name)


def delete_session_workspace(
    session_id: str,
    workspace_root: Path | str = WORKSPACE_ROOT,
    logger: SandboxLogger | None = None,
    *,
    private_root: Path | str | None = None,
) -> None:
    """Deletes a session: its files, its variables, its folder. Does nothing if there is none.

    An open sandbox of the session in this process is closed first. Links in the session are
    deleted, but not their targets. If the id is a link to a session in the same root, that session
    is deleted with all links to it.

    Args:
        session_id: Letters, digits and hyphens.
        workspace_root: The folder that holds the sessions' folders.
        logger: Gets the events; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.

    Raises:
        SessionIdError: `session_id` is not a session id (a `ValueError`).
        SessionInUse: another process uses the session; nothing was deleted.
        OverlapError: the root is one of the host's own folders.
        WorkspaceError: the name is not that of a session's folder, or a file in the folder can't
            be deleted.
    """
    asked, log = ids.checked(session_id), SandboxLogger.of(logger)
    root = SessionsRoot(workspace_root, private_root)
    name = root.target_of(asked)
    root.check(name)
    try:
        with open_named(root.named) as top:
            deleter = Deleter(root, top)
            deleter.finish_earlier()
            deleter.delete(name, ASKED)
    except FileNotFoundError:  # the root may be gone, too
        OPEN_SANDBOXES.close(root.path / name, ASKED.closes, stop_cell=True)
        return
    except OSError as problem:
        raise WorkspaceError(
            f"Session {name} can't be deleted ({describe(problem)}). Files that were deleted "
            "before are gone. Look at that, and at the permissions of its folder, and try again."
        ) from problem
    log.log_event(events.SESSION_DELETED, session_id=name)


def _set_aside(root: Folder, name: str, workspace: Folder) -> str:
    """Gives a session's folder a name that is not a session's; returns the folder's name then."""
    aside = aside_name(name)
    try:
        os.rename(name, aside, src_dir_fd=root.fd, dst_dir_fd=root.fd)
    except OSError as problem:
        if problem.errno not in (errno.EXDEV, errno.EBUSY):
            raise
        return name  # a folder of a container's own layers, or a mounted one, can't be renamed
    # unless another process has finished the removal already, one without the lock moved it
    if not root.has(aside, workspace.fd) and os.fstat(workspace.fd).st_nlink:
        take_name(root.fd, aside, name)
        raise _gone(name)
    return aside


def finish_removals(root: Folder) -> dict[str, OSError]:
    """Finishes earlier removals that were killed.

    Returns the errors of sessions that can't be deleted, by their ids. Such a session has its id
    back, unless there is another one of that id by now; then it stays aside for the next time.
    """
    with os.scandir(root.fd) as listing:
        left = [found for entry in listing if (found := _LEFT.fullmatch(entry.name))]
    problems: dict[str, OSError] = {}
    for aside, name in ((found[0], found[1]) for found in left):
        try:
            with root.enter(aside, force=True) as folder:
                try:
                    _delete(root, aside, folder, 0)
                except OSError:
                    if _is_session(folder, name):
                        take_name(root.fd, aside, name)
                    raise
        except FileNotFoundError:
            continue  # another process deleted it
        except OSError as problem:
            problems[name] = problem
    return problems


def _is_session(folder: Folder, name: str) -> bool:
    """Returns whether a folder belonged to that session, and not to an unfinished new one."""
    try:
        return metadata.read(folder, name) is not None
    except (OSError, MetadataCorrupted):
        return False


def _delete(root: Folder, name: str, folder: Folder, seconds: float = _WAIT_SECONDS) -> None:
    if not wait_lock(folder.fd, seconds):
        return  # another process deletes it just now
    if not root.has(name, folder.fd):
        return  # another process has deleted it, or it has become a new session
    trees.remove_contents(
        folder.fd, hidden=lambda _, name, depth: depth == 0 and name == metadata.NAME
    )
    # the metadata is deleted last: a session that can't be deleted keeps it
    trees.remove_contents(folder.fd)
    if root.has(name, folder.fd):
        with suppress(FileNotFoundError):
            os.rmdir(name, dir_fd=root.fd)


# -- histories


def evict(private: Folder, why: str, seconds: float) -> bool:
    """Sets a session's history aside, if the session was not used for `seconds`.

    Other processes see the whole history or none, even if this process is killed on the way. The
    next holder of the session is told `why` (as in `texts.evicted`). `remove_evicted` frees the
    disk space. Returns whether the history is gone.
    """
    try:
        with exclusively(private):
            stamp = stamp_of(private)
            if idle_seconds(stamp) < seconds:
                return False
            note_evicted(private, why)
            # eviction does not count as use: restore the time
            os.utime(HOLDER, ns=(max(stamp[::2]),) * 2, dir_fd=private.fd, follow_symlinks=False)
            for number, name in enumerate(HISTORY):
                with suppress(FileNotFoundError):
                    private.rename(name, f"{_EVICTED}{time.time_ns()}-{number}")
    except SessionInUse:
        return False
    return True


def remove_evicted(private: Folder) -> None:
    """Removes histories that were set aside, and skips those that can't be removed."""
    for name in private.names(_PRIVATE_MOST):
        if name.startswith(_EVICTED):
            with suppress(OSError):
                with private.enter(name, force=True) as folder:
                    trees.remove_contents(folder.fd)
                os.rmdir(name, dir_fd=private.fd)
