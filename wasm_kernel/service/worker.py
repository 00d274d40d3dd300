"""A worker: the process of one session, forked from a process that has everything loaded.

It closes its walls before its guest begins, and serves the sandbox of its session until the service
closes the session or is gone.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, assert_never

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from wasm_kernel.engine.clock import THIS_PROCESS, StopReason
from wasm_kernel.errors import Door, ForkError, FrameError, HostFailed
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.functions import RequestFacts
from wasm_kernel.execution.interfaces import (
    Cell,
    InputInterrupted,
    InputRefused,
    OfferedMessage,
    SessionHooks,
    TravelRequest,
)
from wasm_kernel.execution.jobs import SAVE_SECONDS, QueuedCell
from wasm_kernel.execution.session_guest import SessionGuest
from wasm_kernel.execution.variables import changes_between
from wasm_kernel.folders.folders import SCRATCH, SandboxFolders
from wasm_kernel.folders.hiding import guarded
from wasm_kernel.folders.locks import Holder, Resume
from wasm_kernel.folders.private import Owner, PrivateFolders, lies_in_session
from wasm_kernel.guests.base import GuestLanguage, switched_off
from wasm_kernel.guests.protocol import TEXT_CHARACTERS, Output, Stream
from wasm_kernel.linux import confinement
from wasm_kernel.linux.broker import BrokerAnswer, BrokerError, RemoteBroker
from wasm_kernel.linux.channel import Channel
from wasm_kernel.linux.confinement import Confinement
from wasm_kernel.linux.folders import Folder
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import CellResult, Checkpoint, CommMessage
from wasm_kernel.service import messages
from wasm_kernel.service.open_message import KernelSession, Open, plain_policy
from wasm_kernel.sessions.forking import FORK, ForkSession, ForkSessionReply, fork_command
from wasm_kernel.sessions.last_use import LastUse
from wasm_kernel.sessions.session import session_paths
from wasm_kernel.state.file_journal import Beginning, FileRecord
from wasm_kernel.state.index import IndexHeader
from wasm_kernel.state.tree import checked_name

PACKAGES = ("wasmtime", "msgspec", "installer", "packaging", "numpy", "threadpoolctl")
"""The packages that may be imported from behind the walls, wherever they lie."""
_POLL_SECONDS = 0.05
_QUIET_SECONDS = 2.0  # without a message, before unused memory is given back
_TOO_LARGE = "an output or the error of the cell is too large"
_SHOW_LESS = "Show less at once, and write long outputs into a file."
_NO_FORK = "%fork makes a session for a notebook, which no client would find. None was made."
_LOG_CHARACTERS = 16 * 1024
_REHEARSALS = 10


def serve(channel: Channel, language: GuestLanguage) -> None:
    """Serves the session that the first message names, until the service closes it or is gone."""
    logging.getLogger("wasm_kernel").addHandler(_LogHandler(channel))
    confinement.get_ready(PACKAGES)  # while a spare worker waits for its session
    try:
        opened = messages.read_request(channel.receive())
    except (EOFError, OSError):
        return
    assert isinstance(opened, Open), "it comes first"
    try:
        worker = _Worker(channel, language, opened)
        THIS_PROCESS.ask_owner = worker.kill
    except Exception as problem:
        channel.send(messages.failure(0, problem))
        return
    worker.run()


def rehearse() -> None:
    """Does what opening a session does first, for all workers that are forked later.

    Python makes code quicker once it has run eight times, and msgspec reads a type's fields when it
    first meets the type.
    """
    for kind in (Owner, Holder, IndexHeader, Beginning, FileRecord):
        msgspec.json.Decoder(kind)
    with contextlib.suppress(OSError):  # a worker will report it
        for _ in range(_REHEARSALS):
            _try_steps()


def _try_steps() -> None:
    top = Path("/")
    guarded()
    lies_in_session(top)
    with Folder.open(top) as folder:
        PrivateFolders(top).find(SCRATCH, folder)
    ExecutionPolicy.from_values(plain_policy(ExecutionPolicy()))


class _Worker:
    """The guest of one session, and the requests of its service.

    The main thread uses it; pages use it on the guest's thread.
    """

    def __init__(self, channel: Channel, language: GuestLanguage, opened: Open) -> None:
        self._channel = channel
        self._lines: queue.SimpleQueue[messages.InputReply] = queue.SimpleQueue()
        self._questions = itertools.count(1)
        self._cells: dict[int, QueuedCell] = {}
        self._answers: queue.SimpleQueue[BrokerAnswer | None] = queue.SimpleQueue()
        self._claims: queue.SimpleQueue[messages.Claimed | None] = queue.SimpleQueue()
        self._broker = RemoteBroker(channel, "the service has ended", self._answers)
        policy = ExecutionPolicy.from_values(opened.policy).at(opened.door)
        walls = Confinement(opened.confinement)
        if opened.state_home is not None:
            os.environ["XDG_STATE_HOME"] = opened.state_home
        kernel = opened.kernel
        logger = SandboxLogger(_EventSender(channel) if kernel is None or kernel.logs else None)
        session = _open_session(opened, logger)
        folders = session.folders
        folders.verified |= opened.verified
        folders.notices += opened.notices
        seen = self._show_notebook(folders, opened)
        # before any thread or guest: no code of a cell ever has the rights given up here
        walls.close_files(_kept_by(folders, policy, opened.files_of))
        walls.close_calls()
        folders.open_mounts(policy.mounts)
        self._guest = SessionGuest(
            language,
            session,
            policy,
            logger,
            broker=self._broker,
            resume=Resume(opened.resume),
            pip=opened.pip,
            quiet=opened.quiet,
            count=opened.count,
            told=opened.told,
            note=self._note if kernel else None,
            on_wait=lambda seconds: self.send(messages.Waiting(seconds)),
        )
        self._awake_seconds = kernel.awake_seconds if kernel else None  # a kernel sleeps
        words = f"files: {walls.state.files}; system calls: {walls.state.calls}"
        self._guest.facts.add(lambda: {"confinement": words})
        self._add_commands(opened, session, policy.door, seen)

    def _add_commands(
        self, opened: Open, session: SessionHooks, door: Door, seen_folder: str
    ) -> None:
        """Adds the commands that reach beyond the sandbox, as far as its caller offers them."""
        self._guest.commands.functions = opened.functions
        if any(each.name == RequestFacts.function for each in opened.functions):
            self._guest.facts.add(RequestFacts(self._broker).now)
        if opened.kernel is not None and isinstance(session, LastUse):
            self._serve_kernel(opened, opened.kernel, session, seen_folder)
        elif opened.forks:
            own = fork_command(self._guest)
            no_fork = f"{_NO_FORK} {door.forking}"
            self._guest.commands.add(FORK, switched_off(no_fork) if door.forking else own)

    def _show_notebook(self, folders: SandboxFolders, opened: Open) -> str:
        """Lets a kernel's cells see its notebook's folder; returns the result in words."""
        kernel = opened.kernel
        if kernel is None:
            return ""
        from wasm_kernel.service.kernel_commands import show_notebook

        folders.reopened = kernel.reopened
        note = self._note if not opened.quiet else lambda text: None  # once a kernel
        return show_notebook(folders, kernel.notebook, note)

    def _serve_kernel(
        self, opened: Open, kernel: KernelSession, session: LastUse, seen: str
    ) -> None:
        """Gives cells the commands of a kernel; `seen` says whether they see its folder."""
        from wasm_kernel.service.kernel_commands import add_commands, let_results_out, sleeps

        facts = {"host_folder": "%session_path prints it", "notebook_folder": seen}
        facts["tomorrow"] = kernel.tomorrow
        facts["sleeps"] = sleeps(kernel, deterministic=bool(opened.policy["deterministic"]))
        self._guest.facts.add(lambda: facts)
        let_results_out(self._guest, session, kernel, self._note)
        add_commands(self._guest, session, kernel, pip=opened.pip)

    def _note(self, text: str) -> None:
        """Makes the front end show a sentence beside the output of cells."""
        self.send(messages.Noted(text[:_LOG_CHARACTERS]))

    def run(self) -> None:
        """Serves the service's requests, until the service closes the session or is gone.

        If it is gone, the session is left as after a crash.
        """
        discard = is_crash = is_asleep = False
        self._guest.start().add_done_callback(self._tell_opened)
        try:
            while not isinstance(message := self._next(), messages.Close):
                self._handle(message)
            discard = message.discard_variables
            is_asleep = message.asleep and self._awake_seconds is not None
            threading.Thread(target=self._hear_on, daemon=True).start()
        except (EOFError, OSError):
            is_crash = True
            self._guest.folders.leave()  # the next opening of the session waits for this process
            self._answers.put(None)
        self._claims.put(None)
        self._guest.close(discard_variables=discard, crashed=is_crash, asleep=is_asleep)
        with contextlib.suppress(OSError, FrameError):
            self._channel.send(messages.Closed(self._guest.folders.verified))

    def _tell_opened(self, started: Future[None]) -> None:
        if started.exception() is None:  # otherwise, each call gets the error
            self.send(messages.Opened(self._guest.runner.next_count))

    def _hear_on(self) -> None:
        """Handles messages while this process closes the session, which may take long.

        The stopped cell may still wait for the answer to a request, which tells it to cancel.
        """
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = messages.read_request(self._channel.receive())
                if isinstance(message, messages.Ping | BrokerAnswer):
                    self._handle(message)
        self._answers.put(None)

    def kill(self, reason: StopReason) -> None:
        """Asks for the end of this process, when the state before the running cell is on disk."""
        is_spoilt = self._guest.leave_spoilt_state()
        is_kept = self._guest.runner.state.wait_written(SAVE_SECONDS)
        try:
            self._channel.send(messages.Stuck(reason, is_kept, is_spoilt))
        except OSError:  # the service is gone
            os._exit(1)

    def _next(self) -> messages.Request:
        while self._channel.is_quiet(self._awake_seconds or _QUIET_SECONDS):
            if self._awake_seconds is not None:
                if self._guest.may_sleep():
                    self.send(messages.MaySleep())
                    break
            elif self._guest.rest():
                break
        return messages.read_request(self._channel.receive())

    def _handle(self, message: messages.Request) -> None:
        match message:
            case messages.Ping():
                self._channel.send(messages.Pong())
            case messages.InputReply():
                self._lines.put(message)
            case BrokerAnswer():
                self._answers.put(message)
            case messages.Interrupt(call=0):
                self._guest.interrupt()
            case messages.Interrupt():
                if (cell := self._cells.get(message.call)) is not None:
                    cell.interrupt()
            case messages.Offer():
                self._guest.runner.comms.offer(_Offered(self, message))
            case messages.Claimed():
                self._claims.put(message)
            case Open() | messages.Close():
                raise AssertionError("`Open` comes first and `Close` last")
            case messages.Call():
                self._begin(message.call, message.request)
            case _:
                assert_never(message)

    def _begin(self, call: int, request: messages.CallRequest) -> None:
        """Begins a call; the thread on which it ends sends its answer."""
        guest, page = self._guest, _Page(self, call)
        try:
            match request:
                case messages.Start():
                    served: Future[Any] = guest.start()
                case Cell():
                    served = self._cells[call] = guest.queue(request, page)
                case _:
                    serve = self._ways(page)[type(request)]
                    served = guest.between_cells(lambda: serve(request))
            self._when_done(call, served)
        except Exception as problem:  # such as SandboxClosed
            self.send(messages.failure(call, problem))

    def _ways(self, page: _Page) -> Mapping[type[Struct], Callable[[Any], Any]]:
        """Returns the functions that serve each type of `CallRequest` between cells, for a page."""
        runner, turns = self._guest.runner, self._guest.turns
        return {
            messages.Query: lambda asked: turns.query(asked.request),
            messages.Comm: lambda asked: turns.serve(asked.message, asked.parent, page),
            messages.OpenComms: lambda asked: turns.open_comms(page),
            TravelRequest: runner.plan_and_travel,
            messages.NameState: lambda asked: runner.name(checked_name(asked.name)),
            messages.Forget: lambda asked: runner.state.forget_name(asked.name),
            messages.Timeline: self._timeline,
            messages.Changes: lambda asked: changes_between(runner, asked.since, asked.state),
            messages.Fork: self._fork,
        }

    def _timeline(self, asked: messages.Timeline) -> messages.States:
        """Returns the states, on the guest's thread."""
        guest, state = self._guest, self._guest.runner.state
        return messages.States(
            [Checkpoint(**row) for row in state.tree.rows()],
            state.tree.undone[-1] if state.tree.undone else 0,
            state.tree.ran,
            guest.notices.pop_resumed() if asked.tells else "",
            state.wait_written(0) if state.saved else None,
            guest.runner.memory_bytes,
        )

    def _fork(self, call: messages.Fork) -> list[str]:
        """Makes forks, beyond the walls; returns the notice for each one's first cell."""
        with self._guest.frozen():
            requests = [ForkSession(name, reseed=call.reseed) for name in call.ids]
            try:
                return [self._broker.call(each, ForkSessionReply).notice for each in requests]
            except BrokerError as problem:  # it has the words of the error beyond the walls
                raise ForkError.revived((str(problem),), {"why": str(problem)}) from problem

    def _when_done(self, call: int, future: Future[Any]) -> None:
        def tell(ended: Future[Any]) -> None:
            self._cells.pop(call, None)
            try:
                # a cell that was interrupted before it began has no result
                value = None if ended.cancelled() else ended.result()
                self.send(self._answer(call, value))
            except FrameError:
                self.send(messages.failure(call, HostFailed(_TOO_LARGE, _SHOW_LESS)))
            except Exception as problem:  # without an answer the caller would wait for ever
                self.send(messages.failure(call, problem))

        future.add_done_callback(tell)

    def _answer(self, call: int, value: Any) -> messages.Ended:
        """Returns the message that ends a call with a value."""
        fuel = (value.fuel_consumed if isinstance(value, CellResult) else None) or 0
        runner = self._guest.runner
        used, states = runner.memory_bytes, runner.history_states
        figures = messages.Figures(runner.next_count, used, states, fuel)
        return messages.Ended(call, Raw(msgspec.json.encode(value)), figures)

    def claim(self, call: int) -> bool:
        """Asks the front end for an offered message; returns False if it delivers that itself."""
        self.send(messages.Claim(call))
        if (answer := self._claims.get()) is None:  # the front end is gone
            self._claims.put(None)  # a later claim must not wait either
            return False
        return answer.granted

    def send(self, message: Struct) -> None:
        """Sends a message. Any thread may call it."""
        with contextlib.suppress(OSError):  # the service is gone; the main thread notices, too
            self._channel.send(message)

    def ask(self, call: int, prompt: str, password: bool) -> messages.InputReply | None:
        """Asks the caller for a line, and waits for it; None if the cell was interrupted."""
        number = next(self._questions)
        self.send(messages.InputRequest(call, number, prompt, password))
        while not self._guest.runner.clock.should_stop():
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=_POLL_SECONDS)
                if line.question == number:
                    return line
        return None


