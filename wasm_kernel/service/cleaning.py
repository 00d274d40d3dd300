"""A process that cleans outputs, behind the second wall, for one that has no wall of its own.

A guest's output may be made to attack the code that parses it. So that code runs in a process that
reaches no file, no network and no other process, and has only the outputs of one session.
"""

# No `from __future__ import annotations`: msgspec would compile each annotation at every start.

import gc
import threading
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from wasm_kernel.errors import FrameError, WasmKernelError
from wasm_kernel.guests.protocol import check_depth
from wasm_kernel.linux.broker import BrokerServer, Handlers, RemoteBroker
from wasm_kernel.linux.channel import FRAME_BYTES, Channel, check_size
from wasm_kernel.linux.confinement import Confinement, KeptPaths, import_places
from wasm_kernel.linux.task import Cancelled, OfCell, Task
from wasm_kernel.outputs.bundle import CleanOutput, Mode
from wasm_kernel.outputs.cleaner import Cleaner, CleanMessage, ShouldStop
from wasm_kernel.policy import MIB
from wasm_kernel.result import CommMessage
from wasm_kernel.service.fork_server import ForkServer, Worker
from wasm_kernel.service.messages import CleanerRequest

PACKAGES = ("nh3", "tinycss2", "webencodings", "markdown_it", "mdurl", "mdit_py_plugins", "msgspec")
"""The packages that may be imported from behind the wall, wherever they lie."""
ANSWER_SECONDS = 300.0  # the largest document takes 7 s on an idle machine
_OUTPUTS = ("html", "charts", "documents", "widgets", "markdown", "tex")
_NEEDED = ("tinycss2", *(f"wasm_kernel.outputs.{name}" for name in _OUTPUTS))
"""The modules that cleaners need later; all cleaners share one copy."""
_GONE = "the process that cleans outputs has ended"
STOPPED = ("a part that was still being checked when the cell ended",)
TOO_LARGE = (f"an output that takes more than {FRAME_BYTES // MIB} MiB once it is checked",)

Reply = TypeVar("Reply", bound=Struct)


class CleanerLost(WasmKernelError):
    """The process that cleans the outputs of a session has ended, hangs, or breaks the protocol."""


class CleanBundle(Struct, frozen=True):
    """Asks for the part of a MIME bundle that may be shown: a `CleanOutput`."""

    data: Mapping[str, Any]
    metadata: Mapping[str, Any]


class CleanComm(Struct, frozen=True):
    """Asks for the part of a guest's message that may reach a widget: a `CleanMessage`."""

    message: CommMessage


def prepare() -> None:
    """Loads the modules that cleaners need, in the process that they are forked from."""
    for name in _NEEDED:
        import_module(name)
    import_places(PACKAGES)
    gc.freeze()


def serve(channel: Channel, request: CleanerRequest) -> None:
    """Cleans outputs until the process at the other end of the channel closes it or is gone."""
    cleaner = Cleaner(Mode(request.mode))
    walls = Confinement(request.confinement)
    walls.close_files(KeptPaths(packages=PACKAGES))
    walls.close_calls()

    def clean_bundle(asked: CleanBundle, task: Task) -> CleanOutput:
        clean = cleaner.bundle(asked.data, asked.metadata, lambda: task.cancelled)
        return clean if _can_be_sent(clean) else CleanOutput({}, removed=TOO_LARGE)

    def clean_comm(asked: CleanComm, task: Task) -> CleanMessage:
        clean = cleaner.comm(asked.message, lambda: task.cancelled)
        return clean if _can_be_sent(clean) else CleanMessage(None, TOO_LARGE)

    handlers: Handlers = {CleanBundle: clean_bundle, CleanComm: clean_comm}
    BrokerServer(channel, lambda: handlers).run()


def _can_be_sent(clean: Struct) -> bool:
    """Returns whether an answer is as small as a message may be: cleaning can make it larger."""
    try:
        check_size(msgspec.json.encode(clean))
    except FrameError:
        return False
    return True


class WalledCleaner(Cleaner):
    """A cleaner whose work is done by a process of its own, behind the second wall.

    Its methods raise `CleanerLost` if that process ends, or gives no valid answer within
    `ANSWER_SECONDS`. Any thread may close it.
    """

    def __init__(self, server: ForkServer, mode: Mode, confinement: str) -> None:
        super().__init__(mode)
        self.process: Worker = server.spawn_cleaner(CleanerRequest(mode.value, confinement))
        self._broker = RemoteBroker(self.process.channel, _GONE)

    def bundle(
        self, data: Mapping[str, Any], metadata: Mapping[str, Any], should_stop: ShouldStop
    ) -> CleanOutput:
        """Cleans a bundle in the other process."""
        asked = CleanBundle(data, metadata)
        return self._ask(asked, CleanOutput, should_stop) or CleanOutput({}, removed=STOPPED)

    def comm(self, message: CommMessage, should_stop: ShouldStop) -> CleanMessage:
        """Cleans a message to a widget in the other process."""
        asked = CleanComm(message)
        return self._ask(asked, CleanMessage, should_stop) or CleanMessage(None, STOPPED)

    def close(self) -> None:
        """Ends the process, even in the middle of its work."""
        self.process.close()

    def _ask(self, asked: Struct, reply: type[Reply], should_stop: ShouldStop) -> Reply | None:
        """Returns the answer; None if the cell was interrupted before the work began."""
        late = threading.Timer(ANSWER_SECONDS, self.process.kill)  # it may also read nothing
        late.daemon = True
        late.start()
        try:
            answer = self._broker.call(asked, reply, OfCell(should_stop))
            check_depth(answer)
        except Cancelled:
            return None
        except (WasmKernelError, ValueError, RecursionError) as problem:
            raise CleanerLost(
                "The process that cleans the outputs of this notebook has ended, or does not "
                "answer. Outputs up to now are kept. Run the notebook again; if this happens "
                "again, change what this cell shows."
            ) from problem
        finally:
            late.cancel()
        return answer
