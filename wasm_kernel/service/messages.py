"""The messages between a service and its workers.

If a guest gets out of its sandbox, its worker may send anything. So a worker's messages are bounded
by their `Channel` before they are read, and checked field by field.
"""

# No `from __future__ import annotations`: msgspec would compile each annotation at every start.

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from wasm_kernel.engine.clock import StopReason
from wasm_kernel.engine.flavours import FlavourName
from wasm_kernel.errors import (
    FrameError,
    GuestStopped,
    HostFailed,
    LimitReached,
    WasmKernelError,
)
from wasm_kernel.execution.interfaces import Cell, TravelRequest
from wasm_kernel.guests import protocol
from wasm_kernel.guests.protocol import Count
from wasm_kernel.linux import channel
from wasm_kernel.linux.broker import (
    INTERNAL_ERROR,
    BrokerAnswer,
    BrokerCancel,
    BrokerRequest,
    log_failure,
)
from wasm_kernel.outputs import terminal
from wasm_kernel.result import CellResult, Checkpoint, CommMessage, Ran, Travelled, VariableChanges
from wasm_kernel.service.open_message import Number, Open, Stamps

_LOG_CHARACTERS = 16 * 1024

Json = Any
Object = dict[str, Json]
Short = Annotated[str, Meta(max_length=1000)]
LogText = Annotated[str, Meta(max_length=_LOG_CHARACTERS)]
LogLevel = Annotated[int, Meta(ge=0, le=50)]  # `logging` remembers each level that it ever got
Scalar = str | int | float | bool | None


class _Message(Struct, frozen=True, tag_field="kind"):
    """A message; its tag is its class's name."""


class _CallMessage(_Message, frozen=True):
    """A message about one call, which ends with an `Ended` or a `Failed` of its number."""

    call: int


# -- to the process that workers are forked from

PACKET = 64 * 1024


class ForkRequest(Struct, frozen=True, tag=True):
    """Asks for a worker of a language and a flavour; its line's descriptor comes with it."""

    language: str
    flavour: FlavourName


class CleanerRequest(Struct, frozen=True, tag=True):
    """Asks for a process that cleans outputs in a mode; its line's descriptor comes with it."""

    mode: str
    confinement: str


class ForkReply(Struct, frozen=True):
    """The forked process, whose descriptor comes with it; 0 and the reason if there is none.

    If it `is_unprepared`, something must be compiled first, in another process.
    """

    process: int = 0
    is_unprepared: bool = False
    why: str = ""


# -- from the service


class Start(_Message, frozen=True, tag="start"):
    """Asks the worker to start the guest."""


class Query(_Message, frozen=True, tag="query"):
    """Asks the worker to pass a query to the guest."""

    request: Object


class Comm(_Message, frozen=True, tag="comm"):
    """Asks the worker to pass the page's comm message to the guest."""

    message: CommMessage
    parent: Mapping[str, str] = {}


class OpenComms(_Message, frozen=True, tag="comms"):
    """Asks for the open comms."""


class NameState(_Message, frozen=True, tag="name"):
    """Asks the worker to name the current state of memory."""

    name: str


class Forget(_Message, frozen=True, tag="forget"):
    """Asks the worker to take a name from its state."""

    name: str


class Timeline(_Message, frozen=True, tag="timeline"):
    """Asks for the states as a tree, and the state that a redo leads to.

    If it `tells` the user that the session goes on, no cell does.
    """

    tells: bool = False


class Changes(_Message, frozen=True, tag="changes"):
    """Asks for the variables that differ between two states; `since` is 0 for the beginning."""

    state: int
    since: int


class Fork(_Message, frozen=True, tag="fork"):
    """Asks the worker to fork the session into new sessions of these ids."""

    ids: tuple[str, ...]
    reseed: bool


_OfHistory = TravelRequest | NameState | Forget | Timeline | Changes | Fork
CallRequest = Start | Cell | Query | Comm | OpenComms | _OfHistory
"""The requests that a call can carry; `REPLIES` has the type of each one's reply."""


class Call(_CallMessage, frozen=True, tag="call"):
    """A request with the number of its call."""

    request: CallRequest


class Interrupt(_Message, frozen=True, tag="interrupt"):
    """Interrupts a cell, by the number of its call; 0 for the running one."""

    call: int = 0


class InputReply(_Message, frozen=True, tag="line"):
    """The answer to the question of an `InputRequest`: a line, or the reason why there is none."""

    question: int
    text: str = ""
    refused: str = ""
    interrupted: bool = False


