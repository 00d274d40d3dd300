"""The places that private folders lie in, and which of them a workspace's is found or made in.

In this order: the folder that the user named; the user's state folder, if files can be linked
between it and the workspace; a folder beside the root, if it is safe there; the state folder, with
copies in place of links. One that is there already is found in any of them, also in those that
were used before: the state folder remembers them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from msgspec import Struct

from wasm_kernel.folders.private import Owner, Place, PrivateFolderError, owner_of
from wasm_kernel.folders.state_folder import (
    ELSEWHERE,
    OTHERS_WRITE,
    ROOTS,
    if_own,
    in_state,
    note,
    remembered,
    state_folder,
)
from wasm_kernel.linux.files import FileMark
from wasm_kernel.linux.folders import Folder, real_path

_NAME = "wasm-kernel"
_OWN = 0o700
_ATTEMPTS = 16
_HOMELESS = "this user has no folder for state"
_NOWHERE = (
    "There is no place for the private state of this workspace ({why}). Nothing was opened. Name a "
    "folder of your own with private_root, outside of every workspace."
)


def named(private_root: Path | str) -> Path:
    """Returns the absolute path of the folder for private folders that a user named.

    Raises:
        PlantedLinkError: it is relative, and leads through a link.
    """
    path = Path(private_root).expanduser()
    return path if path.is_absolute() else real_path(path)


def beside(root: Path) -> Path:
    """Returns the folder beside a root that may hold private folders."""
    return root.with_name(f".{root.name}.{_NAME}")


class PrivateFolder(Struct, frozen=True):
    """The private folder of one workspace.

    Attributes:
        folder: It, open; whoever has it closes it.
        path: Its real path.
        far: Whether it lies in another file system than the workspace.
        made: Whether it was made just now.
        lasting: Whether it can be told tomorrow that it is this very workspace's.
        of_session: Whether the workspace was a session's before it was opened now.
    """

    folder: Folder
    path: Path
    far: bool
    made: bool
    lasting: bool
    of_session: bool = False

    @property
    def in_place(self) -> bool:
        """True if it still has its name, so that others find it."""
        try:
            there = self.path.lstat()
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self.folder.fd))


class PrivateFolders:
    """The private folders of the workspaces in one root. Any thread may use it.

    Args:
        root: The real path of the root of the workspaces.
        private_root: The folder that holds them, if the user named one.
        lone: The name of a workspace outside of sessions: private folders are made beside itself,
            and not beside its root, which may be anything.
    """

    def __init__(
        self, root: Path, private_root: Path | str | None = None, *, lone: str = ""
    ) -> None:
        self.root = root
        roots = (root / lone, root) if lone else (root,)
        self._siblings = [beside(path) for path in roots if path.name]
        self._lone = bool(lone)
        self._named = None if private_root is None else named(private_root)

    def find(self, name: str, workspace: Folder) -> PrivateFolder | None:
        """Returns the private folder of a workspace; None if it has none. Nothing is made.

        Args:
            name: The workspace's name in the root.
            workspace: The workspace.

        Raises:
            OSError: it can't be told.
        """
        return self._find(self._owner(name, workspace), workspace)

    def _find(
        self, owner: Owner, workspace: Folder, *, opened: bool = False
    ) -> PrivateFolder | None:
        for place in self._known(workspace):
            with contextlib.closing(place):
                found = place.find(owner, opened=opened)
                if found is not None:
                    (folder, known), path = found, place.path / owner.key
                    lasting = owner.mark.lasting
                    return PrivateFolder(folder, path, place.far, False, lasting, known.session)
        return None

    def open(self, name: str, workspace: Folder) -> PrivateFolder:
        """Returns the private folder of a workspace, which is made if it does not exist.

        Args:
            name: As for `find`.
            workspace: The same.

        Raises:
            PrivateFolderError: there is no safe place for it.
            OSError: it can't be opened or made.
        """
        opened = self._open(name, workspace)
        if not self._lone:
            note(ROOTS, self.root)
        return opened

    def _open(self, name: str, workspace: Folder) -> PrivateFolder:
        for left in reversed(range(_ATTEMPTS)):
            found = self._find(self._owner(name, workspace), workspace, opened=True)
            if found is not None:
                return found
            try:
                return self._make(name, workspace)
            except OSError as problem:
                if problem.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not left:
                    raise
        raise AssertionError("there are attempts")

    def _make(self, name: str, workspace: Folder) -> PrivateFolder:
        with contextlib.suppress(OSError):
            # an overlay gives a folder another identity with its first change: have that now
            os.fchmod(workspace.fd, stat.S_IMODE(os.fstat(workspace.fd).st_mode))
        owner = self._owner(name, workspace)
        with contextlib.closing(self._place(workspace)) as place:
            made = place.make(owner)
            return PrivateFolder(made, place.path / owner.key, place.far, True, owner.mark.lasting)

    def _owner(self, name: str, workspace: Folder) -> Owner:
        mark = FileMark.of(workspace.fd)
        with Folder.open(self.root) as root, Folder.open(self.root.parent) as above:
            root_mark, above_mark = FileMark.of(root.fd), FileMark.of(above.fd)
        return Owner(str(self.root), name, mark, root_mark, above_mark, not self._lone)

    def _known(self, workspace: Folder) -> Iterator[Place]:
        """The places that are there, the likeliest first; whoever gets one closes it."""
        seen = set()
        ways: list[Callable[[], Place | None]] = [in_state]
        ways += [partial(_beside, path) for path in self._siblings]
        if self._named is not None:
            ways.insert(0, partial(_own_place, self._named))
        for opened in ways:
            place = opened()
            if place is not None:
                seen.add(place.path)
                yield _measured(place, workspace)
        for path in remembered():
            place = _own_place(path) if path not in seen else None
            if place is not None:
                yield _measured(place, workspace)

    def _place(self, workspace: Folder) -> Place:
        """Returns the place that a new private folder is made in.

        Raises:
            PrivateFolderError: there is no such place.
        """
        if self._named is not None:
            return _noted(_named(self._named, workspace))
        state = in_state(make=True)
        if state is not None and _linked(state.folder, workspace):
            return state
        sibling = self._sibling(workspace)
        if sibling is not None:
            if state is not None:
                state.close()
            return _noted(sibling)
        if state is None:
            raise PrivateFolderError(_NOWHERE.format(why=_HOMELESS))
        state.far = True
        return state

    def _sibling(self, workspace: Folder) -> Place | None:
        """Returns the place beside the root, if that is safe, and lies in no other's folder."""
        for path in self._siblings[:1]:
            if path in remembered() or not _is_given(path.parent):
                return _beside(path, make=True, like=workspace)
        return None


