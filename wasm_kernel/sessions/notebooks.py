"""The sessions that belong to notebooks: a list in the user's state folder.

A notebook is recognised by its file, if a Jupyter server names the file. The notebook's content is
not trusted for that, as its author may be a stranger. Another file at the same path is another
notebook, unless its bytes are those that the notebook had when its last kernel ended: it may be a
restored backup, or the file system can't tell files apart. The kernel reads and writes the list
before it is confined; when it has ended, the broker notes the notebook's current path.
"""

from __future__ import annotations

import shlex
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.errors import describe
from wasm_kernel.folders.notebook_file import NotebookFile, NotebookRefused
from wasm_kernel.folders.places import Place, homeless, state_subfolder
from wasm_kernel.linux.files import FileMark
from wasm_kernel.linux.folders import Closing, Folder
from wasm_kernel.linux.locks import unlock, wait_lock
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.root import SessionsRoot

if TYPE_CHECKING:
    from wasm_kernel.sessions.session import Session

_FOLDER, _LIST = "notebooks", "notebooks.json"
_LIST_BYTES = 64 * 1024 * 1024
NOTEBOOKS_MOST = 2000  # the last opened ones are kept
_LOCK_SECONDS = 30.0
PATIENCE_SECONDS = 2.0
"""Seconds that an ending kernel may take to leave its session to the next one."""
_POLL_SECONDS = 0.05

_IN_USE = (
    "[wasm-kernel] This notebook's session is open in another kernel or program, so this kernel "
    "has an empty one of its own, which no later kernel finds. To have the notebook's files, shut "
    "that one down, then this one, and open the notebook again.\n"
)
_GONE = (
    "[wasm-kernel] The session of this notebook was deleted, with its files. A new, empty one "
    "begins.\n"
)
_OFFER = (
    "[wasm-kernel] This notebook begins with an empty session, as {why}. To give it the session "
    "of that one, run this in a terminal, in the notebook's folder, and restart the kernel:\n"
    "wasm-kernel sessions bind {session} {name}\n"
)
_ALIKE = "it holds the same as {name}, but is another file"
_UNNOTED = (
    "[wasm-kernel] Tomorrow this notebook will begin with another session, as it could not be "
    "noted which one it has ({why}). %session_path says where its files are.\n"
)


class Binding(Struct, frozen=True):
    """The session that belongs to a notebook.

    Attributes:
        root: The real path of the folder that the session lies in.
        session: The session's id.
        path: The last known path of the notebook's file.
        mark: The mark that identifies the file.
        digest: The digest of its content when its last kernel ended; empty if unknown.
        kernel: The id of the last kernel; empty if there was none since a person chose the session.
        used: The time when that kernel started, in seconds since 1970.
    """

    root: str
    session: str
    path: str
    mark: FileMark
    digest: str = ""
    kernel: str = ""
    used: float = 0.0

    def is_of(self, file: NotebookFile) -> bool:
        """Returns whether a file is the notebook's own."""
        here = self.path == str(file.path)
        if self.mark.survives_restart and self.mark.same(file.mark) and (here or file.names == 1):
            return True
        return here and bool(self.digest) and self.digest == file.digest()

    @property
    def is_there(self) -> bool:
        """True if the notebook's file is still at its last known path."""
        with suppress(OSError, RuntimeError, NotebookRefused), NotebookFile.at(self.file) as there:
            return self.is_of(there)
        return False

    @property
    def file(self) -> Path:
        """The path of the notebook's file."""
        return Path(self.path)

    def likeness(self, file: NotebookFile, digest: str) -> str:
        """Returns why another file may be this notebook, as a phrase; empty if it may not be."""
        if self.path == str(file.path):
            return "another file had its name before"
        alike = bool(digest) and digest == self.digest
        if digest and not alike and self.file.parent == file.path.parent:
            with suppress(OSError, NotebookRefused), NotebookFile.at(self.file) as other:
                alike = self.mark.same(other.mark) and other.digest() == digest
        return _ALIKE.format(name=ascii(self.file.name)) if alike else ""


