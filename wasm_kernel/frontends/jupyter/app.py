"""The kernel's process: settings, session, sandbox, sockets, loop, and the end.

The order is for speed. What can be configured is read first, with little imported; then the guest
starts on its own thread; then come ipykernel and the sockets, while the guest gets ready.
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
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_core.application import JupyterApp
from jupyter_core.paths import jupyter_config_dir, jupyter_data_dir, jupyter_runtime_dir
from traitlets import TraitError, Unicode
from traitlets.config import Config

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.events import SandboxLogger
from wasm_kernel.folders.locks import Resume
from wasm_kernel.folders.notebook import NotShown
from wasm_kernel.folders.private import session_private
from wasm_kernel.frontends.jupyter import startup
from wasm_kernel.frontends.jupyter.confine import kept_by
from wasm_kernel.frontends.jupyter.settings import RUNTIME, KernelSettings, connection_path
from wasm_kernel.guests.base import CommandContext, broker_handlers, load, switched_off
from wasm_kernel.linux.broker import Broker, Handlers, LocalBroker, ProcessBroker
from wasm_kernel.linux.confinement import Confinement
from wasm_kernel.outputs.bundle import Mode
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.sessions.forking import FORK, ForkSession, fork_command, fork_session
from wasm_kernel.sessions.session import Session

if TYPE_CHECKING:
    from wasm_kernel.execution.sandbox import BaseSandbox
    from wasm_kernel.frontends.jupyter.connection import Connection, KernelSockets
    from wasm_kernel.frontends.jupyter.kernel import WasmKernel
    from wasm_kernel.frontends.jupyter.startup import StartProgress

SandboxFactory = Callable[[Session, ExecutionPolicy, Resume, Broker], "BaseSandbox"]

_PORTS = {"hb": "hb_port", "shell": "shell_port", "iopub": "iopub_port"}
_PORTS |= {"stdin": "stdin_port", "control": "control_port", "ip": "ip", "transport": "transport"}

_UNREAD = (
    "a module can't be imported ({why}), and no kernel was started. Either the installation is not "
    "complete (`wasm-kernel doctor` says more), or the module lies beside the notebook or in your "
    "home folder, which the kernel gives up: then leave that folder out of PYTHONPATH, or start "
    "with WasmKernel.confinement=off."
)

_PIP_OFF = (
    "%pip is switched off in this kernel (WasmKernel.pip). Packages of your own can lie in /app "
    "and be imported from there."
)
_PRUNE_OFF = (
    "%prune_sessions is off in this kernel, as a notebook that somebody else wrote could delete "
    "your other sessions with it. Nothing was deleted. To turn it on, start the kernel with "
    "WasmKernel.prune_sessions=True; `wasm-kernel sessions prune` does the same from a terminal."
)

# Launchers hand these to every Python kernel. They name IPython's files on the host, which no guest
# sees: accepted, and without effect.
_IPYTHON = {
    "profile": "BaseIPythonApplication.profile",
    "profile-dir": "ProfileDir.location",
    "ipython-dir": "BaseIPythonApplication.ipython_dir",
}


def create(
    session: Session, policy: ExecutionPolicy, resume: Resume, broker: Broker
) -> BaseSandbox:
    """Makes the sandbox of a real kernel."""
    from wasm_kernel.execution.create import create_sandbox

    return create_sandbox(
        folders=session.folders,
        policy=policy,
        session_id=session.id,
        logger=session.logger,
        resume=resume,
        hooks=session,
        language=load(RUNTIME, broker if isinstance(broker, ProcessBroker) else None),
        broker=broker,
    )


def open_broker(
    handlers: Handlers, confinement: Confinement, ending: ExitStack
) -> LocalBroker | ProcessBroker:
    """Makes the broker; if the process will be confined, in a process that is not.

    Must come first: the broker should not have the files that the process opens later.

    Args:
        handlers: The requests that it serves.
        confinement: The confinement of this process.
        ending: Closes the broker.
    """
    if not confinement.is_closing:
        return LocalBroker(handlers)
    if startup.needs_bytecode():
        ending.callback(startup.write_bytecode().poll)  # long done; otherwise it ends by itself
    broker = ProcessBroker.spawn(handlers)
    ending.callback(broker.close)
    return broker


class WasmKernelApp(JupyterApp):
    """One kernel process. The main thread's own, except for `stop`."""

    name = "jupyter-wasm-kernel"  # so that jupyter_wasm_kernel_config.py configures it
    description = "A Jupyter kernel whose cells run inside a WebAssembly sandbox."
    classes = [KernelSettings]  # noqa: RUF012 - what traitlets wants
    aliases = dict(JupyterApp.aliases) | {"f": "WasmKernelApp.connection_file"}
    aliases |= {name: f"Connection.{trait}" for name, trait in _PORTS.items()}
    aliases |= _IPYTHON
    raise_config_file_errors = True  # a limit in a file that can't be read must not get lost

    connection_file = Unicode("", help="The connection file; kernel-<pid>.json by default.").tag(
        config=True
    )

    def _log_level_default(self) -> int:
        return logging.WARNING

    def initialize(self, argv: Sequence[str] | None = None) -> None:
        """Reads the command line and the config files; the command line wins."""
        self.parse_command_line(list(sys.argv[1:] if argv is None else argv))
        from_command_line: Config = deepcopy(self.config)
        self.load_config_file(suppress_errors=False)
        self.update_config(from_command_line)
        self.log.setLevel(self.log_level)  # or traitlets makes records that nobody gets
        own = logging.getLogger("wasm_kernel")
        own.setLevel(self.log.level)
        own.handlers, own.propagate = list(self.log.handlers), False
        self.settings = KernelSettings(parent=self)

    def print_help(self, classes: bool = False) -> None:
        """Prints help on the command line; imports the classes it names only now.

        Options that other kernels' launchers pass, and that mean nothing here, are not listed.
        """
        from wasm_kernel.frontends.jupyter.connection import Connection

        self.classes = [*self.classes, Connection]
        named = {kind.__name__ for kind in (type(self), *self.classes)}
        self.aliases = {k: v for k, v in self.aliases.items() if v.split(".")[0] in named}
        super().print_help(classes)

    def run(self, factory: SandboxFactory) -> None:
        """Runs the kernel until somebody shuts it down."""
        path = connection_path(self.connection_file)
        policy, shows_folder = self.settings.policy(), self.settings.shows_folder
        confinement = Confinement(self.settings.confinement)
        root, session_id = self.settings.root, self.settings.session_for(path)
        with ExitStack() as ending:
            broker = open_broker(self._handlers(root, session_id), confinement, ending)
            logger = self._logger(ending)
            private_root = self.settings.private_folder
            session = Session(
                root, session_id, logger, private_root=private_root, mounts=policy.mounts
            )
            ending.callback(session.closed)
            folder = self._show_folder(session, path) if shows_folder else "not shown"
            confinement.close_files(kept_by(session.folders, policy, path, self.config))
            sandbox = factory(session, policy, Resume(self.settings.resume), broker)
            ending.callback(sandbox.close)
            self._add_commands(sandbox, session, confinement, folder)
            self._serve(sandbox, path, confinement)

    def _show_folder(self, session: Session, path: Path) -> str:
        """Lets cells see the notebook's folder; returns what became of it. No thread runs yet."""
        folders = session.folders
        try:
            kept = [jupyter_runtime_dir(), jupyter_data_dir(), jupyter_config_dir()]
            folders.show_notebook(self.settings.root, path, [Path(each) for each in kept])
        except NotShown as problem:
            if session.made:
                folders.notices += (str(problem),)
            return f"not shown, as it {problem.why}"
        except OSError:
            return "not shown, as it is gone"
        return "shown as /notebook, never changed"

    def _handlers(self, root: Path, session_id: str) -> Handlers:
        """The handlers of the broker; each checks its request as a stranger's."""
        private = self.settings.private_folder
        handlers: Handlers = {
            **broker_handlers(RUNTIME, session_private(root, session_id, private)),
            ForkSession: fork_session(root, session_id, private),
        }
        if not self.settings.prune_sessions:
            return handlers
        from wasm_kernel.sessions.pruning import PruneSessions, prune

        return {**handlers, PruneSessions: prune(root, private)}

    def _add_commands(
        self, sandbox: BaseSandbox, session: Session, confinement: Confinement, folder: str
    ) -> None:
        """Adds the commands by which cells ask the host for what they can't do."""

        def say_path(_: object, context: CommandContext) -> None:
            context.say(f"{session.workspace}\n")  # to the user; the guest gets nothing back

        def facts() -> dict[str, str]:
            state = confinement.state
            words = f"files: {state.files}; system calls: {state.calls}"
            where = "%session_path prints it"
            return {"confinement": words, "host_folder": where, "notebook_folder": folder}

        commands = sandbox.commands
        sandbox.facts.add(facts)
        commands.add("session_path", say_path)
        commands.add(FORK, fork_command(sandbox, session))
        if self.settings.pip:
            from wasm_kernel.execution.create import offer_pip

            offer_pip(sandbox)
        else:
            commands.add("pip", switched_off(_PIP_OFF))
        if self.settings.prune_sessions:
            from wasm_kernel.sessions.pruning import prune_command

            commands.add("prune_sessions", prune_command(session.logger))
        else:
            commands.add("prune_sessions", switched_off(_PRUNE_OFF))

    def _logger(self, ending: ExitStack) -> SandboxLogger | None:
        """The logger of events: a file if one is set, else the log at level INFO or below."""
        place = self.settings.event_file
        if place is None:
            own = logging.getLogger("wasm_kernel")
            return SandboxLogger(own) if own.isEnabledFor(logging.INFO) else None
        from wasm_kernel.events import EventFile

        file = EventFile(place)
        ending.callback(file.close)
        return SandboxLogger(file.logger())

    def _serve(self, sandbox: BaseSandbox, path: Path, confinement: Confinement) -> None:
        starting = startup.StartProgress()
        sandbox.start(starting.tell)
        # from here on imports take long; the guest starts meanwhile
        for package in ("ipykernel", "jupyter_client", "IPython"):
            startup.lazily(package)
        from wasm_kernel.frontends.jupyter.connection import Connection, KernelSockets

        connection = Connection(parent=self, connection_file=str(path))
        connection.open(allow_unsigned=self.settings.allow_unsigned)
        sockets = KernelSockets(connection)
        try:
            connection.save()
            self._loop(self._kernel(sandbox, starting, connection, sockets), sockets, confinement)
        finally:
            sockets.close()
            connection.cleanup()

    def _kernel(
        self,
        sandbox: BaseSandbox,
        starting: StartProgress,
        connection: Connection,
        sockets: KernelSockets,
    ) -> WasmKernel:
        from zmq.eventloop.zmqstream import ZMQStream

        from wasm_kernel.frontends.jupyter.connection import ports_of
        from wasm_kernel.frontends.jupyter.kernel import WasmKernel

        kernel = WasmKernel(
            sandbox=sandbox,
            starting=starting,
            mode=Mode(self.settings.outputs),
            parent=self,
            session=connection.session,
            shell_stream=ZMQStream(sockets.shell),
            control_stream=ZMQStream(sockets.control, sockets.control_thread.io_loop),
            control_thread=sockets.control_thread,
            iopub_thread=sockets.iopub_thread,
            iopub_socket=sockets.iopub,
            stdin_socket=sockets.stdin,
            log=self.log,
        )
        kernel.record_ports(ports_of(connection))
        return kernel

    def _loop(self, kernel: WasmKernel, sockets: KernelSockets, confinement: Confinement) -> None:
        kernel.start()
        sockets.iopub_thread.when_subscribed(kernel.subscribed)
        sockets.start()
        loop = kernel.loop
        _on_signals(loop, kernel)
        _watch_parent()
        confinement.close_calls()
        gc.freeze()
        gc.enable()
        kernel.io_loop.start()
        # a cell that still runs waits in a task; the sandbox is closed next
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))


