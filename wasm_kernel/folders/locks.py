"""A session's three locks: of the process that keeps its history, of the kernel that owns it, and
one shared by all its users.

One process at a time keeps a session's history. A kernel keeps it by its worker, and owns the
session while it sleeps, too. Any number of processes may use the session, such as a second kernel
on it, or a sandbox that has not begun yet; a process that removes it must be alone. The locks lie
in the session's private folder. A process that checks for users holds the lock of the folder
itself, since a lock can't be checked without being taken or lost for an instant.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.errors import SessionInUse
from wasm_kernel.folders.places import UPKEEP, state_subfolder, upkeep_name
from wasm_kernel.linux.folders import DescriptorOwner, Folder, closing_fd
from wasm_kernel.linux.locks import FileLock, try_lock, unlock, wait_lock

LOCK = "lock"
"""The file in the private folder that the keeper of the history has locked."""
OWNER = "owner"
"""The file in the private folder that the session's kernel has locked, with or without a worker."""
PRESENT = "present"
"""The file in the private folder on which every user of the workspace has a shared lock."""
HOLDER = "holder"
"""The file in the private folder with a record of the last keeper of the history (`Holder`)."""

SERVED = "service.json"
"""The file in the private folder of each session that a service has had."""

_SERVICES = ".services"  # a file of a root's upkeep; each living service has a shared lock on it
_HOLDER_BYTES = 4096
_LEAVING_SECONDS = 170.0  # for the worker of a process that has ended to write its state
_WAIT_SECONDS = 2.0  # a check has the lock for an instant, but its process may have to wait
_ASKING_SECONDS = 30.0  # the same, if a wrong answer would cost more
_ENDED = b"ended"  # in the owner's file, until the next keeper has read it
_REMOVAL_SECONDS = 30.0  # for another process to finish deleting the session
_OPEN = (
    "This session is open, in this process or in another one. Nothing was deleted. Close its "
    "sandbox, or shut its kernel down, and try again."
)


class Resume(str, Enum):
    """The modes of going on with the variables of an earlier process of a session."""

    NEVER = "never"
    CRASH = "crash"
    ALWAYS = "always"


class Holder(Struct, frozen=True):
    """A record of the last keeper of a history.

    Attributes:
        alive: It has not ended yet, or ended without releasing the lock.
        asleep: It ended so that another process of the same kernel goes on. If none does, the
            kernel has crashed since.
        anew: It asked the next keeper to discard the variables.
        forked: The session is a fork that has had no keeper yet.
        evicted: The reason why the history was removed since: `room` or `age`; empty if it was not.
    """

    alive: bool = False
    asleep: bool = False
    anew: bool = False
    forked: bool = False
    evicted: str = ""

    @classmethod
    def of(cls, private: Folder) -> Holder:
        """Returns the record in a private folder.

        An unreadable record counts as a crash: the machine may have stopped in the middle of it.
        """
        try:
            return private.read_record(HOLDER, cls, _HOLDER_BYTES)
        except FileNotFoundError:
            return cls()
        except OSError:
            return cls(alive=True)

    def write(self, private: Folder, *, sync: bool = False) -> None:
        """Writes the record in place of the earlier one; with `sync`, through to the disk."""
        private.write_record(HOLDER, self, sync=sync)


