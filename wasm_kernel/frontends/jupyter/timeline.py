"""The timeline beside a notebook: the states of its session, for a view in the page.

A view opens a comm to the target `TARGET`. The front end owns that target and answers it, so no
message of a view reaches the guest, and no message of the guest reaches a view. `docs/timeline.md`
describes the messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from wasm_kernel.errors import ForkError, GuestStopped, WasmKernelError
from wasm_kernel.execution.interfaces import Cell, TravelRequest
from wasm_kernel.kernels.messages import count_of
from wasm_kernel.result import CommMessage, SandboxResult, first_of
from wasm_kernel.service import messages

if TYPE_CHECKING:
    from wasm_kernel.frontends.jupyter.timeline_widget import TimelineWidget
    from wasm_kernel.result import Checkpoint, Ran, Travelled, VariableChanges
    from wasm_kernel.service.sandbox import Sandbox

TARGET = "wasm_kernel.timeline"
VIEWS_MOST = 16
PUSH_SECONDS = 0.5  # between two trees that a view gets without asking
_RUNS_MOST = 1000
_FILES_MOST = 100
_KINDS = ("created", "modified", "deleted")
_LABEL = 80
_NO_FORKS = "WasmKernel.fork is off in this kernel"

Content = dict[str, Any]
Send = Callable[[Content, CommMessage], None]
GiveFork = Callable[[str, str], None]
"""Gives a fork, by its session id, to a notebook beside the kernel's, by its name."""


