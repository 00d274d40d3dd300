"""The shell: scripts of bash, each run by a guest of its own beside the guest that asks.

Such a guest is the JavaScript interpreter with just-bash in its base image (`runtimes/shell`). It
has the files of the guest that asks, by the same file operations, and its cell's time, interrupts
and fuel; it may take as much memory again. A script that needs Python pauses until the asking guest
has run the program, which may ask for further scripts.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from wasm_kernel.engine.clock import Clock
from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.engine.instance import Instance
from wasm_kernel.errors import GuestCrashed, GuestStopped, WasmKernelError
from wasm_kernel.guests.base import GuestSetup
from wasm_kernel.guests.javascript import files as guest_files
from wasm_kernel.guests.javascript.files import JavaScriptFiles
from wasm_kernel.guests.javascript.guest import Interrupts, JavaScriptGuest
from wasm_kernel.guests.javascript.language import JavaScriptLanguage

_MOST_SHELLS = 8  # scripts that wait for programs, each asked for by the program before
_OWN_FOLDERS = ("/app", "/tmp")  # noqa: S108 - guest paths
_WAIT = b"[wasm-kernel] preparing the shell, once on this machine: some seconds\n"
_NO_MEMORY = "the script needs more memory than the sandbox has"


class _ShellFrame(Struct, frozen=True):
    """The beginning of a shell's frame: `done` or `program`."""

    op: str


Depth = Annotated[int, Meta(ge=0, le=_MOST_SHELLS)]


class _Script(Struct, frozen=True, tag_field="op", tag="script"):
    """A guest's request to run a script, while `depth` others wait for programs."""

    depth: Depth
    script: str
    cwd: str
    env: dict[str, str]
    stdin: str


class _Result(Struct, frozen=True, tag_field="op", tag="result"):
    """The result of a program, which lets the last of `depth` waiting scripts go on."""

    depth: Depth
    stdout: str
    stderr: str
    exitCode: int  # noqa: N815 - just-bash's name


class CellInterrupts(Interrupts):
    """The interrupts of a cell, for a guest that works while the cell waits for it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def pop_pending(self) -> bool:
        """Returns whether the cell must end; its own guest takes the interrupt afterwards."""
        if self.is_held or not self._clock.should_stop():
            return False
        self._clock.watch()  # passes it on now: the next tick may come after the cell's end
        self.taken = True
        return True


class ShellLanguage(JavaScriptLanguage):
    """The shells of one process: guests of the JavaScript interpreter with another image."""

    name = "shell"
    title = "the shell"

    @cached_property
    def files(self) -> JavaScriptFiles:
        """The guest's files."""
        return guest_files.shell_files()

    def _interrupts(self, setup: GuestSetup) -> Interrupts:
        return CellInterrupts(setup.clock)


class _Shell:
    """A shell and its one script."""

    def __init__(self, language: ShellLanguage, setup: GuestSetup) -> None:
        self._request = self._said = b"{}"
        shell = msgspec.structs.replace(setup, answer=self._answer)
        self.guest: JavaScriptGuest = language.start(shell)

    def _answer(self, frame: bytes) -> bytes:
        """Answers a frame of the shell: the first of a turn asks for the request."""
        if self._request:
            answer, self._request = self._request, b""
            return answer
        self._said = frame
        return b"{}"

    def run(self, request: bytes, asking: Instance) -> bytes:
        """Hands a request over; returns the frame with which the shell ends its turn."""
        self._request, self._said = request, b""
        if not self.guest.run_turn(asking.fuel_left) or not self._said:
            raise GuestCrashed("the shell broke")
        return self._said


class Shells:
    """Runs the scripts of one guest. Only the guest's thread uses it; close it."""

    def __init__(self, guest: Instance, setup: GuestSetup) -> None:
        self._guest, self._setup = guest, setup
        broker: Any = setup.broker
        self._language = ShellLanguage.shared(broker)
        self._waiting: list[_Shell] = []

    def answer(self, request: bytes) -> bytes:
        """Runs a script until it ends or needs a program; returns the shell's frame."""
        try:
            asked = msgspec.json.decode(request, type=_Script | _Result)
            self._close_from(asked.depth)
            return self._run(asked)
        except msgspec.MsgspecError:
            return _failed("the request is not understood")
        except GuestStopped:
            return _failed("" if self._setup.clock.should_stop() else _NO_MEMORY)
        except WasmKernelError as problem:
            return _failed(str(problem))

    def _run(self, asked: _Script | _Result) -> bytes:
        goes_on = isinstance(asked, _Result)
        if len(self._waiting) != asked.depth or asked.depth >= _MOST_SHELLS + goes_on:
            return _failed("too many scripts wait for programs that run other scripts")
        if goes_on and not self._waiting:
            return _failed("no script waits for a program")
        request = msgspec.to_builtins(asked)
        if isinstance(asked, _Script):
            shell, request["folders"] = self._new_shell(), self._folders()
            request["memory"] = {"most": self._setup.memory_bytes, "used": self._guest.memory.size}
        else:
            shell = self._waiting.pop()
        ends = True
        try:
            said = shell.run(msgspec.json.encode(request), self._guest)
            ends = msgspec.json.decode(said, type=_ShellFrame).op == "done"
            return said
        finally:
            self._guest.lower_fuel(shell.guest.instance.fuel_left)
            if ends:
                shell.guest.close()
            else:
                self._waiting.append(shell)

    def _new_shell(self) -> _Shell:
        """Returns a new shell with the session's files."""
        setup, language = self._setup, self._language
        flavour = UNCHECKED if setup.flavour.is_baseline else setup.flavour
        if language.prepared.image_at_hand() is None:
            setup.streams.feed("stderr", _WAIT)
            setup.streams.flush()
        found = language.prepare(flavour, lambda text: None)
        own = msgspec.structs.replace(
            setup, flavour=flavour, image=found, clock_before=0, shares_files=True
        )
        return _Shell(language, own)

    def _folders(self) -> list[str]:
        """Returns the folders in which the shell sees files, none of them inside another."""
        found: list[str] = []
        for each in sorted({*_OWN_FOLDERS, *self._setup.files.preopens.named}):
            if not any(each.startswith(f"{other}/") for other in found):
                found.append(each)
        return found

    def _close_from(self, depth: int) -> None:
        """Closes the shells whose scripts were given up, as when a program was interrupted."""
        while len(self._waiting) > depth:
            self._waiting.pop().guest.close()

    def close(self) -> None:
        """Closes all shells. Safe to call twice."""
        self._close_from(0)


def _failed(why: str) -> bytes:
    said = f"bash: {why}\n".encode().decode("latin1") if why else ""
    return msgspec.json.encode({"op": "done", "stdout": "", "stderr": said, "exitCode": 126})
