"""`GuestRunner`: starts a sandbox's guest, keeps its state, and restarts it when it is lost.

Everything here runs on the sandbox's own thread; `clock` and `comms` are for other threads, too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from msgspec import Struct

from wasm_kernel.engine.clock import NO_SIGNALS
from wasm_kernel.engine.flavours import FUEL, UNCHECKED, Flavour
from wasm_kernel.engine.streams import OverflowFiles
from wasm_kernel.errors import GuestCrashed, GuestStopped, HistoryError
from wasm_kernel.events import Notices
from wasm_kernel.execution.commands import HostCommands
from wasm_kernel.execution.descriptors import TO_START, make_room
from wasm_kernel.execution.functions import as_request
from wasm_kernel.execution.interfaces import NUMBERS_MOST, NoListener, TravelRequest
from wasm_kernel.execution.turn import Turn, TurnHost
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.folders.locks import Resume
from wasm_kernel.guests import protocol
from wasm_kernel.guests.base import Guest, GuestLanguage, GuestSetup
from wasm_kernel.linux.broker import Broker
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import Ran, Travelled
from wasm_kernel.state import texts
from wasm_kernel.state.asked import AskedMemory
from wasm_kernel.state.commits import Unreadable
from wasm_kernel.state.file_restore import RestoredFiles
from wasm_kernel.state.parked import NotMoved
from wasm_kernel.state.session_state import SessionState
from wasm_kernel.state.tree import TravelPlan
from wasm_kernel.wasi_files.changes import FileChanges
from wasm_kernel.wasi_files.operations import FileOperations
from wasm_kernel.wasi_files.preopens import covered_by
from wasm_kernel.wasi_files.quota import Quota

_LOG = logging.getLogger("wasm_kernel.execution")
_UNTAKEN = "The state could not be kept, so it was given no name. The next cell says why."
START_SECONDS = 120.0  # for a guest to resume its state, which may lie on a slow disk


class RestingGuest(Struct, frozen=True):
    """A guest whose memory was freed; the head's commit holds it.

    Its files stay open; its monotonic clock is `clock_ahead` nanoseconds ahead of the host's.
    """

    files: FileOperations
    clock_ahead: int


class GuestRunner(TurnHost):
    """The guest of one sandbox, and the parts that outlive a guest.

    `unkept` counts the cells whose commit `keep` is about to take.
    """

    def __init__(
        self,
        language: GuestLanguage,
        folders: SandboxFolders,
        policy: ExecutionPolicy,
        *,
        resume: Resume,
        broker: Broker,
        notices: Notices,
        count: int = 1,
    ) -> None:
        self.state = SessionState(folders, policy, resume=resume, notices=notices)
        overflow = OverflowFiles(folders.app.folder, policy.text_file_bytes)
        super().__init__(policy, HostCommands(self.state, language, broker), overflow, count)
        self.commands.travel.has_network = policy.reaches_out
        self.language, self.folders = language, folders
        self.changes = FileChanges(folders.app)
        self._guest: Guest | None = None
        self._resting: RestingGuest | None = None
        self._keeping: Callable[[], bool] | None = None
        self.unkept = 0

    def open(self) -> None:
        """Makes the guest ready for its first cell."""
        make_room(self.policy, TO_START)
        self.language.prepare(self._flavour, lambda text: None)
        self.state.open(self.language.images())
        if self.next_count > self.state.tree.next_count:  # a cell's state was lost
            self.state.use_count(self.next_count)
        self.start_guest()

    def ensure_guest(self) -> None:
        """Starts a guest if this runner has none: its guest rests, or an earlier start failed.

        A guest with quickly compiled code goes on, with the same variables, in optimised code once
        that has been compiled.
        """
        if self._guest is None:
            if self._resting is None or not self._go_on(self._resting):
                self.start_guest()
        elif self._guest.flavour is not self._flavour and self.state.catch_up(self._guest.instance):
            self.close_guest(keep=True)
            self.start_guest()
            _LOG.debug("the guest goes on in code of the flavour %s", self.guest.flavour.name)

    def close(self) -> None:
        """Closes the guest, writes the rest of its state, and closes the folders."""
        with ExitStack() as ending:  # each is called even if those before it fail
            for each in (self.folders.close, self.state.close, self.close_guest):
                ending.callback(each)
            if self._guest is not None:
                self.state.catch_up(self._guest.instance)

    def rest(self) -> bool:
        """Frees the guest's memory, if all of it is on disk; returns True if there is none left.

        Nothing is lost: between two turns a guest's state is its memory, and its files stay open.
        """
        if not self.is_on_disk():
            return self._guest is None
        files, instance = self.guest.files, self.guest.instance
        self._resting = RestingGuest(files, instance.monotonic() - time.monotonic_ns())
        self.state.detach()
        instance.close()
        self._guest = None
        return True

    def _go_on(self, resting: RestingGuest) -> bool:
        """Starts a guest from a resting one's state; returns False if that can't be read."""
        self._resting = None
        try:
            guest = self._guest = self.language.start(self._setup(resting))
            self.state.attach(guest.instance, guest.files, guest.heap, reopen=False)
            self._tell_facts(guest)
        except BaseException as problem:
            resting.files.close()
            self.close_guest()
            if isinstance(problem, Unreadable | GuestStopped):
                return False
            raise
        return True

    def close_guest(self, *, keep: bool = False) -> None:
        """Closes the guest, if there is one.

        `keep` parks its memory for the next guest, which needs nearly the same memory soon.
        """
        if self._resting is not None:
            self._resting.files.close()
            self._resting = None
        if self._guest is not None:
            self.state.detach(keep=keep)
            self._guest.close()
            self._guest = None

    def is_on_disk(self) -> bool:
        """Returns whether another guest could go on; a deterministic guest's clock would differ."""
        return not (self._guest is None or self.policy.deterministic) and self.state.is_kept

    @property
    def _flavour(self) -> Flavour:
        best = FUEL if self.policy.metered else UNCHECKED
        # a first session imports more modules itself, and so draws other random numbers
        return best if self.policy.deterministic else self.language.code_for(best)

    @property
    def is_before_cell(self) -> bool:
        """True while the guest starts, or has a cell to run and has not asked for it. Any thread.

        If the guest does not end then, no guest runs in this state.
        """
        if (turn := self.turn) is None:
            return False
        return turn.is_start or (turn.text is not None and not turn.request_taken)

    @property
    def guest(self) -> Guest:
        """The guest; `GuestCrashed` if there is none."""
        if self._guest is None:
            raise GuestCrashed("no guest")
        return self._guest

    @property
    def memory_bytes(self) -> int:
        """The size of the guest's memory; 0 if there is no guest."""
        return self._guest.instance.memory.size if self._guest is not None else 0

    @property
    def history_states(self) -> int:
        """The number of states that memory can be brought back to."""
        return self.state.states + self.unkept

    def ask_at(
        self, commit_ids: Iterable[int], request: Mapping[str, Any], seconds: float
    ) -> Iterator[Mapping[str, Any]]:
        """Yields the answers of a second guest, which has the memory of one commit after the other.

        Raises `GuestStopped` if it does not answer in time, and the errors of `AskedMemory`.
        """
        guest = self.language.start(self._setup())
        memory = AskedMemory(self.state.history, self.state.image, guest.instance)
        with closing(memory), closing(guest):
            for commit_id in commit_ids:
                memory.go_to(commit_id)
                turn = Turn(request, NoListener(), self)
                self.clock.arm(guest.signals, seconds, self.policy.grace_seconds, begins=True)
                turn.drive(guest)
                yield turn.reply or {}

    def plan_and_travel(self, asked: TravelRequest) -> Travelled:
        """Plans a travel (`SessionState.plan`) and makes it, or raises `TravelError`."""
        travel = self.state.plan(asked.how, asked.cells, asked.where, files=asked.files)
        restored = self.travel(travel)
        labels = tuple(commit.label for commit in travel.cells)
        missed = texts.reasons(restored)
        left = tuple(covered_by(path) or path for path in restored.left or ())
        return Travelled(labels, tuple(restored.back), tuple(restored.removed), missed, left)

    def travel(self, travel: TravelPlan) -> RestoredFiles:
        """Moves memory to a travel's target; execution counts still go up.

        Returns the restored files, or those that stay as they are.
        """
        self.state.travel(travel)
        self.close_guest(keep=True)
        restored = self.state.restore_files(travel, self.changes)
        self.start_guest()
        return restored

    def use_number(self, number: int) -> None:
        """Notes that a cell's number was used, so that no later cell gets it."""
        self.next_count = min(max(self.next_count, number + 1), NUMBERS_MOST)

    def keep_later(self, turn: Turn, cell: int, ran: Callable[[], Ran]) -> None:
        """Lets `keep` commit a turn's changes to memory, as those of the cell with this number.

        `keep` calls `ran`, which returns how the cell ran.
        """
        self.unkept = int(turn.cell.store_history)
        commit = partial(
            self.state.commit,
            self.guest.instance,
            cell=cell,
            count=self.next_count,
            code=turn.cell.code,
            counted=turn.cell.store_history,
        )
        self._keeping = lambda: commit(ran=ran())

    def keep(self) -> bool:
        """Commits the effects of the last cell, unless that was done; returns False if it fails."""
        try:
            return self._keeping is None or self._keeping()
        finally:
            self._keeping, self.unkept = None, 0

    @property
    def is_keeping(self) -> bool:
        """True until `keep` has taken a commit, which may have to wait for the disk."""
        return self._keeping is not None

    def name(self, name: str) -> None:
        """Names the current state of memory, like `SessionState.name`."""
        if not self.state.catch_up(self.guest.instance):
            raise HistoryError(_UNTAKEN)
        self.state.name(name)

    def wait_saved(self) -> SessionState:
        """Commits all changes of memory, waits for the disk, and returns the state.

        Raises `ForkError` if memory can't be committed.
        """
        self.state.wait_saved(self.guest.instance)
        return self.state

    def start_guest(self) -> None:
        """Starts a new instance with the state of the head, or at the beginning.

        If no guest starts in a state, tries the one before it, then a new beginning.
        """
        for last in (False, True, True):
            self._attach()
            self.next_count = max(self.next_count, self.state.tree.next_count)
            if (head := self.state.head) is None:
                break
            try:
                self._resume()
            except GuestStopped as problem:
                self.close_guest()
                if self.clock.closed:
                    raise
                self.state.leave_unstartable_head(head, problem, last=last)
            else:
                return
        self.state.is_untried = False
        self._send_start(self.guest)
        self.state.commit(self.guest.instance, cell=0, count=self.next_count, code="")
        self.comms.sync({})

    def _resume(self) -> None:
        """Tells an instance at a commit the facts that are not in its memory."""
        self.comms.out_of_sync = True
        reseed = self.state.tree.has_parents_seeds
        self._tell_facts(self.guest, reseed=reseed)
        self.state.is_untried = False
        if reseed:
            self.state.commit_between(self.guest.instance, reseeded=True)

    def _tell_facts(self, guest: Guest, *, reseed: bool = False) -> None:
        """Tells a guest the facts that no commit holds, such as environment variables."""
        if reseed or self.policy.env or self.commands.functions or self.state.is_untried:
            self._send_start(guest, fresh=False, reseed=reseed)

    def _attach(self) -> None:
        began = time.monotonic()
        while True:
            self._guest = self.language.start(self._setup())
            try:
                self.state.attach(self._guest.instance, self._guest.files, self._guest.heap)
            except Unreadable as problem:
                self.close_guest()
                self.state.drop_unreadable_commit(problem)
            except NotMoved:
                self.close_guest()
            except BaseException:
                self.close_guest()
                raise
            else:
                taken = (time.monotonic() - began) * 1000
                _LOG.debug("%.1f ms: a guest has its memory and files", taken)
                return

    def _send_start(self, guest: Guest, *, fresh: bool = True, reseed: bool = False) -> None:
        """Tells the guest that it begins, or that its memory was restored.

        A `fresh` session has no earlier memory; with `reseed`, the memory came from another
        session.
        """
        if fresh or reseed:
            guest.reseed()
        request = {
            "op": "start",
            "env": self.policy.guest_env,
            "functions": as_request(self.commands.functions),
            "execution_count": self.next_count,
            "fresh": fresh,
            "reseed": reseed,
            "folder": self.policy.door.home or (self.folders.notebook or self.folders.app).guest,
            "chart_data": bool(self.policy.door.home),
        }
        turn = Turn(request, NoListener(), self)
        self.clock.arm(NO_SIGNALS, START_SECONDS, self.policy.grace_seconds, begins=True)
        turn.drive(guest)

    def _setup(self, resting: RestingGuest | None = None) -> GuestSetup:
        head = self.state.head
        if resting is None:
            files, before = self._new_files(), head.clock if head is not None else 0
        else:
            files, before = resting.files, resting.clock_ahead + time.monotonic_ns()
        return GuestSetup(
            files=files,
            clock=self.clock,
            streams=self.streams,
            answer=self._answer,
            broker=self.commands.broker,
            image=self.state.image,
            memory_bytes=self.policy.memory_bytes,
            flavour=self._flavour,
            clock_before=before,
            deterministic=self.policy.deterministic,
        )

    def _new_files(self) -> FileOperations:
        policy = self.policy
        preopens = self.language.preopens(self.folders, policy)
        return FileOperations(
            preopens,
            self.changes,
            Quota(preopens.counted, policy.workspace_bytes, policy.workspace_files),
            self.state.files,
            open_files=policy.open_files,
            should_stop=self.clock.should_stop,
        )

    def _answer(self, data: bytes) -> bytes:
        if self.turn is None:
            return protocol.encode({"refused": "no turn is running"})
        return self.turn.answer(data)
