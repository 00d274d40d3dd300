"""Private folders: private state outside of every folder that a guest is given.

Each session has one private folder: its history, the guest's `/tmp`, packages, locks. It never
lies inside a workspace, where a stranger could have put links in its place. It is found by the
root's path, the workspace's name in it, and the workspace's `FileMark` (`linux/files.py`): a folder
that is made anew at the same path gets a new one. A sandbox outside of sessions has one for itself
alone, which ends with it.

It is made in the first of these places (`places.py`): the folder that the user named; the user's
state folder, if files can be linked between it and the workspace; a folder beside the root, if it
is safe there; the state folder, with copies in place of links. An existing one is found in any of
them, and in places that were used before.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, Self

from msgspec import Struct

from wasm_kernel.folders import places
from wasm_kernel.folders.locks import is_used
from wasm_kernel.folders.places import ELSEWHERE, ROOTS, Place, beside, named
from wasm_kernel.linux import trees
from wasm_kernel.linux.files import FileMark, take_name
from wasm_kernel.linux.folders import Folder, undoing

RECORD = "record.json"
"""The file in a private folder that names its workspace (`Owner`)."""

_RECORD_BYTES = 64 * 1024
_REMOVED, _TEMPORARY = ".removed-", ".sandbox-"
_DIGEST_BYTES = 12
_KEY, _KEY_BYTES = ".service-key", 32
_MAKE_ATTEMPTS, _REMOVE_ATTEMPTS = 16, 8
_LABEL = re.compile(r"[^A-Za-z0-9-]+")
_LABEL_MOST = 64


OpenPrivate = Callable[[], contextlib.AbstractContextManager[tuple[Folder, Path]]]
"""Opens a sandbox's private folder; returns it with its path. Raises `OSError` if there is none."""

OpenFolder = Callable[[], contextlib.AbstractContextManager[Folder]]
"""Opens a folder, and makes it if it is missing. Raises `OSError`."""


def opening_in(private: OpenPrivate, name: str) -> OpenFolder:
    """Returns a function that opens a folder in the private folder."""

    @contextlib.contextmanager
    def open_it() -> Iterator[Folder]:
        with private() as (folder, _), folder.enter(name, make=True) as below:
            yield below

    return open_it


class Owner(Struct, frozen=True):
    """The workspace that a private folder belongs to: a name in a root, by its real path.

    The marks are those of the workspace, its root, and the folder `above` the root. Outside of
    sessions, all are the workspace's, and `session` is false.
    """

    root: str
    name: str
    mark: FileMark
    root_mark: FileMark
    above: FileMark
    session: bool = True
    version: Literal[1] = 1

    @property
    def key(self) -> str:
        """The name of the workspace's private folder."""
        identity = json.dumps([self.root, self.name, self.mark.number, self.mark.born])
        digest = hashlib.blake2b(identity.encode(), digest_size=_DIGEST_BYTES).hexdigest()
        label = _LABEL.sub("-", self.name)[:_LABEL_MOST]
        return f"{label}-{digest}"

    @property
    def path(self) -> Path:
        """The workspace's path when this record was written."""
        return Path(self.root, self.name)

    @classmethod
    def of(cls, folder: Folder) -> Self | None:
        """Returns the owner by a private folder's record; None if there is no readable record."""
        with contextlib.suppress(OSError):
            return folder.read_record(RECORD, cls, _RECORD_BYTES)
        return None

    def find(self, place: Place, *, opened: bool = False) -> tuple[Folder, Owner] | None:
        """Returns the workspace's private folder in a place, and its record; None if missing.

        The folder's name is a digest of the workspace's path and mark, so that a damaged record
        loses nothing. With `opened`, the record is brought up to date.
        """
        try:
            found = place.enter(self.key)
        except OSError:
            return None
        written = Owner.of(found)
        known = written or (self if self.mark.survives_restart else None)
        if known is not None and known.mark.same(self.mark):
            if opened and written != self:
                with contextlib.suppress(OSError):
                    found.write_record(RECORD, self)
            return found, known
        found.close()
        return None


class PrivateFolder(Folder):
    """The private folder of one workspace, open; close it.

    Attributes:
        path: Its real path.
        needs_copies: Whether it lies in another file system than the workspace: files are copied,
            not linked.
        survives_restart: Whether it can be matched with its workspace after a restart.
        made: Whether it was made just now.
    """

    def __init__(
        self, fd: int, path: Path, *, needs_copies: bool, survives_restart: bool, made: bool = False
    ) -> None:
        super().__init__(fd)
        self.path = path
        self.needs_copies, self.survives_restart, self.made = needs_copies, survives_restart, made

    @property
    def in_place(self) -> bool:
        """True if the folder still has its name, by which others find it."""
        try:
            there = self.path.lstat()
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self.fd))


