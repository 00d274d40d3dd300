"""The kernel's front end: settings, session, sandbox, sockets, loop, and the end.

The order is for speed. The settings are read first, with little imported; then the guest starts in
its worker; then come ipykernel and the sockets, while the guest gets ready.
"""

# mypy: disable-error-code="no-untyped-call"
# (ipykernel carries no types)

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_core.application import JupyterApp
from traitlets import TraitError, Unicode
from traitlets.config import Config

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.events import SandboxLogger
from wasm_kernel.folders.folders import EXCHANGES
from wasm_kernel.folders.locks import Resume
from wasm_kernel.folders.places import has_warnings
from wasm_kernel.folders.private import opening_in
from wasm_kernel.frontends.jupyter import startup
from wasm_kernel.frontends.jupyter.confine import kept_by, open_broker
from wasm_kernel.frontends.jupyter.kernel_sandbox import AWAKE_SECONDS, KernelHome
from wasm_kernel.frontends.jupyter.launcher import KernelLaunch
from wasm_kernel.frontends.jupyter.ports import CHANNELS
from wasm_kernel.guests.base import info_of
from wasm_kernel.guests.broker_handlers import broker_handlers
from wasm_kernel.kernels.config_files import ConfiguredApp
from wasm_kernel.kernels.session import (
    begin_upkeep,
    handlers_beside,
    opened_beside,
    place_beside,
    upkeep_of,
)
from wasm_kernel.kernels.settings import (
    KernelSettings,
    check_names,
    connection_path,
    folder_of_notebook,
    notebook_of,
)
from wasm_kernel.linux.broker import Handlers, ProcessBroker
from wasm_kernel.linux.confinement import OFF, Confinement
from wasm_kernel.outputs import terminal
from wasm_kernel.outputs.bundle import Mode
from wasm_kernel.outputs.cleaner import Cleaner
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.publishing.place import PlaceBeside, PublishFiles
from wasm_kernel.publishing.publish import PublishCommand, ResultsNames
from wasm_kernel.service.fork_server import flavours_of
from wasm_kernel.service.open_message import Open, plain_policy
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.sessions.forking import ForkSession, fork_session
from wasm_kernel.sessions.session import Session

if TYPE_CHECKING:
    from wasm_kernel.frontends.jupyter.connection import KernelConnection, KernelSockets
    from wasm_kernel.frontends.jupyter.kernel import WasmKernel
    from wasm_kernel.frontends.jupyter.timeline import GiveFork
    from wasm_kernel.sessions.notebooks import SessionChoice

_PORTS = {"hb": "hb_port", "shell": "shell_port", "iopub": "iopub_port"}
_PORTS |= {"stdin": "stdin_port", "control": "control_port", "ip": "ip", "transport": "transport"}

_NOTES_MOST = 20
_BESIDE_SECONDS = 2.0
# Launchers pass these to every Python kernel. They name IPython's files on the host, which no guest
# sees. So they are accepted, without effect.
_IPYTHON = {
    "profile": "BaseIPythonApplication.profile",
    "profile-dir": "ProfileDir.location",
    "ipython-dir": "BaseIPythonApplication.ipython_dir",
}