def _open_session(opened: Open, logger: SandboxLogger) -> SessionHooks:
    """Returns the session of a sandbox, or its workspace outside of sessions, with open folders."""
    assert opened.folders is not None, "the owner of this worker has opened them"
    folders = SandboxFolders.from_opened(opened.folders)
    folders.expect(opened.mounts)
    folders.owned = opened.is_owned
    if opened.files_of:
        folders.share(Path(opened.files_of))
    if opened.session_id:
        return LastUse(opened.session_id, folders, logger)
    alone = SessionHooks()
    alone.folders = folders
    return alone


def _kept_by(
    folders: SandboxFolders, policy: ExecutionPolicy, files_of: str
) -> confinement.KeptPaths:
    """Returns the paths that a worker keeps."""
    kept = session_paths(folders, policy)
    shared = (Path(files_of),) if files_of else ()
    notebook = None if folders.notebook is None else folders.notebook.beneath
    seen = () if notebook is None else (Path(f"/proc/self/fd/{notebook.folder.fd}"),)
    writable, readable = (*kept.writable, *shared), (*kept.readable, *seen)
    return replace(kept, writable=writable, readable=readable, packages=PACKAGES)


class _Page:
    """The listener of a cell whose caller is beyond the walls. Used on the guest's thread."""

    collects = False  # the caller's side collects the outputs

    def __init__(self, worker: _Worker, call: int) -> None:
        self._worker = worker
        self._call = call

    def emit(self, output: Output) -> None:
        """Sends an output; splits a long text into pieces."""
        pieces = [output]
        if isinstance(output, Stream):
            text, most = output.text, TEXT_CHARACTERS
            pieces = [Stream(output.name, text[at : at + most]) for at in range(0, len(text), most)]
        for piece in pieces:
            self._worker.send(messages.OutputShown(self._call, piece))

    def comm(self, message: CommMessage) -> None:
        self._worker.send(messages.CommOut(self._call, message))

    def ask(self, prompt: str, password: bool) -> str:
        """Asks the caller for a line, and waits for it."""
        line = self._worker.ask(self._call, prompt, password)
        if line is None or line.interrupted:
            raise InputInterrupted
        if line.refused:
            raise InputRefused(line.refused)
        return line.text

    def terminate(self) -> None:
        """Tells the service that the cell asked for its kernel's end."""
        self._worker.send(messages.Terminating(self._call))


class _Offered(OfferedMessage):
    """A message of the page that the running cell may take while it awaits something.

    It waits for its turn in the front end, which alone knows the order. So the front end is asked
    first, and only one of the two serves the message.
    """

    def __init__(self, worker: _Worker, offer: messages.Offer) -> None:
        super().__init__(offer.message, offer.parent, _Page(worker, offer.call))
        self._worker, self._call = worker, offer.call

    def claim(self) -> bool:
        return self._worker.claim(self._call)

    def began(self) -> None:
        """Does nothing: the front end knows from the claim."""

    def ended(self) -> None:
        self._worker.send(messages.Served(self._call))


class _EventSender:
    """Sends events to the application's logger, which is beyond the walls."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def info(self, event: str, /, *args: Any, **fields: Any) -> None:
        """Sends an event; the service knows the level of each."""
        self._channel.send(messages.Event(event, fields))

    warning = info


class _LogHandler(logging.Handler):
    """Sends log records to the service."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)[:_LOG_CHARACTERS]
        with contextlib.suppress(Exception):
            self._channel.send(messages.Logged(record.levelno, text))