class HistoryLock:
    """A process's lock on the history of a session. The guest's thread owns it.

    `held` says whether this process has it; `found` is the record of the last holder.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._lock = FileLock(LOCK, folder)
        self._guard = threading.Lock()
        self.found = self._noted = Holder()
        self.held = self._is_settled = self._slept = self.is_elsewhere = False

    def acquire(
        self,
        is_left: Callable[[], bool] = lambda: False,
        on_wait: Callable[[float], None] = lambda seconds: None,
        *,
        is_owned: bool = False,
    ) -> bool:
        """Takes the lock; returns False if another living process has it, or owns the session.

        If it `is_left`, only the worker of a process that was killed has the lock. Its end is
        awaited then; `on_wait` gets the most seconds.

        With `is_owned`, the owner is this process's own kernel. Call `clear_requests` when the
        history is ready: until then, another process would find the record as this one did.
        """
        is_free = is_owned or not _has_owner(self._folder)
        self.held = is_free and self._lock.acquire(_WAIT_SECONDS)
        if is_free and not self.held and self._lock.is_elsewhere and is_left():
            on_wait(_LEAVING_SECONDS)
            self.held = self._lock.acquire(_LEAVING_SECONDS)
        self.is_elsewhere = not is_free or self._lock.is_elsewhere
        if self.held:
            found = self.found = self._noted = Holder.of(self._folder)
            self._slept = found.asleep and not _owner_has_ended(self._folder)
            self._write_note(alive=True)
        return self.held

    def clear_requests(self) -> None:
        """Clears the last holder's requests, which are done."""
        if self.held:
            self._write_note(anew=False, forked=False, evicted="", asleep=False)
            private = self._folder
            with suppress(OSError), closing_fd(private.open_regular(OWNER, os.O_RDWR)) as owner:
                os.ftruncate(owner, 0)  # the note of an owner that has ended
            self._is_settled = True

    def _write_note(self, **changes: bool | str) -> None:
        with self._guard:
            noted = replace(self._noted, **changes)
            if noted != self._noted:
                noted.write(self._folder)
                self._noted = noted

    def wants(self, resume: Resume) -> bool:
        """Returns whether to go on with the variables of an earlier process."""
        if not self.held or self.found.anew:
            return False
        left_for_us = self.found.alive or self.found.forked or self._slept
        return resume is Resume.ALWAYS or (resume is Resume.CRASH and left_for_us)

    def begin_anew(self) -> None:
        """Makes the next holder discard the variables in any `Resume` mode. Any thread."""
        if self.held:
            with contextlib.suppress(OSError):
                self._write_note(anew=True)

    def release(self, *, ended: bool = True, asleep: bool = False) -> None:
        """Releases the lock. Safe to call twice.

        With `ended`, the record says that the history on disk is complete, and whether its keeper
        is only `asleep`. Without it, or before `clear_requests`, the next holder finds it as after
        a crash.
        """
        if self.held:
            self.held = False
            if ended and self._is_settled:
                with contextlib.suppress(OSError):
                    self._write_note(alive=False, asleep=asleep)
            self._lock.release()


class OwnerLock(DescriptorOwner):
    """A kernel's lock on its session, which it keeps while it has no worker. Any thread may use it.

    It has one open file for it: a confined kernel can't open another.
    """

    def __init__(self, private: Folder) -> None:
        self.fd = private.open_regular(OWNER, os.O_RDWR | os.O_CREAT)

    def acquire(self) -> bool:
        """Takes the lock, if no other kernel owns the session; returns whether this one does."""
        with suppress(OSError, ValueError):  # it is closed; or there are no locks, so no history
            return wait_lock(self.fd, _WAIT_SECONDS)
        return False

    def note_ended(self) -> None:
        """Notes that a kernel that sleeps has ended, and not crashed."""
        with suppress(OSError):  # the next kernel finds it as after a crash
            os.pwrite(self.fd, _ENDED, 0)


def _has_owner(private: Folder) -> bool:
    try:
        with closing_fd(private.open_regular(OWNER, os.O_RDWR)) as owner:
            return not wait_lock(owner, _WAIT_SECONDS)
    except OSError:  # no kernel has had this folder, or its file system has no locks
        return False


def _owner_has_ended(private: Folder) -> bool:
    with suppress(OSError), closing_fd(private.open_regular(OWNER, os.O_RDONLY)) as owner:
        return os.pread(owner, len(_ENDED), 0) == _ENDED
    return False


def note_forked(private: Folder) -> None:
    """Notes that the session of a private folder is a fork without a holder yet."""
    Holder(forked=True).write(private)