def _on_signals(loop: asyncio.AbstractEventLoop, kernel: WasmKernel) -> None:
    """Makes SIGINT interrupt the cell and SIGTERM end the kernel, a second SIGTERM at once.

    The handlers only wake the loop: whatever lock they would need may be held by the code that the
    signal came upon.
    """

    def interrupt(*_: Any) -> None:
        loop.call_soon_threadsafe(kernel.interrupt)

    def end(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        loop.call_soon_threadsafe(kernel.stop)

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, end)


def _watch_parent() -> None:
    """Ends with the process that started this kernel, if that asked for it."""
    parent = int(os.environ.get("JPY_PARENT_PID") or 0)
    if parent > 1:  # process 1 never ends, and its children can't tell that theirs did
        from ipykernel.parentpoller import ParentPollerUnix

        ParentPollerUnix(parent_pid=parent).start()


def main(argv: Sequence[str] | None = None, factory: SandboxFactory = create) -> None:
    """Runs a kernel in this process.

    Args:
        argv: The command line, `sys.argv` by default.
        factory: Makes the sandbox from a session, a policy and when to resume.
    """
    # Until the kernel is up there is no cell to interrupt, and its client may send SIGINT early.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # a start makes much and drops little; the loop turns it on again
    app = WasmKernelApp()
    try:
        app.initialize(argv)
        app.run(factory)
    except (WasmKernelError, TraitError) as problem:
        print(f"wasm-kernel: {problem}", file=sys.stderr)  # noqa: T201 - there is no other place
        sys.exit(1)
    except ImportError as problem:
        print(f"wasm-kernel: {_UNREAD.format(why=problem)}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
