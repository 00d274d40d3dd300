"""A session's two locks: who keeps its history, and whether anybody uses it at all.

One process at a time keeps a session's history. Any number of them may use the session: a second
kernel on it, a sandbox that has not begun yet; only whoever removes it has it alone. Both locks lie
in the session's private folder. Whoever asks about users holds the lock of the folder itself
meanwhile, as a lock can't be asked about without being taken or lost for an instant.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.errors import SessionInUse
from wasm_kernel.folders.places import UPKEEP, in_state, upkeep_name
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.locks import FileLock, try_lock, unlock, wait_lock

LOCK = "lock"
"""The file in the private folder that whoever keeps the history has locked."""
PRESENT = "present"
"""The file in the private folder that whoever uses the workspace has locked, with others."""
HOLDER = "holder"
"""The file in the private folder in which a keeper of the history leaves word for the next one."""

SERVED = "service.json"
"""The file in the private folder of each session that a service has had."""

_SERVICES = ".services"  # of a root's upkeep; each living service has it locked, with others
_HOLDER_BYTES = 4096
_WAIT_SECONDS = 0.1  # who looks whether a session is alive has the lock for an instant
_REMOVAL_SECONDS = 30.0  # for another process to finish deleting the session


class Resume(str, Enum):
    """The occasions on which a session goes on with the variables of an earlier process."""

    NEVER = "never"
    CRASH = "crash"
    ALWAYS = "always"

    @classmethod
    def checked(cls, resume: Resume | str) -> Resume:
        """Returns the occasion of a name; `ValueError` lists those that there are."""
        try:
            return cls(resume)
        except ValueError:
            names = ", ".join(repr(each.value) for each in cls)
            raise ValueError(f"resume is one of {names}, not {resume!r}") from None


class Holder(Struct, frozen=True):
    """The facts known about the last keeper of a history.

    Attributes:
        alive: It has not ended yet, or ended without giving the lock back.
        anew: It asked for the next one to begin anew.
        forked: There was none yet since another session was forked off into this one.
        evicted: Why the history was removed since: `room` or `age`; empty if it was not.
    """

    alive: bool = False
    anew: bool = False
    forked: bool = False
    evicted: str = ""

    @classmethod
    def of(cls, private: Folder) -> Holder:
        """Returns what a private folder says.

        What can't be read was perhaps cut short with the machine: that is taken for a crash.
        """
        try:
            return msgspec.json.decode(private.read(HOLDER, _HOLDER_BYTES), type=cls)
        except FileNotFoundError:
            return cls()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return cls(alive=True)

    def write(self, private: Folder, *, sync: bool = False) -> None:
        """Writes it down, on the disk itself if `sync`; what lay in its place is gone."""
        with private.replacing(HOLDER, sync=sync) as file:
            file.write(msgspec.json.encode(self))


class HistoryLock:
    """A process's lock on the history of a session. The guest's thread owns it.

    `held` says whether this process has it; the rest is what the last holder left, as in `Holder`.
    """

    def __init__(self, folder: Folder) -> None:
        self.evicted = ""
        self._folder = folder
        self._lock = FileLock(LOCK, folder)
        self._guard = threading.Lock()
        self._noted = Holder()
        self.held = self.crashed = self.forked = self._begins_anew = self._is_settled = False

    def take(self) -> bool:
        """Takes the lock; returns False if another living process has it.

        Call `settled` when the history is what it is to be: until then, another start would find
        the folder as this one did.
        """
        self.held = self._lock.acquire(_WAIT_SECONDS)
        if self.held:
            found = self._noted = Holder.of(self._folder)
            self.crashed, self.forked, self._begins_anew = found.alive, found.forked, found.anew
            self.evicted = found.evicted
            self._note(alive=True)
        return self.held

    def settled(self) -> None:
        """Forgets what the last holder asked for, as it was done."""
        if self.held:
            self._note(anew=False, forked=False, evicted="")
            self._is_settled = True

    def _note(self, **changes: bool | str) -> None:
        with self._guard:
            noted = replace(self._noted, **changes)
            if noted != self._noted:
                noted.write(self._folder)
                self._noted = noted

    def wants(self, resume: Resume) -> bool:
        """Returns whether what an earlier process left is to be used."""
        if not self.held or self._begins_anew:
            return False
        left_for_us = self.crashed or self.forked
        return resume is Resume.ALWAYS or (resume is Resume.CRASH and left_for_us)

    def begin_anew(self) -> None:
        """Lets the next holder begin anew, whatever it is told. Any thread."""
        if self.held:
            with contextlib.suppress(OSError):
                self._note(anew=True)

    def release(self, *, ended: bool = True) -> None:
        """Gives the lock back. Safe to call twice.

        With `ended`, all that is on disk says that it is complete. Without, or if the history was
        never `settled`, the next holder finds it as after a crash.
        """
        if self.held:
            self.held = False
            if ended and self._is_settled:
                with contextlib.suppress(OSError):
                    self._note(alive=False)
            self._lock.release()


def note_forked(private: Folder) -> None:
    """Notes that the session of a private folder was forked off: it waits for its holder."""
    Holder(forked=True).write(private)


def note_evicted(private: Folder, why: str) -> None:
    """Notes that a session's history is about to be removed; call it `exclusively`."""
    replace(Holder.of(private), evicted=why).write(private, sync=True)


