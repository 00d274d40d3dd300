"""One turn, from the host's side: the request that goes in, the frames that come out.

A turn lives on the guest's thread. Whatever arrives is checked by `protocol.decode`; a frame that
breaks the protocol, comes out of order or goes over a cap is refused and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wasm_kernel.errors import FrameError, TravelError
from wasm_kernel.execution.comms import Comms, CommsOverLimit, TurnComms
from wasm_kernel.execution.errands import Errands, Standing, as_answer
from wasm_kernel.execution.face import InputInterrupted, InputRefused, Listener
from wasm_kernel.execution.limits import Allowance
from wasm_kernel.execution.shown import Shown
from wasm_kernel.guests import protocol
from wasm_kernel.guests.python.standing import Order
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.record import record

_ACTS = (
    protocol.Input,
    protocol.Limit,
    protocol.Travel,
    protocol.Errand,
)  # of what runs, and nobody else
_FRAMES_MOST = 1_000_000  # of any kind in one turn; beyond, the door stays shut


@record
class Host:
    """What a turn can ask of its sandbox, on the guest's thread.

    `flush` hands on what was printed; `lower` lowers limits; `waiting` tells that a wait for the
    user begins (True) or ends; `taken` that an interrupt was delivered; `travel` plans a journey;
    `begun` that the agent has its request; `allowance` is what it may show; `comms` knows the open
    ones; `errands` are done by the host for the cell's text, and
    `wait` and `over` tell one whether the cell still waits for it.
    """

    flush: Callable[[], None]
    lower: Callable[[protocol.Limit], None]
    waiting: Callable[[bool], None]
    taken: Callable[[], None]
    travel: Callable[[protocol.Travel], Mapping[str, Any]]
    begun: Callable[[], None]
    allowance: Allowance
    comms: Comms
    errands: Errands
    wait: Callable[[float], bool]
    over: Callable[[], bool]


class Turn:
    """The state of one turn; `answer` is the door."""

    def __init__(
        self,
        request: Mapping[str, Any],
        listener: Listener,
        policy: ExecutionPolicy,
        host: Host,
    ) -> None:
        self._request: Mapping[str, Any] | None = request
        self._may_ask = bool(request.get("allow_stdin", False))
        self.talks = request.get("op") == "comm"  # on a comm, to code of the user's
        self._policy = policy
        self._host = host
        self._frames = 0
        self._allowed = host.allowance.of_cell()
        self.comms = TurnComms(listener, policy, host.comms)
        self._is_cell = request.get("op") == "execute"
        self.seen = self._is_cell and not request.get("silent")
        self.code = str(request.get("code", "")) if self._is_cell else ""
        self._standing = Standing(self.code, lambda: host.errands.names)
        self._said_bytes = 0
        self.limits: set[str] = set()
        self.reply: Mapping[str, Any] | None = None
        self.error: protocol.Error | None = None
        self.shown = Shown(wanted=listener.collects)

    @property
    def _listener(self) -> Listener:
        return self.comms.listener

    @property
    def handed(self) -> bool:
        """Whether the guest came as far as asking for its request."""
        return self._request is None

    def end(self, count: int, *, ename: str = "", evalue: str = "") -> None:
        """The host itself did what the cell asked for, as cell `count`, or refused it."""
        reply = {"status": "ok", "execution_count": count, "user_expressions": {}, "payload": []}
        if ename:
            reply |= {"status": "error", "ename": ename, "evalue": evalue, "traceback": []}
        self.reply = reply

    def hear(self, name: str, text: str) -> None:
        """Text on one of the two streams."""
        self.shown.add_text(name, text)
        self._host.allowance.spend(len(text))
        self._listener.emit(protocol.Stream(name, text))

    def answer(self, data: bytes) -> bytes:
        """The answer to a frame of the guest; never raises for what the guest sends."""
        self._frames += 1
        try:
            if self._frames > _FRAMES_MOST:
                raise FrameError("this cell has sent too many")
            return protocol.encode(self._take(protocol.decode(data), len(data)))
        except FrameError as problem:
            return protocol.encode({"refused": problem.why})

    def _take(self, frame: protocol.Frame, size: int) -> Mapping[str, Any]:
        if isinstance(frame, protocol.Next):
            return self._next()
        if not self.handed and isinstance(frame, _ACTS):
            raise FrameError("nothing runs yet")
        self._host.flush()
        if isinstance(frame, protocol.Done):
            self.comms.end()
            self.reply = frame.reply
        elif isinstance(frame, protocol.Input):
            return self._ask(frame)
        elif isinstance(frame, protocol.Limit):
            self._host.lower(frame)
        elif isinstance(frame, protocol.Travel):
            return self._travel(frame)
        elif isinstance(frame, protocol.Errand):
            return self._send_out(Order(frame.name, frame.line, frame.cell))
        elif isinstance(frame, protocol.CommFrame):
            return self._talk(frame, size)
        elif isinstance(frame, protocol.Immortal):
            raise FrameError("only the base image may say so")
        elif isinstance(frame, protocol.Terminate):
            self._listener.terminate()
        else:
            self.show(frame, size)
        return {}

    def _talk(self, frame: protocol.CommFrame, size: int) -> Mapping[str, Any]:
        if self.reply is not None:
            raise FrameError("the turn is over")
        try:
            return self.comms.answer(frame, size)
        except CommsOverLimit as over:
            if over.notice:
                self.hear("stderr", over.notice)
            raise

    def _travel(self, frame: protocol.Travel) -> Mapping[str, Any]:
        if self.reply is not None:
            raise FrameError("the turn is over")
        if not self._is_cell and frame.how in ("undo", "redo", "restore", "checkpoint"):
            return {"refused": f"%{frame.how} works in a cell: a callback can't ask for it."}
        try:
            return self._host.travel(frame)
        except TravelError as problem:
            return {"refused": str(problem)}

    def _send_out(self, asked: Order) -> Mapping[str, Any]:
        if self.reply is not None:
            raise FrameError("the turn is over")
        answer = as_answer(lambda: self._host.errands.done(asked, self._standing, self))
        if answer.get("interrupted"):
            self._host.taken()
        return answer

    def say(self, text: str, stream: str = "stdout") -> None:
        """An errand prints for the cell."""
        self._said_bytes += len(text)
        if self._said_bytes <= self._policy.stdout_bytes:
            self.hear(stream, text)

    def wait(self, seconds: float) -> bool:
        """An errand waits."""
        return self._host.wait(seconds)

    @property
    def gone(self) -> bool:
        """Whether nobody waits for a running errand any more."""
        return self._host.over()

    def _next(self) -> Mapping[str, Any]:
        request, self._request = self._request, None
        if request is None:
            raise FrameError("this turn's request was already handed over")
        self._host.begun()
        return request

    def show(self, output: protocol.Output, size: int) -> None:
        """Take a rich output of so many bytes.

        Raises:
            FrameError: it is over a limit, or comes after the cell's end.
        """
        if self.reply is not None:
            raise FrameError("the turn is over")
        if isinstance(output, protocol.Error):
            self.error = output
        self._check(output, size)
        self.shown.add(output)
        self._listener.emit(output)

    def _check(self, output: protocol.Output, size: int) -> None:
        """Refuse what is over a limit; each limit is told once."""
        objection, setting = self._allowed.objection(output, size)
        if not objection:
            return
        if setting not in self.limits:
            self.limits.add(setting)
            self.hear(
                "stderr",
                f"\n[wasm-kernel] {objection}; what is over is dropped. "
                f"Raise {setting} to see more.\n",
            )
        raise FrameError("the cell's rich output is over its limit")

    def _ask(self, question: protocol.Input) -> Mapping[str, Any]:
        if not self._may_ask:
            return {"refused": "input() needs a front end that takes input; there is none here."}
        self._host.waiting(True)
        try:
            return {"value": self._listener.ask(question.prompt, question.password)}
        except InputInterrupted:
            self._host.taken()
            return {"interrupted": True}
        except InputRefused as refusal:
            return {"refused": str(refusal)}
        finally:
            self._host.waiting(False)