def _is_given(path: Path) -> bool:
    """Returns whether a folder is, or lies in, a workspace or a root of sessions."""
    given: dict[int, list[FileMark]] = {}
    for place in places():
        with contextlib.closing(place):
            for name in place.folder.names():
                with contextlib.suppress(OSError), place.folder.enter(name) as folder:
                    owner = owner_of(folder)
                    if owner is not None:
                        marks = [owner.mark, owner.root_mark] if owner.session else [owner.mark]
                        for mark in marks:
                            given.setdefault(mark.number, []).append(mark)
    for above in (path, *path.parents):
        with contextlib.suppress(OSError), Folder.open(above) as folder:
            own = FileMark.of(folder.fd)
            if any(own.same(mark) for mark in given.get(own.number, ())):
                return True
    return False


def expected(root: Path) -> tuple[Path, bool]:
    """Returns where private folders of new sessions come to lie, for people; nothing is made.

    Args:
        root: The root of the sessions, which need not be there.

    Returns:
        The place, and whether files are copied to it and not linked.

    Raises:
        PrivateFolderError: there is no such place.
    """
    state = state_folder()
    with Folder.open(_nearest(root)) as like:
        if state is not None:
            with Folder.open(_nearest(state)) as there:
                if _linked(there, like):
                    return state, False
        with Folder.open(_nearest(root.parent)) as above:
            if _is_safe(above) and _linked(above, like):
                return beside(root), False
    if state is None:
        raise PrivateFolderError(_NOWHERE.format(why=_HOMELESS))
    return state, True