class TemporaryFolder(PrivateFolder):
    """The private folder of a sandbox outside of sessions, which is removed when it is closed.

    If this process is killed, a sweep removes it later.
    """

    _open: ClassVar[set[TemporaryFolder]] = set()

    def __init__(self, fd: int, path: Path, *, needs_copies: bool) -> None:
        super().__init__(fd, path, needs_copies=needs_copies, survives_restart=True, made=True)
        self._process = os.getpid()
        self._open.add(self)

    def close(self) -> None:
        """Closes the folder, and removes it in the process that made it. Safe to call twice."""
        is_open = self in self._open
        self._open.discard(self)
        super().close()
        if is_open and os.getpid() == self._process:
            with contextlib.suppress(OSError):
                _remove(self.path)

    @classmethod
    def close_all(cls) -> None:
        """Closes the folders of sandboxes that the program has not closed."""
        for folder in list(cls._open):
            folder.close()


# registered at the import, and so called after the end of the workers, which are imported later
atexit.register(TemporaryFolder.close_all)


class PrivateFolders:
    """The private folders of the workspaces in one root. Any thread may use it.

    `named` is the absolute path of the folder for them, if the user named one.
    """

    def __init__(self, root: Path, private_root: Path | str | None = None) -> None:
        self.root = root
        self._sibling = beside(root) if root.name else None
        self.named = None if private_root is None else named(private_root)

    def find(self, name: str, workspace: Folder, *, opened: bool = False) -> PrivateFolder | None:
        """Returns the private folder of a workspace; None if it has none. Makes nothing."""
        owner = self._owner(name, workspace)
        for place in self._known():
            with place:
                if (found := owner.find(place, opened=opened)) is not None:
                    return _in_place(found[0], place, owner, workspace)
        return None

    def open(self, name: str, workspace: Folder) -> PrivateFolder:
        """Returns a workspace's private folder, made if missing. Raises `PrivateFolderError`."""
        for left in reversed(range(_MAKE_ATTEMPTS)):
            try:
                opened = self.find(name, workspace, opened=True) or self._make(name, workspace)
            except OSError as problem:
                if problem.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not left:
                    raise
            else:
                ROOTS.add(self.root)
                return opened
        raise AssertionError("there are attempts")

    def open_temporary(self, workspace: Folder) -> TemporaryFolder:
        """Returns a new private folder for a sandbox outside of sessions.

        Here `root` is the path of its workspace. Raises `PrivateFolderError`.
        """
        _settle(workspace)
        mark = FileMark.of(workspace.fd)
        owner = Owner(str(self.root.parent), self.root.name, mark, mark, mark, session=False)
        with self._new_place(workspace) as place:
            name = f"{_TEMPORARY}{os.urandom(8).hex()}"
            made = place.enter(name, make=True)
            needs_copies = not places.can_link(place, workspace)
            found = TemporaryFolder(made.fd, place.path / name, needs_copies=needs_copies)
        found.write_record(RECORD, owner)
        return found

    def _make(self, name: str, workspace: Folder) -> PrivateFolder:
        _settle(workspace)
        owner = self._owner(name, workspace)
        with self._new_place(workspace) as place:
            return _in_place(_make(place, owner), place, owner, workspace, made=True)

    def _owner(self, name: str, workspace: Folder) -> Owner:
        mark = FileMark.of(workspace.fd)
        with Folder.open(self.root) as root, Folder.open(self.root.parent) as above:
            root_mark, above_mark = FileMark.of(root.fd), FileMark.of(above.fd)
        return Owner(str(self.root), name, mark, root_mark, above_mark)

    def _known(self) -> Iterator[Place]:
        """Yields the existing places, the likeliest first; the caller closes each."""
        ways: list[Callable[[], Place | None]] = [places.state_subfolder]
        if self._sibling is not None:
            ways.append(partial(places.place_beside, self._sibling))
        if self.named is not None:
            ways.insert(0, partial(places.own_place, self.named))
        seen = set()
        for opened in ways:
            if (place := opened()) is not None:
                seen.add(place.path)
                yield place
        for path in ELSEWHERE.paths():
            if path not in seen and (place := places.own_place(path)) is not None:
                yield place

    def _new_place(self, workspace: Folder) -> Place:
        """Returns the place for a new private folder. Raises `PrivateFolderError`."""
        if self.named is not None:
            return _note_place(places.make_named(self.named))
        state = places.state_subfolder(make=True)
        if state is not None and places.can_link(state, workspace):
            return state
        if (sibling := self._new_sibling(workspace)) is not None:
            if state is not None:
                state.close()
            return _note_place(sibling)
        return places.homeless() if state is None else state

    def _new_sibling(self, workspace: Folder) -> Place | None:
        """Returns the place beside the root; None if it is unsafe or in another guest's folder."""
        path = self._sibling
        if path is not None and (path in ELSEWHERE.paths() or not _is_given(path.parent)):
            return places.place_beside(path, like=workspace)
        return None