class Notebooks(Closing):
    """The list of this user's notebooks, locked until it is closed."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.bindings = list(_read(place))

    @classmethod
    def locked(cls) -> Self | None:
        """Locks the list; None if this user has no folder for state, or the wait is too long."""
        if (place := state_subfolder(_FOLDER, make=True)) is None:
            return None
        with suppress(OSError):
            if wait_lock(place.fd, _LOCK_SECONDS):
                return cls(place)
        place.close()
        return None

    def put(self, binding: Binding, *instead: Binding) -> None:
        """Adds a notebook and removes those in `instead`, or leaves the list unchanged."""
        kept = [each for each in self.bindings if each not in instead]
        found = sorted([*kept, binding], key=lambda each: each.used, reverse=True)[:NOTEBOOKS_MOST]
        self._place.write_record(_LIST, found)
        self.bindings = found

    def close(self) -> None:
        """Unlocks the list, even if a forked process has it open. Safe to call twice."""
        if self._place.fd >= 0:
            unlock(self._place.fd)
            self._place.close()


def _read(place: Place) -> Iterator[Binding]:
    """Yields the bindings in a list, without those that can't be read."""
    with suppress(OSError):
        for each in place.read_record(_LIST, list[Any], _LIST_BYTES):
            with suppress(msgspec.ValidationError):
                yield msgspec.convert(each, Binding)


def notebooks_of(root: SessionsRoot) -> dict[str, list[Binding]]:
    """Returns the notebooks of a root's sessions, by the sessions' ids; last opened first."""
    by_session: dict[str, list[Binding]] = {}
    place, here = state_subfolder(_FOLDER), str(root.path)
    if place is not None:
        with place:
            for each in _read(place):
                if each.root == here:
                    by_session.setdefault(each.session, []).append(each)
    return by_session


def bind(root: SessionsRoot, session_id: str, notebook: Path) -> None:
    """Binds a notebook to a session, which its next kernel opens, even after a mere restart.

    Raises `NotebookRefused` if the notebook can't have a kept session, `PrivateFolderError` if this
    user has no folder for state.
    """
    with NotebookFile.at(notebook.absolute()) as file:
        found = Notebooks.locked() or homeless()
        with found:
            place = str(root.path)
            earlier = [each for each in found.bindings if each.root == place and each.is_of(file)]
            facts = (place, session_id, str(file.path), file.mark, file.digest())
            found.put(Binding(*facts, used=time.time()), *earlier)