def _nearest(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.is_dir())


def _is_safe(above: Folder) -> bool:
    """Returns whether nobody else can replace what lies in a folder."""
    found = os.fstat(above.fd)
    return found.st_uid == os.geteuid() or bool(found.st_mode & stat.S_ISVTX)


@contextlib.contextmanager
def removing(path: Path) -> Iterator[None]:
    """Nobody finds a private folder from here on; at the end it is removed, or back if that failed.

    What can't be removed stays for a sweep.

    Raises:
        OSError: it can't be set aside.
    """
    with contextlib.closing(Place(path.parent, Folder.open(path.parent))) as place:
        aside = place.set_aside(path.name)
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                if aside and place.folder.status(path.name) is None:
                    place.folder.rename(aside, path.name)
            raise
        with contextlib.suppress(OSError):
            if aside:
                place.remove(aside)


def discard(path: Path) -> None:
    """Removes a private folder that nobody uses; nothing happens if it does not exist.

    Raises:
        OSError: it can't be set aside.
    """
    with removing(path):
        pass


def _named(path: Path, workspace: Folder) -> Place:
    try:
        path.mkdir(mode=_OWN, parents=True, exist_ok=True)
    except OSError as problem:
        why = f"private_root can't be made: {os.strerror(problem.errno or 0)}"
        raise PrivateFolderError(_NOWHERE.format(why=why)) from problem
    place = _own_place(path)
    if place is None:
        why = "private_root is not a folder of this user that nobody else can write to"
        raise PrivateFolderError(_NOWHERE.format(why=why))
    return _measured(place, workspace)


def _measured(place: Place, workspace: Folder) -> Place:
    place.far = not _linked(place.folder, workspace)
    return place


def _own_place(path: Path) -> Place | None:
    """A folder at a path that somebody trusted chose; None if others may change it."""
    try:
        real = path.resolve()
        folder = Folder.open(real)
    except (OSError, RuntimeError):
        return None
    return if_own(real, folder, OTHERS_WRITE)


def _beside(path: Path, *, make: bool = False, like: Folder | None = None) -> Place | None:
    """A folder beside a root, if nobody else can have put it there or can change it.

    Args:
        path: The folder.
        make: Whether it is made.
        like: A folder that files must be linkable with, or it is not made.
    """
    try:
        with Folder.open(path.parent) as above:
            if not _is_safe(above):
                return None
            if like is not None and not _linked(above, like):
                return None
            return if_own(path, above.enter(path.name, make=make), 0o077)
    except OSError:
        return None


def _linked(one: Folder, other: Folder) -> bool:
    """Returns whether a file in one folder can get a name in another: same mount of one system."""
    same = os.fstat(one.fd).st_dev == os.fstat(other.fd).st_dev
    return same and _mount(one.fd) == _mount(other.fd)


def _mount(fd: int) -> str:
    """The number of the mount that a folder lies in: no link crosses from one to another."""
    try:
        told = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="ascii")
    except OSError:
        return ""
    return next((line for line in told.splitlines() if line.startswith("mnt_id:")), "")


def places() -> Iterator[Place]:
    """The places that hold private folders of this user; whoever gets one closes it."""
    state = in_state()
    if state is not None:
        yield state
    for path in remembered():
        place = _own_place(path)
        if place is not None:
            yield place


def _noted(place: Place) -> Place:
    """Writes down a place, so that it is found whatever a later caller names."""
    note(ELSEWHERE, place.path)
    return place