class WasmKernelApp(ConfiguredApp):
    """One kernel process. Only the main thread uses it, except for `stop`.

    It answers a front end once it `serves`. The launch says how the process was started.
    """

    serves = False
    launch = KernelLaunch()
    _broker: ProcessBroker | None = None
    _give_fork: GiveFork | None = None

    description = "A Jupyter kernel whose cells run inside a WebAssembly sandbox."
    classes = [KernelSettings]  # noqa: RUF012 - traitlets wants a list
    aliases = dict(JupyterApp.aliases) | {"f": "WasmKernelApp.connection_file"}
    aliases |= {name: f"KernelConnection.{trait}" for name, trait in _PORTS.items()}
    aliases |= _IPYTHON

    connection_file = Unicode("", help="The connection file; kernel-<pid>.json by default.").tag(
        config=True
    )

    def _log_level_default(self) -> int:
        return logging.WARNING

    def initialize(self, argv: Sequence[str] | None = None) -> None:
        """Reads the command line and the config files; the command line wins."""
        self.parse_command_line(list(sys.argv[1:] if argv is None else argv))
        from_command_line: Config = deepcopy(self.config)
        self.load_files()
        self.update_config(from_command_line)
        self.log.setLevel(self.log_level)  # or traitlets makes records that no handler gets
        own = logging.getLogger("wasm_kernel")
        own.setLevel(self.log.level)
        own.handlers, own.propagate = list(self.log.handlers), False
        check_names(self.config)
        self.settings = KernelSettings(parent=self)

    def exit(self, exit_status: int | str | None = 0) -> None:
        """Ends the process; if the reason is a setting, raises its error instead."""
        problem = sys.exception()
        if isinstance(problem, TraitError):
            raise problem
        super().exit(exit_status)

    def print_help(self, classes: bool = False) -> None:
        """Prints help on the command line; imports the classes that it names only now.

        It does not list options of other kernels, which are accepted without effect.
        """
        from wasm_kernel.frontends.jupyter.connection import KernelConnection

        self.classes = [*self.classes, KernelConnection]
        named = {kind.__name__ for kind in (type(self), *self.classes)}
        self.aliases = {k: v for k, v in self.aliases.items() if v.split(".")[0] in named}
        super().print_help(classes)

    def run(self) -> None:
        """Runs the kernel until it is shut down."""
        path = connection_path(self.connection_file)
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a cell gets one core
        with ExitStack() as ending:
            sandbox, confinement = self._open(path, ending)
            self._serve(sandbox, path, confinement)

    def refuse(self, why: str, path: Path) -> None:
        """Answers a front end with the reason why there is no kernel, until it shuts down."""
        from wasm_kernel.frontends.jupyter.refusal import RefusingHome

        self.settings = KernelSettings()
        self._serve(RefusingHome(why).sandbox(), path, Confinement(OFF))

    def _open(self, path: Path, ending: ExitStack) -> tuple[Sandbox, Confinement]:
        policy = self.settings.policy()
        confinement = Confinement(self.settings.confinement)
        choice = self.settings.choose_session(path)
        ending.callback(choice.close)
        place = self._place(choice, path, policy)
        handlers = self._handlers(place, policy, lambda: _folder_of(choice))

        def begin() -> None:
            self.launch.ports.close()  # the broker's process needs none of them
            begin_upkeep(self.settings, place.root, _BESIDE_SECONDS)

        self._broker, supply = open_broker(
            handlers,
            self.launch.nursery,
            ending,
            language=self.settings.runtime.value,
            flavours=flavours_of(plain_policy(policy), self.settings.confinement),
            begin=begin,
            at_end=choice.ended,
        )
        logger = self._logger(ending)
        session = Session(place.root, choice.session_id, logger, mounts=policy.mounts)
        ending.callback(session.closed)
        choice.opened(session)
        if notebook_of(os.environ) and has_warnings():  # a person reads its output
            session.folders.notices += upkeep_of(self.settings, place.root).warnings()
        home = KernelHome(session, supply, self._broker, handlers)
        self._give_fork = home.give_fork if self.settings.fork else None
        opened = home.owned(self._open_message(session, choice, place, policy))
        supply.begin(opened)
        info_of(self.settings.runtime)  # while it can still read these files
        published = (session.folders.real,) if self._publishes_at_end else ()
        confinement.close_files(kept_by(path, self.config, published))
        if self._publishes_at_end:
            publishing = PublishCommand(session, ResultsNames(place.into, place.names))
            ending.callback(publishing.publish_all, self._broker)
        sandbox = home.sandbox(opened, policy, session.logger, noted=self._show_note)
        ending.callback(sandbox.close)
        return sandbox, confinement

    def _place(self, choice: SessionChoice, path: Path, policy: ExecutionPolicy) -> PlaceBeside:
        follows = None if self.settings.publish_folder else choice.file
        at = (self.settings.root, choice.session_id, self.settings.published_into())
        return place_beside(self.settings, policy, *at, secret=path, follows=follows)

    def _open_message(
        self, session: Session, choice: SessionChoice, place: PlaceBeside, policy: ExecutionPolicy
    ) -> Open:
        """Returns the message that opens the session in its worker."""
        return opened_beside(
            self.settings,
            policy,
            session,
            place,
            resume=Resume(self.settings.resume),
            of_notebook=choice.is_of_notebook,
            publishes_at_end=self._publishes_at_end,
            logs=self._has_log,
            tomorrow=choice.tomorrow,
            awake_seconds=AWAKE_SECONDS,
        )

    @cached_property
    def _notes(self) -> deque[str]:
        """The notes that a page shows quietly, until they are shown."""
        return deque(maxlen=_NOTES_MOST)

    def _show_note(self, text: str) -> None:
        """Keeps a sentence for the user's page; the log gets it, too, if there is no page.

        It may come from the worker, which a cell may have taken over.
        """
        text = terminal.clean(text)
        self._notes.append(text)
        said = text.removeprefix("[wasm-kernel] ").rstrip()
        self.log.warning("%s", terminal.printable(said))

    @property
    def _publishes_at_end(self) -> bool:
        """True if the settings name a folder for results, and no page shows the published files."""
        return bool(self.settings.publish_folder) and not folder_of_notebook(os.environ)

    def _handlers(
        self, place: PlaceBeside, policy: ExecutionPolicy, folder: Callable[[], Path | None]
    ) -> Handlers:
        """The handlers of the broker; each checks its request as untrusted input.

        `folder` returns the folder of the kernel's notebook.
        """
        root, session_id = place.root, place.session_id
        private = root.private_of(session_id)
        handlers: Handlers = {
            **broker_handlers(self.settings.runtime, private, pip=self.settings.pip),
            **handlers_beside(self.settings, place),
            PublishFiles: place.publish,
        }
        if policy.network:
            from wasm_kernel.frontends.jupyter.kernel_network import BrokerNetwork, CellRequest

            network = BrokerNetwork(policy, opening_in(private, EXCHANGES))
            handlers = {**handlers, CellRequest: network.serve}
        if not self.settings.fork:
            return handlers
        lineage = root.lineage_below(session_id)
        return {**handlers, ForkSession: fork_session(root, lineage, policy, folder)}

    @property
    def _has_log(self) -> bool:
        """True if events have a log: a file, or this process's log at level INFO or below."""
        is_told = logging.getLogger("wasm_kernel").isEnabledFor(logging.INFO)
        return self.settings.event_file is not None or is_told

    def _logger(self, ending: ExitStack) -> SandboxLogger | None:
        """The logger of events: a file if one is set, else the log at level INFO or below."""
        place = self.settings.event_file
        if place is None:
            return SandboxLogger(logging.getLogger("wasm_kernel")) if self._has_log else None
        from wasm_kernel.events import EventFile

        file = EventFile(place)
        ending.callback(file.close)
        return SandboxLogger(file.logger())

    def _serve(self, sandbox: Sandbox, path: Path, confinement: Confinement) -> None:
        self.serves = True
        starting = startup.StartProgress(sandbox)
        starting.start()
        # the imports from here on take long; the guest starts at the same time
        for package in ("ipykernel", "jupyter_client", "IPython"):
            startup.lazily(package)
        with startup.without("curses"):  # tornado would colour its log on a terminal
            from wasm_kernel.frontends.jupyter.connection import KernelConnection, KernelSockets

        connection = KernelConnection(parent=self, connection_file=str(path))
        connection.open(allow_unsigned=self.settings.allow_unsigned)
        sockets = KernelSockets(connection, self.launch.ports)
        try:
            connection.save()
            self._loop(self._kernel(starting, connection, sockets), sockets, confinement)
        finally:
            sockets.close()
            connection.cleanup()

    def _end_as_killed(self) -> None:
        """Ends this process at once, as its broker has ended: no worker can be had any more.

        Jupyter starts a new kernel, which goes on with the variables, as after a crash.
        """
        self.log.critical("The kernel's helper process has ended, and so does the kernel.")
        os._exit(1)

    def _kernel(
        self, starting: startup.StartProgress, connection: KernelConnection, sockets: KernelSockets
    ) -> WasmKernel:
        from zmq.eventloop.zmqstream import ZMQStream

        from wasm_kernel.frontends.jupyter.channels import ShellChannel
        from wasm_kernel.frontends.jupyter.kernel import WasmKernel
        from wasm_kernel.frontends.jupyter.page import Page

        session, cleaner = connection.session, Cleaner(Mode(self.settings.outputs))
        page = Page(starting, session, sockets, cleaner)
        page.timeline.give_fork = self._give_fork
        kernel = WasmKernel(
            page=page,
            notes=self._notes,
            parent=self,
            session=session,
            shell_stream=ShellChannel(sockets.shell),
            control_stream=ZMQStream(sockets.control, sockets.control_thread.io_loop),
            control_thread=sockets.control_thread,
            iopub_socket=sockets.iopub,
            stdin_socket=sockets.stdin,
            log=self.log,
        )
        names = [f"{each}_port" for each in CHANNELS]
        kernel.record_ports({name: getattr(connection, name) for name in names})
        return kernel

    def _loop(self, kernel: WasmKernel, sockets: KernelSockets, confinement: Confinement) -> None:
        kernel.start()
        sockets.iopub.when_subscribed(kernel.subscribed)
        sockets.start()
        loop = kernel.loop
        sockets.iopub.watch(loop)
        _on_signals(loop, kernel)
        self.launch.watch(loop)
        if self._broker is not None:
            loop.add_reader(self._broker.descriptor, self._end_as_killed)
        confinement.close_calls()
        gc.freeze()
        gc.enable()
        kernel.io_loop.start()
        # a task waits for a cell that still runs; the sandbox is closed next
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))