class SessionChoice:
    """The session that a kernel is about to open. Until `opened`, no other kernel can choose one.

    `is_own` is False if the session is for this kernel alone, as the notebook has another one.
    `is_taken` is True if the notebook's session is open elsewhere. The notebook's file, if any, is
    open until this is closed.
    """

    def __init__(self, root: SessionsRoot, kernel: str, notebook: Path | None) -> None:
        self.session_id, self.is_own, self.is_taken = kernel, True, False
        self._root, self._kernel = root, kernel
        self._again, self._notice, self._refused = False, "", "as no server named a notebook"
        self.file: NotebookFile | None = None
        self._found: Binding | None = None
        self._list = None if notebook is None else Notebooks.locked()
        if notebook is None:
            return
        if self._list is None:
            self._refused = "as this user's folder for state can't be used"
            return
        try:
            self.file = NotebookFile.at(notebook)
        except NotebookRefused as problem:
            self._refused = f"as the notebook's file {problem.why}"
        except (OSError, RuntimeError, ValueError):
            pass  # such as a console's name
        here = str(root.path)
        self._choose([each for each in self._list.bindings if each.root == here])

    def _choose(self, known: Sequence[Binding]) -> None:
        file, kernel = self.file, self._kernel
        own = [each for each in known if file is not None and each.is_of(file)]
        chosen = [each for each in own if not each.kernel]
        restarted = [each for each in known if each.kernel == kernel]
        if not (chosen or restarted) and self._exists(kernel):
            self.is_own = False  # a restart; the notebook's session was open elsewhere before
            return
        self._found = next(iter((*chosen, *restarted, *own)), None)
        if self._found not in (None, *own):
            self._follow(restarted[0])
        if self._found is None:
            self._notice = self._offer(known)
        elif not self._exists(self._found.session):
            self._notice = _GONE
        elif self._found.kernel != kernel and self._root.has_users(self._found.session):
            self.is_own, self.is_taken, self._notice = False, True, _IN_USE
        else:
            self.session_id = self._found.session
            self._again = self._found.kernel != kernel

    def _follow(self, restarted: Binding) -> None:
        """Opens the notebook's current file, as a server still gives the first name."""
        if self.file is not None:
            self.file.close()
            self.file = None
        with suppress(OSError, RuntimeError, ValueError, NotebookRefused):
            file = self.file = NotebookFile.at(restarted.file)
            if not restarted.is_of(file):
                file.close()
                self.file = None

    def _offer(self, known: Sequence[Binding]) -> str:
        """Returns the notice of a session that the user may look for; empty if there is none."""
        if self.file is None:
            return ""
        digest, name = self.file.digest(), self.file.path.name
        for each in known:
            why = each.likeness(self.file, digest)
            if why and self._exists(each.session):
                said = shlex.quote(name) if name.isprintable() else "NOTEBOOK"
                return _OFFER.format(why=why, session=each.session, name=said)
        return ""

    def _exists(self, session: str) -> bool:
        with suppress(OSError), Folder.open(self._root.path) as root:
            there = root.status(session) if ids.is_id(session) else None
            return there is not None and stat.S_ISDIR(there.st_mode)
        return False

    def opened(self, session: Session) -> None:
        """Notes that the session is open now, and hands it the notices for its user."""
        if self._list is None:
            return
        notices = [self._notice] if self._notice else []
        with self._list:
            try:
                self._note(self._list, session.id)
            except OSError as problem:
                notices.append(_UNNOTED.format(why=describe(problem)))
        session.folders.notices += tuple(notices)
        # JupyterLab starts two kernels of a new notebook, and shuts down the first
        session.folders.reopened = self._again and session.was_used

    def _note(self, known: Notebooks, session: str) -> None:
        file, found = self.file, self._found
        if not self.is_own or (file is None and found is None):
            return
        now = {"session": session, "kernel": self._kernel, "used": time.time()}
        if file is None:
            assert found is not None
            known.put(replace(found, **now), found)
            return
        here, digest = str(self._root.path), "" if found is None else found.digest
        made = Binding(here, session, str(file.path), file.mark, digest)
        mine = [each for each in known.bindings if each.root == here and each.is_of(file)]
        known.put(replace(made, **now), *mine)

    @property
    def is_of_notebook(self) -> bool:
        """True if the session belongs to a notebook whose file is known."""
        return self.file is not None and self.is_own

    @property
    def tomorrow(self) -> str:
        """A phrase for users about what the next kernel will find."""
        if self.is_of_notebook:
            return "the notebook's next kernel finds these files and named checkpoints"
        why = self._refused if self.file is None else "as the notebook's are in another session"
        return f"other kernels do not find these files, {why}"

    def ended(self) -> None:
        """Notes the notebook's path and content, after the kernel has ended."""
        file = self.file
        if file is None or not self.is_own:
            return
        mark, digest, path = FileMark.of(file.fd), file.digest(), str(file.moved())
        if (found := Notebooks.locked()) is None:
            return
        me = (str(self._root.path), self._kernel)
        with found, suppress(OSError):
            for each in found.bindings:
                if (each.root, each.kernel) == me:
                    found.put(replace(each, mark=mark, digest=digest, path=path), each)
                    break

    def close(self) -> None:
        """Lets other kernels choose a session, and closes the file. Safe to call twice."""
        if self._list is not None:
            self._list.close()
        if self.file is not None:
            self.file.close()
            self.file = None


def choose_session(root: SessionsRoot, kernel: str, notebook: Path | None) -> SessionChoice:
    """Chooses the session that a kernel opens: a session of its own if no notebook is named.

    A restarted kernel, which keeps its id, gets the session that it had. Any other kernel gets its
    notebook's session, unless that is open elsewhere. Waits a moment for a kernel that is just
    ending.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        found = SessionChoice(root, kernel, notebook)
        if not found.is_taken or time.monotonic() >= until:
            return found
        found.close()
        time.sleep(_POLL_SECONDS)