class Offer(_CallMessage, frozen=True, tag="offer"):
    """Offers the page's comm message to the running cell, which may `Claim` it while it waits."""

    message: CommMessage
    parent: Mapping[str, str] = {}


class Claimed(_CallMessage, frozen=True, tag="claimed"):
    """The answer to a `Claim`: whether the cell has the message, or its own turn has come."""

    granted: bool


class Ping(_Message, frozen=True, tag="ping"):
    """Asks for a `Pong`."""


class Close(_Message, frozen=True, tag="close"):
    """Asks the worker to close the session, and to end.

    Attributes:
        discard_variables: Whether the session's next worker begins without variables.
        asleep: Whether this process will go on with the session in another worker.
    """

    discard_variables: bool = False
    asleep: bool = False


Request = Open | Call | Interrupt | InputReply | Offer | Claimed | BrokerAnswer | Ping | Close

# -- from the worker


class OutputShown(_CallMessage, frozen=True, tag="shown"):
    """A cell has written text, or shown a rich output."""

    output: protocol.Output


class CommOut(_CallMessage, frozen=True, tag="said"):
    """The guest has sent a message on a comm."""

    message: CommMessage


class InputRequest(_CallMessage, frozen=True, tag="input"):
    """A cell asks its user for a line.

    Questions have numbers, so that a late answer to an interrupted one does not answer the next.
    """

    question: int
    prompt: str
    password: bool


class Claim(_CallMessage, frozen=True, tag="claim"):
    """Asks for an offered message. Outputs of the cell then belong to this call until `Served`."""


class Served(_CallMessage, frozen=True, tag="served"):
    """Tells that the running cell has served the message that it had claimed."""


class Noted(_Message, frozen=True, tag="noted"):
    """A sentence for the user, to be shown beside the output of cells."""

    text: LogText


class Terminating(_CallMessage, frozen=True, tag="terminating"):
    """A cell has asked its kernel to end after it."""


class States(Struct, frozen=True):
    """The states of a session's history; `redo` is the one that a redo leads to, 0 for none.

    `ran` tells by states' numbers how their cells ran, as far as it is known. `resumed` is the
    sentence that the session goes on with the variables of an earlier process, once. `saved` is
    False while states are being written to disk, None if they can't be.
    """

    states: list[Checkpoint]
    redo: Annotated[int, Meta(ge=0, le=2**31)] = 0
    ran: Mapping[int, Ran] = {}
    resumed: str = ""
    saved: bool | None = None
    memory_bytes: Annotated[int, Meta(ge=0, le=2**32)] = 0


REPLIES: Mapping[type[Struct], Any] = {
    Start: None,
    Cell: CellResult | None,
    Query: Object,
    Comm: None,
    OpenComms: dict[str, str],
    TravelRequest: Travelled,
    NameState: None,
    Forget: None,
    Timeline: States,
    Changes: VariableChanges,
    Fork: list[str],
}


class Figures(Struct, frozen=True):
    """A sandbox's figures in each answer of its worker; `fuel` is the cell's fuel, if counted."""

    next_count: Number = 1
    memory_bytes: Annotated[int, Meta(ge=0, le=2**32)] = 0
    commits: Annotated[int, Meta(ge=0, lt=2**31)] = 0
    fuel: Count = 0


class Ended(_CallMessage, frozen=True, tag="ended"):
    """A call's value, as JSON of the type that its caller expects."""

    value: Raw
    figures: Figures


class Failed(_CallMessage, frozen=True, tag="failed"):
    """A call's error; for call 0, the session could not be opened.

    `error` is the name of its class, from `wasm_kernel.errors` or another module of the package;
    `fields` are its attributes that are plain values.
    """

    error: Short
    text: LogText
    fields: Annotated[dict[Short, Scalar], Meta(max_length=50)] = {}


class Event(_Message, frozen=True, tag="event"):
    """An event for the application's log."""

    name: Short
    fields: Annotated[dict[Short, Scalar | tuple[str, ...]], Meta(max_length=50)]


class Stuck(_Message, frozen=True, tag="stuck"):
    """The guest must be stopped, for this reason, and only the end of the worker can stop it.

    Attributes:
        is_kept: Whether the state before the running cell is on disk.
        is_spoilt: Whether an earlier cell had left the guest unable to begin the running one; the
            state before that cell is then the session's.
    """

    reason: StopReason
    is_kept: bool
    is_spoilt: bool = False


