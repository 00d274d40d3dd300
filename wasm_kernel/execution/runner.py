"""A guest's life inside a sandbox: begun, run turn by turn, and begun anew when it is lost.

Everything here runs on the sandbox's own thread; only `clock` is for other threads too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wasm_kernel.engine.clock import DEAF, Clock
from wasm_kernel.engine.instance import Instance, Surroundings
from wasm_kernel.engine.output import Streams
from wasm_kernel.errors import GuestCrashed, GuestStopped
from wasm_kernel.events import Notices
from wasm_kernel.execution import losses
from wasm_kernel.execution.alone import Alone
from wasm_kernel.execution.beginning import start_request
from wasm_kernel.execution.comms import Comms
from wasm_kernel.execution.errands import Errands
from wasm_kernel.execution.face import Listener, Silence
from wasm_kernel.execution.fuel import Fuel
from wasm_kernel.execution.limits import Allowance
from wasm_kernel.execution.turn import Host, Turn
from wasm_kernel.execution.wishes import Wishes
from wasm_kernel.folders.claim import Resume
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.guests import protocol
from wasm_kernel.guests.driver import Driver
from wasm_kernel.guests.python.spoken import only_travels
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.state import told
from wasm_kernel.state.branch import Branch
from wasm_kernel.state.bringing import Brought
from wasm_kernel.state.history import Unreadable
from wasm_kernel.state.timeline import Timeline
from wasm_kernel.state.travel import Journey
from wasm_kernel.wasi_files.changes import Changes

_START_SECONDS = 30.0


class Life:
    """The living instance of one sandbox, and what outlives it.

    Attributes:
        policy: The limits that it lives under.
        begun: Whether `begin` has opened the history.
    """

    def __init__(
        self,
        driver: Driver,
        folders: SandboxFolders,
        policy: ExecutionPolicy,
        *,
        resume: Resume,
        errands: Errands,
        notices: Notices,
        inherited: Branch | None = None,
    ) -> None:
        self.clock = Clock()
        self.changes = Changes(folders.app)
        self.fuel = Fuel(policy.fuel_budget)
        self._streams = Streams.keeping(folders.workspace, policy.text_file_bytes)
        self.timeline = Timeline(
            driver, folders, policy, resume=resume, notices=notices, inherited=inherited
        )
        self.wishes = Wishes(self.timeline)
        self.comms = Comms()
        self.host = Host(
            flush=self._flush,
            lower=self._lower,
            waiting=self._waiting,
            taken=self.clock.take_interrupt,
            travel=lambda travel: self.wishes.hear(travel, self.next_count),
            begun=self.clock.begun,
            allowance=Allowance(policy),
            comms=self.comms,
            errands=errands,
            wait=self.clock.wait_outside,
            over=self.clock.over,
        )
        self._driver = driver
        self.folders = folders
        self.policy = policy
        self._notices = notices
        self._instance: Instance | None = None
        self._turn: Turn | None = None
        self._untold = bool(policy.env)  # whether a guest that stands at a state must hear of it
        self.begun = False
        self._alone = Alone(self.wishes, self.clock)
        self.next_count = 1

    def begin(self, progress: Callable[[str], None]) -> None:
        """Make the guest ready for its first cell.

        Raises:
            WasmKernelError: it can't be.
        """
        self._driver.prepare(self.policy.metered, progress)
        self.timeline.open()
        self.begun = True
        self._revive()

    def ensure(self) -> None:
        """Have a guest, also where an earlier try to get a new one failed."""
        if self._instance is None:
            self._revive()

    def adopt(self, policy: ExecutionPolicy) -> None:
        """Live under another policy from now on, with the variables that are there.

        Nothing is done if the variables can't be kept just now: the user is told, and the next call
        tries again.

        Raises:
            WasmKernelError: no guest can, such as one that needs more memory. The next call of
                `ensure` tries again.
        """
        if self._instance is not None and not self.timeline.catch_up(self._instance):
            return
        self._drop()
        self.policy = policy
        self._streams = Streams.keeping(self.folders.workspace, policy.text_file_bytes)
        self.fuel.adopt(policy.fuel_budget)
        self.host.allowance.adopt(policy)
        self.timeline.adopt(policy)
        self._untold = True
        if self.begun:
            self._driver.prepare(policy.metered, lambda text: None)
            self._revive()

    def end(self) -> None:
        """Gives everything back."""
        try:
            self._drop()
            self.timeline.close()
        finally:
            self.folders.close()

    def _drop(self) -> None:
        if self._instance is not None:
            self.timeline.let_go()
            self._instance.close()
            self._instance = None

    @property
    def memory_bytes(self) -> int:
        """The size of the guest's memory; 0 where there is none."""
        return self._instance.reach.size if self._instance is not None else 0

    def run(
        self,
        request: Mapping[str, Any],
        listener: Listener,
        *,
        seconds: float | None = None,
        for_cell: bool = False,
    ) -> tuple[Turn, GuestStopped | None]:
        """Run one turn. If the guest is lost in it, a new one is ready afterwards.

        Args:
            request: The request, as the agent will read it.
            listener: Hears the turn.
            seconds: A soft limit instead of the policy's: the guest is interrupted first.
            for_cell: Whether it is no cell, but one waits for it.

        Returns:
            The turn, and how it was stopped, or None if it came back.
        """
        is_cell = request.get("op") == "execute"
        travels = only_travels(str(request.get("code", ""))) if is_cell else None
        if is_cell:
            request = self._alone.tell(request, self.next_count)
        turn = Turn(request, listener, self.policy, self.host)
        self.changes.clear()
        self.wishes.forget()
        self._tell(turn)
        try:
            if travels is not None:
                self.fuel.rest()
                self._alone.do(turn, request, travels, self.next_count)
            else:
                self._run(turn, seconds)
        except GuestStopped as stopped:
            self._lose(turn, stopped, for_cell=is_cell or for_cell)
            return turn, stopped
        if is_cell:
            self._close_cell(turn, request, alone=travels is not None)
            self._tell(turn)
        elif turn.talks:
            self.timeline.commit_between(self._living())
        return turn, None

    def refuse(self, request: Mapping[str, Any], listener: Listener) -> Turn:
        """The turn of a cell that does not run, as its guest was lost before it."""
        self.clock.expect(-1)
        turn = Turn(request, listener, self.policy, self.host)
        self._tell(turn)
        return turn

    def _lose(self, turn: Turn, stopped: GuestStopped, *, for_cell: bool) -> None:
        """The guest is lost; another one stands where memory was before the turn, or before that
        state if no cell can begin there.
        """
        self._drop()
        self.wishes.break_off(turn)
        self.timeline.fall_back()
        if for_cell and not self.clock.closed and losses.spoilt(turn, stopped):
            stopped.setting, stopped.kept = "", losses.kept_of_spoilt(at=self.timeline.leave())
        else:
            changed = self.timeline.files.versions.keeps and self.changes.any
            stopped.kept = losses.kept(turn, stopped, changed_files=changed)
        self._revive()

    def _close_cell(self, turn: Turn, request: Mapping[str, Any], *, alone: bool) -> None:
        """The cell's effects become a commit, or are left behind for another one.

        A cell that was done without the guest has none: the state is still that of the cell before.
        """
        code, wishes = str(request.get("code", "")), self.wishes
        numbered = bool(request.get("store_history"))
        cell = self.next_count if numbered else self.next_count - 1
        self._note_count(turn, request)
        leaves = alone or (wishes.journey is not None and not wishes.here)
        if leaves or self.timeline.commit(
            self._living(), cell=cell, count=self.next_count, code=code, counted=numbered
        ):
            wishes.name_here(turn)
        if not alone:
            self._alone.told()
        if wishes.journey is not None:
            told.tell_brought(self.go(wishes.journey), turn.hear)
            wishes.name_there(turn)
        wishes.keep_promises(turn, self.clock)
        wishes.forget()

    def _tell(self, turn: Turn) -> None:
        """What happened to the variables is told in the cell, or the next one that anybody sees."""
        if turn.seen:
            for text in self._notices.take():
                turn.hear("stderr", text)

    def go(self, journey: Journey) -> Brought | None:
        """Stand elsewhere in the history; execution counts go on upwards.

        Returns:
            What was done to files, where they went along.
        """
        self.timeline.go(journey)
        self._drop()
        timeline = self.timeline
        brought = timeline.files.bring(journey.files, self.changes, timeline.history)
        self._revive()
        return brought

    def settle(self, copies: int | None = None) -> Timeline:
        """The history, with all that memory is now; on disk, or where so many copies cost less.

        Raises:
            ForkError: memory can't be kept.
        """
        self.timeline.settle(self._living(), copies)
        return self.timeline

    def _note_count(self, turn: Turn, request: Mapping[str, Any]) -> None:
        count = (turn.reply or {}).get("execution_count")
        if request.get("store_history") and isinstance(count, int) and 0 < count < 2**31:
            self.next_count = count + 1

    def _run(self, turn: Turn, seconds: float | None) -> None:
        instance, policy = self._living(), self.policy
        if seconds is not None:
            self.clock.arm(instance.words, seconds, policy.grace_seconds, soft=True, begins=True)
            self._drive(instance, turn, policy.fuel_budget if turn.talks else None)
            return
        words, limit, grace = instance.words, policy.cell_timeout, policy.grace_seconds
        self.clock.arm(words, limit, grace, expected=True, begins=True)
        self._drive(instance, turn, policy.fuel_budget)

    def _living(self) -> Instance:
        if self._instance is None:
            raise GuestCrashed("no guest")
        return self._instance

    def _drive(self, instance: Instance, turn: Turn, fuel: int | None) -> None:
        """The turn itself; the clock is armed."""
        self._turn = turn
        self.fuel.begin(instance, fuel)
        self._streams.begin(turn.hear, self.host.allowance.caps(), self.next_count)
        try:
            status = instance.turn(self._driver.turn_source, fuel=fuel)
        finally:
            self.fuel.end()
            self.clock.disarm()
            turn.limits |= {*self._streams.cut, instance.limit} - {""}
            self._streams.end()
            turn.comms.end()
            self._turn = None
        if status or turn.reply is None:
            raise GuestCrashed("the cell broke the sandbox's own agent")

    def _revive(self) -> None:
        """A new instance that stands where the last commit does, or at the beginning.

        A state in which no guest runs is left for the one before it, or for a new beginning.
        """
        for last in (False, True, True):
            self._stand()
            head = self.timeline.head
            if head is None:
                break
            try:
                self._go_on()
            except GuestStopped as problem:
                self._drop()
                if self.clock.closed:
                    raise
                self.timeline.pass_over(head, problem, last=last)
            else:
                return
        self.timeline.untried = False
        self._tell_start(self._living())
        self.timeline.commit(self._living(), cell=0, count=self.next_count, code="")
        self.comms.sync({})

    def _go_on(self) -> None:
        """The instance stands at a commit: it hears what it can't know of itself."""
        self.comms.out_of_sync = True
        self.next_count = max(self.next_count, self.timeline.count)
        estranged = self.timeline.estranged
        if estranged or self._untold or self.timeline.untried:
            self._tell_start(self._living(), fresh=False, reseed=estranged)
        self.timeline.untried = False
        if estranged:
            self.timeline.commit_estranged(self._living())

    def _stand(self) -> None:
        while True:
            self._instance = self._driver.instance(self._around(), metered=self.policy.metered)
            try:
                self.timeline.stand(self._instance)
            except Unreadable as problem:
                self._drop()
                self.timeline.give_up(problem)
            except BaseException:
                self._drop()
                raise
            else:
                return

    def _tell_start(self, instance: Instance, *, fresh: bool = True, reseed: bool = False) -> None:
        if fresh or reseed:
            instance.throw_dice()
        env = self.policy.env if fresh or self._untold else {}
        start = start_request(
            env, self.policy.memory_bytes, self.next_count, fresh=fresh, reseed=reseed
        )
        turn = Turn(start, Silence(), self.policy, self.host)
        self.clock.arm(DEAF, _START_SECONDS, self.policy.grace_seconds, begins=True)
        self._drive(instance, turn, None)
        self._untold = False

    def _around(self) -> Surroundings:
        policy = self.policy
        return Surroundings(
            handler=self._answer,
            clock=self.clock,
            streams=self._streams,
            changes=self.changes,
            preopens=self._driver.preopens(self.folders, policy),
            env={},
            memory_bytes=policy.memory_bytes,
            open_files=policy.open_files,
            workspace_bytes=policy.workspace_bytes,
            workspace_files=policy.workspace_files,
            history=self.timeline.files.versions,
            clock_before=head.clock if (head := self.timeline.head) else 0,
        )

    def _answer(self, data: bytes) -> bytes:
        if self._turn is None:
            return protocol.encode({"refused": "no turn is running"})
        return self._turn.answer(data)

    def _flush(self) -> None:
        self._streams.flush()

    def _lower(self, limit: protocol.Limit) -> None:
        if limit.seconds is not None:
            self.clock.lower(limit.seconds)
        if limit.fuel is not None:
            self.fuel.lower(limit.fuel)

    def _waiting(self, begins: bool) -> None:
        if begins:
            self.clock.pause()
        else:
            self.clock.resume()