class _ViewRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A request of a view; the reply has the same `id`."""

    id: int
    request: Literal["tree", "go", "undo", "redo", "checkpoint", "forget", "fork", "changes"]
    state: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    since: Annotated[int, Meta(ge=0, le=2**31)] = 0
    files: bool = False
    name: str = ""
    notebook: Annotated[str, Meta(pattern=r"^[^/\x00]{1,200}\.ipynb$")] | None = None


class KernelTimeline:
    """The views of the session's states in pages, and the cells that this kernel ran.

    All but `takes` is for the main thread's loop. Without a view, a cell only costs a note of its
    run.
    """

    def __init__(self, sandbox: Sandbox, send: Send) -> None:
        self.give_fork: GiveFork | None = None
        self._sandbox = sandbox
        self._send = send
        self._views: dict[str, None] = {}
        self._widget: TimelineWidget | None = None  # the last one
        self._used: Content = {"fuel": None, "seconds": None}  # what the last counted cell used
        self._lost: dict[int, Content] = {}  # cells that lost their guest, by number
        self._last_runs: dict[str, int] = {}  # the number of each notebook cell's last run
        self._gone: set[str] = set()  # notebook cells whose effects memory does not have
        self._resumed = ""  # the sentence that the session goes on, until a cell runs
        self._version = 0  # the version of the states
        self._known: tuple[int, Content] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._will_push, self._pushed = False, 0.0

    def takes(self, message: CommMessage) -> bool:
        """Returns whether a message on a comm belongs to a view. Any thread."""
        widget = self._widget
        is_widgets = widget is not None and message.comm_id in widget.comms
        return is_widgets or message.target_name == TARGET or message.comm_id in self._views

    def is_named_in(self, content: Any) -> bool:
        """Returns whether a cell's content names a model of the widget: to link, or to show it.

        The page links and shows models by their ids, which a saved notebook has. Any thread.
        """
        widget = self._widget
        if widget is None:
            return False
        text = str(content)
        return any(comm in text for comm in widget.comms)

    async def widget(self, parent: Content) -> Content:
        """Returns an output's data: a widget of the states in place of the last one.

        There is none if a page shows the states in its panel.
        """
        if self._views:
            return {}
        from wasm_kernel.frontends.jupyter.timeline_widget import TimelineWidget

        tree = await self._tree()
        if self._widget is not None:
            self._widget.close(parent)
        self._widget = TimelineWidget(self._replied, self._send, parent, tree)
        return self._widget.bundle

    # -- what happens in the session

    def cell_ended(self, cell: Cell, result: SandboxResult) -> None:
        """Notes a cell's run; views get the states soon."""
        number = count_of(result.reply)
        if cell.store_history and number:
            self._resumed = ""
            self._used = {"fuel": result.fuel_consumed, "seconds": result.duration}
            error = "" if result.error is None else result.error.ename
            if (outcome := _outcome(error)) in _LOST:
                self._lost[number] = {
                    "cell": number,
                    "label": _shown(cell.code.strip().split("\n", 1)[0][:_LABEL]),
                    "seconds": result.duration,
                    "outcome": outcome,
                    "files": _files_of(result),
                }
            if cell.cell_id:
                self._last_runs.pop(cell.cell_id, None)
                self._last_runs[cell.cell_id] = number
                self._gone.discard(cell.cell_id)
            self._forget_oldest()
        self.changed()

    def _forget_oldest(self) -> None:
        if len(self._lost) > _RUNS_MOST:
            del self._lost[next(iter(self._lost))]
        while len(self._last_runs) > _RUNS_MOST:  # a worker that was taken over tells of any
            oldest = next(iter(self._last_runs))
            del self._last_runs[oldest]
            self._gone.discard(oldest)

    def changed(self) -> None:
        """Notes that the states may have changed; views get them soon."""
        self._version += 1
        if (self._views or self._widget) and not self._will_push:
            self._will_push = True
            self._keep(self._push())

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself does not
        task.add_done_callback(self._tasks.discard)

    async def _push(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._pushed + PUSH_SECONDS - loop.time()))
        self._will_push = False
        try:
            tree = await self._tree()
        except WasmKernelError:
            return  # the sandbox is closed, or does not start, as each cell says
        self._pushed = loop.time()
        if tree["saved"] is False:
            self.changed()  # soon
        for view in [*self._views]:
            self._send({}, CommMessage("msg", view, {"event": "tree", **tree}))
        if self._widget is not None:
            self._widget.show(tree)

    # -- requests

    def answer(self, parent: Content, message: CommMessage) -> None:
        """Takes a message of a view; the answer comes later, but acts before later cells."""
        widget = self._widget
        if widget is not None and message.comm_id in widget.comms:
            if message.kind == "close":
                self._widget = None
            else:
                self._keep(widget.heard(message))
        elif message.kind == "close":
            self._views.pop(message.comm_id, None)
        elif message.kind == "open":
            if len(self._views) >= VIEWS_MOST:
                self._send(parent, CommMessage("close", message.comm_id))
                return
            self._views[message.comm_id] = None
            self._pushed = 0.0
            self.changed()
        else:
            self._keep(self._reply(parent, message))

    async def _reply(self, parent: Content, message: CommMessage) -> None:
        reply = CommMessage("msg", message.comm_id, await self._replied(message.data))
        self._send(parent, reply)

    async def _replied(self, request: Mapping[str, Any]) -> Content:
        reply: Content = {"id": request.get("id")}
        try:
            asked = msgspec.convert(request, _ViewRequest)
            done = await self._served(asked)
            reply |= done if asked.request == "tree" else _shown(done)
        except msgspec.ValidationError as problem:
            reply["error"] = f"The request can't be read: {problem}."
        except WasmKernelError as problem:
            reply["error"] = str(problem)
        return reply

    async def _served(self, asked: _ViewRequest) -> Content:
        """Returns the reply to a request."""
        match asked:
            case _ViewRequest(request="tree"):
                return await self._tree()
            case _ViewRequest(request="go", state=int()):
                where = f"#{asked.state}"
                return await self._travel(TravelRequest("restore", where=where, files=asked.files))
            case _ViewRequest(request="undo" | "redo" as kind):
                return await self._travel(TravelRequest(kind, files=asked.files))
            case _ViewRequest(request="checkpoint"):
                await self._call(messages.NameState(asked.name.strip()))
            case _ViewRequest(request="forget"):
                await self._call(messages.Forget(asked.name))
            case _ViewRequest(request="changes", state=int(state)):
                changes: VariableChanges = await self._call(messages.Changes(state, asked.since))
                return dict(msgspec.to_builtins(changes))
            case _ViewRequest(request="fork", notebook=str(notebook)):
                return await self._fork(notebook)
            case _:
                raise msgspec.ValidationError("it lacks a field")
        self.changed()
        return {}

    def _call(self, request: messages.CallRequest) -> asyncio.Future[Any]:
        return asyncio.wrap_future(self._sandbox.call(request))

    async def _travel(self, request: TravelRequest) -> Content:
        done: Travelled = await self._call(request)
        self.changed()
        return {name: value for name, value in asdict(done).items() if name != "cells"}

    async def _fork(self, notebook: str) -> Content:
        from wasm_kernel.sessions import ids

        if self.give_fork is None:
            raise ForkError(_NO_FORKS)
        session = ids.new()
        self.give_fork(session, notebook)
        await self._call(messages.Fork((session,), reseed=True))
        return {"session": session}

    # -- the states

    async def _tree(self) -> Content:
        """Returns the states and the cells; asks the worker only if they may have changed."""
        version = self._version
        if self._known is None or self._known[0] != version:
            found: messages.States = await self._call(messages.Timeline(tells=True))
            self._known = version, self._content(found)
        return self._known[1]

    def _content(self, found: messages.States) -> Content:
        states: dict[int, Content] = {}
        self._resumed = found.resumed.removeprefix("[wasm-kernel] ").strip() or self._resumed
        for each in found.states:  # one for each name
            ran = found.ran.get(each.id)
            state = states.setdefault(each.id, _state(each, ran))
            if ran and ran.cell_id and each.cell:  # also those of an earlier kernel
                before = self._last_runs.get(ran.cell_id, 0)
                self._last_runs[ran.cell_id] = max(before, each.cell)
            state["names"] += [each.name] if each.name else []
        self._forget_oldest()
        here = next((each.id for each in found.states if each.here), 0)
        line = _lineage(states, here)
        of_cells = {state["cell"]: one for one, state in states.items() if state["cell"]}
        self._mark(of_cells, line)
        return {
            "states": [*states.values()],
            "here": here,
            "redo": found.redo if found.redo in states else 0,
            "lost": self._without_state(of_cells, line),
            "gone": sorted(self._gone),
            "resumed": self._resumed,
            "saved": found.saved,
            "memory_bytes": found.memory_bytes,
            "memory_limit": self._sandbox.policy.memory_bytes,
            "fuel_limit": self._sandbox.policy.fuel_budget,
            **self._used,
        }

    def _mark(self, of_cells: dict[int, int], line: set[int]) -> None:
        """Notes which notebook cells' effects memory has; keeps the notes of folded states."""
        for cell_id, number in self._last_runs.items():
            state = of_cells.get(number)
            if state in line:
                self._gone.discard(cell_id)
            elif state is not None:
                self._gone.add(cell_id)

    def _without_state(self, of_cells: dict[int, int], line: set[int]) -> list[Content]:
        """Returns the cells that lost their guest, and so left no state."""
        lost = {number: row for number, row in self._lost.items() if number not in of_cells}
        for number, row in lost.items():
            before = [one for cell, one in of_cells.items() if cell < number and one in line]
            row.setdefault("at", max(before, default=0))  # the state in which the cell ran
        return [*lost.values()]