def _folder_of(choice: SessionChoice) -> Path | None:
    """Returns the folder in which a kernel's notebook lies now; None if that is not known."""
    file = choice.file if choice.is_own else None
    return None if file is None else file.moved().parent


def _on_signals(loop: asyncio.AbstractEventLoop, kernel: WasmKernel) -> None:
    """Makes SIGINT interrupt the cell and SIGTERM end the kernel, a second SIGTERM at once.

    The handlers only wake the loop: the interrupted code may hold any lock that they would need.
    """

    def interrupt(*_: object) -> None:
        loop.call_soon_threadsafe(kernel.interrupt)

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        loop.call_soon_threadsafe(kernel.stop)

    for number, handler in ((signal.SIGINT, interrupt), (signal.SIGTERM, end)):
        # The loop's own handler, which does nothing, wakes it if a signal comes just before it
        # begins to wait; but it would come after a message that the loop reads at the same time.
        loop.add_signal_handler(number, lambda: None)
        signal.signal(number, handler)


def main(argv: Sequence[str] | None = None, launch: KernelLaunch | None = None) -> None:
    """Runs a kernel in this process, with the options of the command line.

    By default, the process was started as a kernel, and not forked.
    """
    # Until the kernel is up there is no cell to interrupt, but its client may send SIGINT already.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # a start allocates much and frees little; the loop enables it again
    words = sys.argv[1:] if argv is None else argv
    app = WasmKernelApp()
    app.launch = launch or app.launch
    try:
        app.initialize(words)
        app.run()
    except (Exception, SystemExit) as problem:
        if isinstance(problem, SystemExit) and not problem.code:
            raise
        _refuse(problem, app, words)


def _refuse(problem: BaseException, app: WasmKernelApp, words: Sequence[str]) -> None:
    """Says why there is no kernel, also to a front end that waits for one."""
    from wasm_kernel.frontends.jupyter import refusal

    why, path = refusal.reason(problem, app), refusal.waiting_for(words)
    print(f"wasm-kernel: {why}", file=sys.stderr)  # noqa: T201 - there may be no other place
    if app.serves or path is None:
        sys.exit(1)
    refusing = WasmKernelApp()
    refusing.launch = app.launch
    try:
        refusing.refuse(why, path)
    except (WasmKernelError, ImportError):
        sys.exit(1)
