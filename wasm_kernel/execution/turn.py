"""One turn, from the host's side: the request to the guest, and the frames that the guest sends.

A turn lives on the guest's thread. `protocol.decode` checks every frame; a frame that breaks the
protocol, comes out of order or goes over a limit is refused and changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, get_args

from wasm_kernel.engine.clock import Clock
from wasm_kernel.engine.streams import NO_OVERFLOW, OutputStreams, OverflowFiles
from wasm_kernel.errors import (
    CALL_SECONDS,
    CellTimeout,
    FrameError,
    GuestClosed,
    GuestCrashed,
    GuestExited,
    GuestStopped,
    NeverBegan,
    OutOfFuel,
    OutOfMemory,
    StackExhausted,
)
from wasm_kernel.execution.commands import HostCommands, TurnCommands
from wasm_kernel.execution.comms import Comms, CommsOverLimit, TurnComms
from wasm_kernel.execution.interfaces import (
    NO_CELL,
    NO_INPUT,
    Cell,
    InputInterrupted,
    InputRefused,
    Listener,
)
from wasm_kernel.execution.limits import CellAllowance, FuelMeter, OutputAllowance
from wasm_kernel.guests import protocol
from wasm_kernel.guests.base import CommandLine, Guest, ParsedCell
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.state import texts

_LOG = logging.getLogger("wasm_kernel.execution")
_LOGGED_BYTES = 400  # bytes of each frame and answer that are logged, at level DEBUG
_FOR_RUNNING_CODE = (protocol.Input, protocol.Limit, CommandLine, *get_args(protocol.FunctionFrame))
_BY_THE_GUEST = (GuestCrashed, GuestExited, StackExhausted, NeverBegan)
_BEGIN_FUEL = 10**8  # an empty cell burns a thirtieth of that
_NOT_COUNTED = "[wasm-kernel] This session counts no fuel: fuel= limits nothing. Use seconds=.\n"
_OUR_NOTE = "[wasm-kernel]"  # begins advice about variables that are lost now
_LARGE_PIECE = 1 << 20  # bytes; smaller free pieces are not worth counting
_EATEN_SHARE = 0.75  # a turn used up the memory if it left less than this share of the free memory
_CRASHED_SHARE = 1 / 16  # of the limit: a crash with less free is for lack of memory
FRAMES_MOST = 1_000_000  # frames of any kind in one turn; further ones are refused


class TurnHost:
    """The parts of a sandbox that a turn uses; `turn` is the one that runs.

    `count` is the least number of the next cell.
    """

    def __init__(
        self,
        policy: ExecutionPolicy,
        commands: HostCommands,
        overflow: OverflowFiles = NO_OVERFLOW,
        count: int = 1,
    ) -> None:
        self.policy, self.commands, self.next_count = policy, commands, count
        self.clock, self.comms, self.streams = Clock(), Comms(), OutputStreams(overflow)
        self.fuel, self.allowance = FuelMeter(policy.fuel_budget), OutputAllowance(policy)
        self.turn: Turn | None = None


class Turn:
    """One turn; `run` has a guest run it, and `answer` takes the guest's frames.

    Attributes:
        cell: The cell; `NO_CELL` if it is none. One with `store_history` gets a number and a place
            in the history.
        text: The cell's text, as its language reads it; None if it is not a cell.
        is_comm: Whether it is a front end's message on a comm, for the user's code.
        number: The cell's number; if the cell is not counted, the number of the last one that was.
        limits_met: The settings of the limits that it reached.
        reply: The agent's reply, once there is one.
        stopped: How the guest was lost in it; None if the guest lives.
        seconds: How long a cell took, including its wait for the page's widgets.
        error: The last error that it showed.
        held: The error of a guest that was refused memory, which is shown only if the guest lives.
    """

    def __init__(
        self,
        request: Mapping[str, Any],
        listener: Listener,
        host: TurnHost,
        cell: Cell = NO_CELL,
        *,
        text: ParsedCell | None = None,
        number: int = 0,
    ) -> None:
        self._request: Mapping[str, Any] | None = request
        self._host = host
        self.cell, self.text = cell, text
        self.is_comm, self.is_start = (request.get("op") == op for op in ("comm", "start"))
        self.number = number - (not cell.store_history)
        self.comms = TurnComms(listener, host.policy, host.comms)
        self._allowed = CellAllowance(host.allowance)
        self._commands = TurnCommands(self, host.commands, host.clock, host.policy.stdout_bytes)
        self._frames = 0
        self._began = time.monotonic()
        self.limits_met: set[str] = set()
        self.reply: Mapping[str, Any] | None = None
        self.error: protocol.ErrorOutput | None = None
        self.held: protocol.ErrorOutput | None = None
        self.stopped: GuestStopped | None = None
        self.seconds = 0.0

    @property
    def request_taken(self) -> bool:
        """True if the guest has asked for its request."""
        return self._request is None

    @property
    def seconds_yet(self) -> float:
        """How long the turn has taken up to now."""
        return time.monotonic() - self._began

    @property
    def count(self) -> int:
        """The cell's number in the guest's reply; 0 if there is none or the cell does not count."""
        count = (self.reply or {}).get("execution_count")
        if self.cell.store_history and isinstance(count, int) and 0 < count < 2**31:
            return count
        return 0

    def end(self, count: int, *, ename: str = "", evalue: str = "") -> None:
        """Ends a cell that the host itself has run as cell `count`, or has refused."""
        reply = {"status": "ok", "execution_count": count, "user_expressions": {}, "payload": []}
        if ename:
            reply |= {"status": "error", "ename": ename, "evalue": evalue, "traceback": []}
        self.reply = reply

    def run(self, guest: Guest, seconds: float | None = None) -> None:
        """Makes a guest run the turn; a soft limit of `seconds` replaces the policy's, if given.

        After `GuestStopped`, the caller closes the guest, and starts another.
        """
        host, policy, own_limit = self._host, self._host.policy, self.cell.timeout_seconds
        is_soft = seconds is not None
        limits = (seconds,) if is_soft else (policy.cell_timeout, own_limit)
        host.clock.arm(
            guest.signals,
            min((limit for limit in limits if limit is not None), default=None),
            policy.grace_seconds,
            soft=is_soft,
            for_cell=not is_soft,
            begins=True,
        )
        is_metered = self.is_comm or not is_soft
        try:
            self.drive(guest, policy.fuel_budget if is_metered else None)
        except CellTimeout as stopped:
            if stopped.seconds == own_limit:
                stopped.setting = CALL_SECONDS
            raise

    def drive(self, guest: Guest, fuel: int | None = None) -> None:
        """Makes a guest run the turn, with the clock armed."""
        host, streams, crash = self._host, self._host.streams, None
        host.turn, free = self, self._free_memory(guest)
        host.fuel.begin(guest.instance, fuel)
        streams.begin(self.on_text, host.allowance.caps(), host.next_count)
        try:
            if not guest.run_turn(fuel) or self.reply is None:
                crash = GuestCrashed("the cell broke the sandbox's own agent")
        except GuestCrashed as trap:
            crash = trap
        finally:
            host.fuel.end()
            host.clock.disarm()
            self.limits_met |= {*streams.cut, guest.files.quota.limit_met} - {""}
            streams.end()
            self.comms.end()
            host.turn = None
        if crash is not None or self._has_no_memory:
            self._check_memory(guest, free, crash)
        self._show_held()
        if crash is not None:
            raise crash

    def _free_memory(self, guest: Guest) -> int:
        """Returns how many bytes a guest can still take, in large pieces."""
        pieces = guest.heap.free(_LARGE_PIECE)
        free = sum(end - start for start, end in pieces)
        return self._host.policy.memory_bytes - guest.instance.memory.size + free

    def _check_memory(self, guest: Guest, before: int, crash: GuestCrashed | None) -> None:
        """Raises `OutOfMemory` if the failed turn itself used up the bytes that were free `before`.

        It did not if it took little memory and then asked for one piece that is too large.
        """
        free, limit = self._free_memory(guest), self._host.policy.memory_bytes
        most = before * _EATEN_SHARE if crash is None else limit * _CRASHED_SHARE
        if free < most:
            lines = self.held.traceback[:-1] if self.held is not None else ()
            trace = tuple(line for line in lines if not line.startswith(_OUR_NOTE))
            raise OutOfMemory(limit, before, trace) from crash

    def on_text(self, name: str, text: str) -> None:
        """Takes text on one of the two streams."""
        self._host.allowance.spend(len(text))
        self.comms.listener.emit(protocol.Stream(name, text))

    def answer(self, data: bytes) -> bytes:
        """Returns the answer to a frame of the guest; never raises for what the guest sends."""
        self._frames += 1
        try:
            if self._frames > FRAMES_MOST:
                raise FrameError("this cell has sent too many")
            answer = protocol.encode(self._answer(protocol.decode(data), len(data)))
        except FrameError as problem:
            answer = protocol.encode({"refused": problem.why})
        if _LOG.isEnabledFor(logging.DEBUG):
            since = (time.monotonic() - self._began) * 1000
            _LOG.debug("%.1f ms: guest %s, host %s", since, _excerpt(data), _excerpt(answer))
        return answer

    def _answer(self, frame: protocol.Frame, size: int) -> protocol.Answer:
        if isinstance(frame, protocol.Next):
            return self._hand_over()
        if not self.request_taken and isinstance(frame, _FOR_RUNNING_CODE):
            raise FrameError("nothing runs yet")
        self._host.streams.flush()
        if not isinstance(frame, protocol.Done):
            self._show_held()
        match frame:
            case protocol.Done():
                self.comms.end()
                self.reply = frame.reply
            case protocol.Input():
                return self._ask(frame)
            case protocol.Limit():
                self._lower(frame)
            case CommandLine():
                self._check_running()
                return self._commands.answer(frame)
            case protocol.Immortal():
                raise FrameError("only the base image may say so")
            case protocol.Terminate():
                self.comms.listener.terminate()
            case protocol.ErrorOutput() if self._host.clock.reason is not None:
                return {}  # its time is over, and the host shows its own error
            case (
                protocol.Display()
                | protocol.ClearOutput()
                | protocol.Result()
                | protocol.ErrorOutput()
            ):
                self.show(frame, size)
            case _:
                return self._talk(frame, size)
        return {}

    def _hand_over(self) -> Mapping[str, Any]:
        request, self._request = self._request, None
        if request is None:
            raise FrameError("this turn's request was already handed over")
        self._host.clock.request_taken()
        return request

    def _check_running(self) -> None:
        if self.reply is not None:
            raise FrameError("the turn is over")

    def _talk(
        self, frame: protocol.CommFrame | protocol.FunctionFrame, size: int
    ) -> protocol.Answer:
        """Passes on a message to the page, or a call of the owner's function."""
        self._check_running()
        if isinstance(frame, protocol.FunctionFrame):
            return self._commands.call(frame, size)
        try:
            return self.comms.answer(frame, size)
        except CommsOverLimit as over:
            if over.notice:
                self.on_text("stderr", over.notice)
            raise

    def _lower(self, limit: protocol.Limit) -> None:
        if limit.seconds is not None:
            self._host.clock.lower_deadline(limit.seconds)
        if limit.fuel is None:
            return
        if self._host.fuel.budget is None:
            self._check_running()
            self.on_text("stderr", _NOT_COUNTED)
        self._host.fuel.lower(limit.fuel)

    def show(self, output: protocol.Output, size: int) -> None:
        """Takes a rich output of `size` bytes.

        Raises `FrameError` if it is over a limit, or comes after the cell's end.
        """
        self._check_running()
        if isinstance(output, protocol.ErrorOutput):
            self.error = output
        self._check_allowed(output, size)
        if isinstance(output, protocol.ErrorOutput) and output.memory:
            self.held = output
            return
        self.comms.listener.emit(output)

    def _show_held(self) -> None:
        """Shows the held error, if there is one."""
        held, self.held = self.held, None
        if held is not None:
            self.comms.listener.emit(held)

    @property
    def _has_no_memory(self) -> bool:
        """True if user code ended with an error because it was refused memory."""
        is_error = self.is_comm or (self.reply or {}).get("status") == "error"
        return self.held is not None and is_error

    def _check_allowed(self, output: protocol.Output, size: int) -> None:
        """Raises `FrameError` if an output is over a limit; tells the user once for each limit."""
        objection, setting = self._allowed.objection(output, size)
        if not objection:
            return
        if setting not in self.limits_met:
            self.limits_met.add(setting)
            advice = self._host.policy.door.raising(setting, purpose="to see more")
            words = f"{objection}; what is over is dropped. {advice}".rstrip()
            self.on_text("stderr", f"\n[wasm-kernel] {words}\n")
        raise FrameError("the cell's rich output is over its limit")

    def _ask(self, question: protocol.Input) -> Mapping[str, Any]:
        if not self.cell.allow_stdin:
            return {"refused": NO_INPUT}
        clock = self._host.clock
        clock.pause()
        try:
            return {"value": self.comms.listener.ask(question.prompt, question.password)}
        except InputInterrupted:
            clock.interrupt_delivered()
            return {"interrupted": True}
        except InputRefused as refusal:
            return {"refused": str(refusal)}
        finally:
            clock.resume()


def _excerpt(frame: bytes) -> str:
    """Returns the beginning of a frame for the log, escaped so that it stays on one line."""
    text = frame[:_LOGGED_BYTES].decode("utf-8", "replace")
    more = f"... ({len(frame):,} bytes)" if len(frame) > _LOGGED_BYTES else ""
    return ascii(text)[1:-1] + more


def left_unusable(turn: Turn, stopped: GuestStopped) -> bool:
    """Returns whether no guest could even ask for its request in the state before the turn.

    A fuel budget that is too low for any turn does not count.
    """
    if isinstance(stopped, OutOfFuel):
        return not turn.request_taken and stopped.budget >= _BEGIN_FUEL
    return not turn.request_taken and isinstance(stopped, _BY_THE_GUEST)


def what_remains(turn: Turn, stopped: GuestStopped, *, changed_files: bool) -> str:
    """Returns a sentence about the kept state; `changed_files` if files can be brought back."""
    if isinstance(stopped, GuestClosed):
        return texts.FILES_KEPT
    if turn.is_comm:
        return texts.KEPT_OF_CALLBACK
    return texts.KEPT + texts.TAKE_BACK if changed_files else texts.KEPT