def note_evicted(private: Folder, why: str) -> None:
    """Notes that a session's history is about to be removed; call it `exclusively`."""
    replace(Holder.of(private), evicted=why).write(private, sync=True)


class _Share:
    """A share of a shared lock. Any thread may release it."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._guard = threading.Lock()
        self._descriptor = -1

    def release(self) -> None:
        """Releases the share. Safe to call twice."""
        with self._guard:
            descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            if os.getpid() == self._process:  # in a forked child, the lock is the parent's
                unlock(descriptor)
            os.close(descriptor)


class PresenceLock(_Share):
    """One user's share of the lock that tells other processes that a session is in use.

    The private folder must stay open as long as this is held; check afterwards that it still has
    its name. Raises `SessionInUse` if another process takes too long to delete the session.
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
        """Returns whether the session has no other user, here or in another process."""
        with self._guard, ExitStack() as held:
            try:
                if self._descriptor < 0 or not _asking(self._private, held):
                    return False
                only = try_lock(self._descriptor)  # a failed try releases the share
                wait_lock(self._descriptor, _REMOVAL_SECONDS, shared=True)
            except OSError:
                return False  # a file system without locks: there may be other users
            return only

    def is_left(self) -> bool:
        """Returns whether only the worker of an ended process still uses the session."""
        history = FileLock(LOCK, self._private)
        with suppress(OSError):  # it is not a file: the worker reports it
            if history.acquire():
                history.release()
            return history.is_elsewhere and self.is_only()
        return False


def _asking(private: Folder, held: ExitStack) -> bool:
    """Keeps others from checking for users until `held` ends; False if one takes too long."""
    asking = held.enter_context(private.enter())  # a descriptor of its own: the lock ends with it
    return wait_lock(asking.fd, _ASKING_SECONDS)


def _is_free(
    private: Folder, held: ExitStack, flags: int, names: Sequence[str] = (PRESENT, LOCK)
) -> bool:
    """Locks a session until `held` ends; returns False if it is in use.

    Its files are opened with `flags`; missing ones are skipped.
    """
    if not _asking(private, held):
        return False
    for name in names:
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
def exclusively(private: Folder, why_not: str = _OPEN) -> Iterator[None]:
    """Keeps all others from using a session for a block; raises `SessionInUse`, with `why_not`."""
    with ExitStack() as held:
        if not _is_free(private, held, os.O_RDWR | os.O_CREAT):
            raise SessionInUse(why_not)
        yield


def is_used(private: Folder) -> bool:
    """Returns whether the session is in use now. Makes and changes nothing."""
    with ExitStack() as held:
        return not _is_free(private, held, os.O_RDWR)


def has_users(private: Folder) -> bool:
    """Returns whether the session is in use now, by more than the worker of an ended process."""
    with ExitStack() as held:
        return not _is_free(private, held, os.O_RDWR, (PRESENT,))


class ServiceLock(_Share):
    """One service's share of the lock on a root (a real path) whose sessions it manages.

    The sessions may be asleep, so that no process has them open.
    """

    def __init__(self, root: Path) -> None:
        super().__init__()
        if (place := state_subfolder(UPKEEP, make=True)) is None:
            return  # there is no upkeep without a state folder
        with place, contextlib.suppress(OSError):
            name = upkeep_name(root) + _SERVICES
            self._descriptor = place.open_regular(name, os.O_RDWR | os.O_CREAT)
            wait_lock(self._descriptor, _WAIT_SECONDS, shared=True)


def is_served(root: Path) -> bool:
    """Returns whether a living service manages sessions in a root, given by its real path."""
    with ExitStack() as held, contextlib.suppress(OSError):
        if (place := state_subfolder(UPKEEP)) is not None:
            held.enter_context(place)
            descriptor = place.open_regular(upkeep_name(root) + _SERVICES, os.O_RDWR)
            held.callback(os.close, descriptor)
            return not try_lock(descriptor)
    return False