def begins_anew(private: Folder) -> bool:
    """Returns whether whoever takes a session's history next is to begin anew."""
    return Holder.of(private).anew


class _Share:
    """A share of a lock that others have shares of, too. Any thread may release it."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._descriptor = -1

    def release(self) -> None:
        """Gives the share back. Safe to call twice."""
        with self._guard:
            descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            if os.getpid() == self._process:  # in a forked child, the lock is the parent's
                unlock(descriptor)
            os.close(descriptor)


class PresenceLock(_Share):
    """One user's share of the lock that tells others that a session is in use.

    The private folder stays open as long as this is held; look afterwards whether it is still
    there. Raises `SessionInUse` if another process deletes the session
    for too long.
    """

    def __init__(self, private: Folder) -> None:
        super().__init__()
        self._private = private
        self._descriptor = private.open_regular(PRESENT, os.O_RDWR | os.O_CREAT)
        try:
            shared = wait_lock(self._descriptor, _REMOVAL_SECONDS, shared=True)
        except OSError:
            shared = True  # a file system without locks: removers refuse such a session
        if not shared:
            os.close(self._descriptor)
            raise SessionInUse(
                "Another process is deleting this session. Nothing was opened. Try again when it "
                "is done, or take another session id."
            )

    def is_only(self) -> bool:
        """Returns whether nobody else uses the session, here or in another process."""
        with self._guard, ExitStack() as held:
            try:
                if self._descriptor < 0 or not _asking(self._private, held):
                    return False
                only = try_lock(self._descriptor)  # a failed try has given the share back
                wait_lock(self._descriptor, _REMOVAL_SECONDS, shared=True)
            except OSError:
                return False  # a file system without locks: it can't be known
            return only


def _asking(private: Folder, held: ExitStack) -> bool:
    """Keeps others from asking about users until `held` ends; False if one takes too long."""
    asking = held.enter_context(private.enter())  # opened once more: the lock ends with it
    return wait_lock(asking.fd, _WAIT_SECONDS)


def _is_free(private: Folder, held: ExitStack, flags: int) -> bool:
    """Locks a session for as long as `held` lasts; False if somebody uses it.

    Its files are opened with `flags`; those that are missing are passed over.
    """
    if not _asking(private, held):
        return False
    for name in (PRESENT, LOCK):
        try:
            descriptor = private.open_regular(name, flags)
        except FileNotFoundError:
            continue
        held.callback(os.close, descriptor)
        if not try_lock(descriptor):
            return False
        held.callback(unlock, descriptor)
    return True


@contextmanager
def exclusively(private: Folder) -> Iterator[None]:
    """Keeps everybody from using a session for a block; `SessionInUse` if somebody does."""
    with ExitStack() as held:
        if not _is_free(private, held, os.O_RDWR | os.O_CREAT):
            raise SessionInUse(
                "This session is open, in this process or in another one. Nothing was deleted. "
                "Close its sandbox, or shut its kernel down, and try again."
            )
        yield


def is_used(private: Folder) -> bool:
    """Returns whether somebody uses the session now. Nothing is made or changed."""
    with ExitStack() as held:
        return not _is_free(private, held, os.O_RDWR)


class ServiceLock(_Share):
    """One service's share of the lock on a root (a real path) whose sessions it looks after.

    They may be asleep, so that nobody has them open.
    """

    def __init__(self, root: Path) -> None:
        super().__init__()
        if (place := in_state(UPKEEP, make=True)) is None:
            return  # nobody does upkeep then
        with place, contextlib.suppress(OSError):
            name = upkeep_name(root) + _SERVICES
            self._descriptor = place.open_regular(name, os.O_RDWR | os.O_CREAT)
            wait_lock(self._descriptor, _WAIT_SECONDS, shared=True)


def is_served(root: Path) -> bool:
    """Returns whether a living service looks after sessions in a root, by its real path."""
    with ExitStack() as held, contextlib.suppress(OSError):
        if (place := in_state(UPKEEP)) is not None:
            held.enter_context(place)
            descriptor = place.open_regular(upkeep_name(root) + _SERVICES, os.O_RDWR)
            held.callback(os.close, descriptor)
            return not try_lock(descriptor)
    return False