def _in_place(
    found: Folder, place: Place, owner: Owner, workspace: Folder, *, made: bool = False
) -> PrivateFolder:
    """Returns a workspace's private folder that was opened in a place."""
    return PrivateFolder(
        found.fd,
        place.path / owner.key,
        needs_copies=not places.can_link(place, workspace),
        survives_restart=owner.mark.survives_restart,
        made=made,
    )


def _settle(workspace: Folder) -> None:
    """Forces the first change of a folder, at which an overlay gives it another identity."""
    with contextlib.suppress(OSError):
        os.fchmod(workspace.fd, stat.S_IMODE(os.fstat(workspace.fd).st_mode))


def _note_place(place: Place) -> Place:
    """Notes a place, so that later callers find it, even if they name another."""
    ELSEWHERE.add(place.path)
    return place


def _is_given(path: Path) -> bool:
    """Returns whether a folder is, or lies in, a workspace or a root of sessions."""
    above = (path, *path.parents)
    is_in_root = any(root in above for root in ROOTS.paths())
    return is_in_root or lies_in_session(path) or is_seen_whole(above)


def lies_in_session(path: Path) -> bool:
    """Returns whether a real path is, or lies in, the workspace of a session."""
    above = [
        Owner(str(each.parent), each.name, mark, mark, mark)
        for each in (path, *path.parents)
        if (mark := FileMark.at(each))
    ]
    for place in places.places():
        with place:
            for folder, owner in filter(None, (one.find(place) for one in above)):
                folder.close()
                if owner.session:
                    return True
    return False


def is_seen_whole(paths: Iterable[Path]) -> bool:
    """Returns whether a sandbox outside of sessions is open on one of the folders."""
    marks = [mark for path in paths if (mark := FileMark.at(path))]
    for place in places.places() if marks else ():
        with place:
            for name in filter(lambda name: name.startswith(_TEMPORARY), place.names()):
                with contextlib.suppress(OSError), place.enter(name) as folder:
                    owner = Owner.of(folder)
                    is_there = owner is not None and any(map(owner.mark.same, marks))
                    if is_there and is_used(folder):
                        return True
    return False


def _make(place: Place, owner: Owner) -> Folder:
    """Returns a new private folder; one of the same name, of another workspace, is set aside."""
    aside = f".new-{os.urandom(8).hex()}"
    made = place.enter(aside, make=True)
    with undoing(lambda: trees.remove_tree(place.path / aside)), undoing(made.close):
        made.write_record(RECORD, owner)
        if place.status(owner.key) is not None:
            if (there := owner.find(place)) is not None:  # another process was faster
                there[0].close()
                raise FileExistsError(errno.EEXIST, "it is there by now")
            _set_aside(place, owner.key)
        place.rename(aside, owner.key)
    return made


def _set_aside(place: Folder, key: str) -> str:
    """Renames a private folder so that it is not found; returns the new name, empty if missing."""
    aside = f"{_REMOVED}{os.urandom(8).hex()}"
    try:
        place.rename(key, aside)
    except FileNotFoundError:
        return ""
    return aside


@contextlib.contextmanager
def removing(path: Path) -> Iterator[None]:
    """Sets a private folder aside, removes it at the end, and puts it back if the block fails.

    Files that can't be removed stay for a sweep.
    """
    with Folder.open(path.parent) as place:
        aside = _set_aside(place, path.name)
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                if aside and place.status(path.name) is None:
                    place.rename(aside, path.name)
            raise
    with contextlib.suppress(OSError):
        if aside:
            _remove(path.with_name(aside))


def _remove(aside: Path) -> None:
    """Removes a private folder that was set aside.

    It tries again if a process that still has it open writes a last file there.
    """
    for left in reversed(range(_REMOVE_ATTEMPTS)):
        try:
            trees.remove_tree(aside)
            break
        except OSError as problem:
            if problem.errno != errno.ENOTEMPTY or not left:
                raise


def discard(path: Path) -> None:
    """Removes a private folder that is not in use, if there is one and it can be removed."""
    with contextlib.suppress(OSError), removing(path):
        pass


def signing_key(place: Path) -> bytes:
    """Returns the key that signs records in the private folders of a place; makes it if missing.

    A process that is confined to one private folder can't read it, so it can forge no such record.
    """
    with Folder.open(place) as folder:
        if folder.status(_KEY) is None:
            draft = f"{_KEY}-{os.urandom(8).hex()}"
            made = folder.open_regular(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(made, "wb") as file:
                file.write(os.urandom(_KEY_BYTES))
            if not take_name(folder.fd, draft, _KEY):  # another process was faster
                folder.remove(draft)
        return folder.read(_KEY, _KEY_BYTES)