def _lineage(states: dict[int, Content], at: int) -> set[int]:
    line: set[int] = set()
    while at in states and at not in line:  # a worker that was taken over may send a circle
        line.add(at)
        at = states[at]["parent"]
    return line


def _shown(found: Any) -> Any:
    """Returns texts of cells, alone or in lists and objects, as a page may show them.

    Invisible characters, which could hide or turn around others, are escaped as in Python.
    """
    if isinstance(found, str):
        return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in found)
    if isinstance(found, dict):
        return {_shown(name): _shown(value) for name, value in found.items()}
    return [_shown(each) for each in found] if isinstance(found, list | tuple) else found


def _state(found: Checkpoint, ran: Ran | None) -> Content:
    kinds = {} if ran is None else {kind: getattr(ran, kind) for kind in _KINDS}
    if ran is not None and ran.more:
        kinds["modified"] = (*kinds["modified"], f"and {ran.more:,} more")
    return {name: getattr(found, name) for name in ("id", "parent", "cell", "time", "bytes")} | {
        "label": _shown(found.label),
        "names": [],
        "sent": ran is not None and ran.sent,
        "outcome": "" if ran is None else _outcome(ran.error),
        "seconds": None if ran is None else ran.seconds,
        "fuel": None if ran is None else ran.fuel,
        "files": {kind: _shown(paths) for kind, paths in kinds.items() if paths},
    }


_OUTCOMES = {
    "KeyboardInterrupt": "interrupted",
    "Interrupted": "interrupted",
    "OutOfFuel": "fuel",
    "CellTimeout": "time",
    "OutOfMemory": "memory",
}
_LOST = {"interrupted", "fuel", "time", "memory", "lost"}


def _outcome(error: str) -> str:
    """Returns how a cell ended, by the name of its error, empty after success."""
    if not error:
        return "ok"
    stops = (kind.__name__ for kind in GuestStopped.__subclasses__())
    return _OUTCOMES.get(error, "lost" if error in stops else "error")


def _files_of(result: SandboxResult) -> dict[str, list[str]]:
    made = set(result.files_created)
    files = {
        "created": result.files_created,
        "modified": [path for path in result.files_modified if path not in made],
        "deleted": result.files_deleted,
    }
    return {kind: _shown(first_of(paths, _FILES_MOST)) for kind, paths in files.items() if paths}