class Waiting(_Message, frozen=True, tag="waiting"):
    """The start waits, for `seconds` at most, for the worker of a process that was killed."""

    seconds: Annotated[float, Meta(ge=0, le=1000)]


class Opened(_Message, frozen=True, tag="opened"):
    """The guest has started, so a worker's end may lose a call; its next cell is number `count`."""

    count: Number = 1


class MaySleep(_Message, frozen=True, tag="may_sleep"):
    """Nothing was asked for a while, and the whole state is on disk: the worker may be closed."""


class Closed(_Message, frozen=True, tag="closed"):
    """The session was closed properly; the last message.

    The stamps `verified` belong to contents of its state that are known to be right, so that the
    next worker need not read them all. A lie would only harm the session itself, so they are
    believed.
    """

    verified: Stamps


class Logged(_Message, frozen=True, tag="logged"):
    """A record of the worker's log, for the service's log."""

    level: LogLevel
    text: LogText


class Pong(_Message, frozen=True, tag="pong"):
    """The worker is well."""


_Said = OutputShown | CommOut | InputRequest | Claim | Served | Noted | Terminating
FromCell = _Said | BrokerRequest | BrokerCancel
"""The messages about outputs and questions of a running call."""

Report = (
    FromCell | Ended | Failed | Event | Logged | Stuck | Waiting | Opened | MaySleep | Closed | Pong
)

_requests: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Request)
_reports: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Report)


def read_report(data: bytes) -> Report:
    """Returns a worker's message, checked as untrusted input; or raises `FrameError`."""
    report: Report = channel.read(data, lambda text: _read(_reports, text))
    match report:
        case OutputShown(output=output) if not isinstance(output, protocol.Stream):
            protocol.check_depth(output)
            protocol.checked(output)
        case CommOut(message=message):
            protocol.check_depth(message)
    return report


def read_request(data: bytes) -> Request:
    """Returns a service's message."""
    request: Request = channel.read(data, _requests.decode)
    return request


def read_value(value: Raw, kind: Any) -> Any:
    """Returns the value of a call; `FrameError` if it is of another type."""
    found = _read(msgspec.json.Decoder(kind), value)
    protocol.check_depth(found if isinstance(found, Struct) else [found])
    return found


def _read(decoder: msgspec.json.Decoder[Any], data: bytes | Raw) -> Any:
    try:
        return decoder.decode(data)
    except RecursionError:
        raise FrameError("it is nested too deeply") from None
    except ValueError as problem:  # a DecodeError is a ValueError
        raise FrameError(str(problem)[:_LOG_CHARACTERS]) from None


# -- values that are sent as plain ones


def failure(call: int, problem: BaseException) -> Failed:
    """Returns the message of an error. An unforeseen error is logged, and sent without details."""
    if not isinstance(problem, WasmKernelError):
        if isinstance(problem, Exception):
            log_failure("a worker", problem)
        problem = HostFailed(INTERNAL_ERROR)
    fields = {k: v for k, v in vars(problem).items() if isinstance(v, Scalar)}
    return Failed(call, type(problem).__name__, str(problem)[:_LOG_CHARACTERS], fields)


def error_of(failed: Failed) -> WasmKernelError:
    """Returns the error of a worker's message, of the same class if this process has loaded it.

    Raises `FrameError` if it lacks fields that its class needs, or only the service may raise it.
    """
    kind = _family(WasmKernelError).get(failed.error, WasmKernelError)
    if issubclass(kind, LimitReached):  # front ends count them, by the limit's name
        raise FrameError("it tells of a limit of its service")
    if failed.call == 0 and issubclass(kind, GuestStopped):  # it has `Stuck` for that
        raise FrameError("it tells of the end of a guest that it never had")
    fields = {k: v for k, v in failed.fields.items() if not callable(getattr(kind, k, None))}
    clean = {k: terminal.clean(v) if isinstance(v, str) else v for k, v in fields.items()}
    error = kind.revived((terminal.clean(failed.text),), clean)
    try:
        str(error)
    except Exception:
        raise FrameError("its error lacks what it needs") from None
    return error


def _family(kind: type[WasmKernelError]) -> dict[str, type[WasmKernelError]]:
    found = {kind.__name__: kind} if kind.__module__.startswith("wasm_kernel.") else {}
    for child in kind.__subclasses__():
        found |= _family(child)
    return found
