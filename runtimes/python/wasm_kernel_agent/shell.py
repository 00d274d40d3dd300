"""IPython's shell, for a guest: output as frames, paging and exit as payloads, nothing on disk."""

from __future__ import annotations

import asyncio
import builtins
import os
import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from IPython.core import page
from IPython.core.autocall import ZMQExitAutocall
from IPython.core.builtin_trap import BuiltinTrap, BuiltinUndefined
from IPython.core.error import UsageError
from IPython.core.events import EventManager, available_events
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir
from IPython.utils.text import LSString, SList
from traitlets import Any as AnyTrait
from traitlets import CBool, Instance, Type, default

from wasm_kernel_agent import hints, memory_use, stdlib_patches, tracebacks
from wasm_kernel_agent.completion import ObjectBeforeDot
from wasm_kernel_agent.display import FrameHook, FramePublisher, Outbox
from wasm_kernel_agent.event_loop import Awaiter, allow_tasks
from wasm_kernel_agent.host import flush
from wasm_kernel_agent.inline_figures import INLINE, possible
from wasm_kernel_agent.magics.basics import BasicMagics, limit_in_place
from wasm_kernel_agent.magics.files import SessionFileMagics
from wasm_kernel_agent.magics.pip import PipMagics
from wasm_kernel_agent.magics.scripts import ScriptMagics
from wasm_kernel_agent.magics.session import SessionMagics
from wasm_kernel_agent.magics.store import StoredValues
from wasm_kernel_agent.magics.travel import TravelMagics
from wasm_kernel_agent.shell_commands import output_of, run_and_print, words_for_pip
from wasm_kernel_agent.tracebacks import text_of

_NEXT_INPUT_CHARACTERS = 1_000_000
_ENVIRONMENT = {
    "TERM": "xterm-color",
    "CLICOLOR": "1",
    "FORCE_COLOR": "1",
    "CLICOLOR_FORCE": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
}
_Base: Any = InteractiveShell


class InterruptibleEvents(EventManager):
    """IPython's events. A callback that fails is shown and passed over, as in IPython."""

    def trigger(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Runs the callbacks of an event.

        Raises:
            KeyboardInterrupt: The user interrupted a callback; this ends the cell. IPython itself
                would take it for the callback's own error, and run the cell.
        """
        for callback in list(self.callbacks[event]):
            try:
                callback(*args, **kwargs)
            except Exception:
                if self.print_on_error:
                    print(f"Error in callback {callback} (for {event}):")
                self.shell.showtraceback()


class Builtins(BuiltinTrap):
    """Adds names to `builtins` while a cell runs, and takes them away from any state they are in.

    A cell may have deleted one, and an interrupt may come when some of them are gone.
    """

    def remove_builtin(self, key: str, orig: Any) -> None:
        """Puts back the value that `builtins` had before the cell."""
        if orig is BuiltinUndefined:
            vars(builtins).pop(key, None)
        else:
            setattr(builtins, key, orig)


class GuestShell(_Base):  # type: ignore[misc]
    """Runs cells as ipykernel's shell does. There is one in each interpreter."""

    displayhook_class = Type(FrameHook)
    display_pub_class = Type(FramePublisher)
    compiler_class = Type(tracebacks.CellCompiler)
    autoindent = CBool(False)
    exiter = Instance(ZMQExitAutocall)
    kernel = AnyTrait(help="The part of a kernel that libraries look for in the guest.")
    parent_header: dict[str, Any] | None = None
    keepkernel_on_exit: bool | None = None
    memory_bytes = 0
    last_traceback: list[str] | None = None
    ended: BaseException | None = None
    display_error: BaseException | None = None
    agent: Any = None

    def __init__(self, outbox: Outbox, **kwargs: Any) -> None:
        self.outbox = outbox
        self.awaiter = Awaiter()
        super().__init__(**kwargs)
        lasting = "/app/.ipython" if sys.platform == "wasi" else self.profile_dir.location
        self._db = StoredValues(Path(lasting, "db"))  # it outlives a restart
        self.display_pub.outbox = outbox
        self.displayhook.outbox = outbox
        self.compile.reset_compiler_flags()  # codeop adds one that hides which bracket is open
        self.loop_runner = self.awaiter
        allow_tasks(self.awaiter)
        self.object_before_dot = ObjectBeforeDot(self.Completer)
        self.extension_manager.load_extension("storemagic")
        self.input_transformer_manager.cleanup_transforms.insert(0, limit_in_place)

    @default("exiter")
    def _default_exiter(self) -> ZMQExitAutocall:
        kind: Any = ZMQExitAutocall
        exiter: ZMQExitAutocall = kind(self)
        return exiter

    def init_profile_dir(self, profile_dir: Any) -> None:
        """Puts the profile folder where nothing outlives the session: into the scratch space."""
        self.profile_dir = ProfileDir(location=str(Path(self.ipython_dir) / "profile_default"))

    def init_environment(self) -> None:
        """Turns colours on and pagers off, as ipykernel does."""
        os.environ.update(_ENVIRONMENT)

    def init_virtualenv(self) -> None:
        """Does nothing: the guest has no virtual environment."""

    def init_builtins(self) -> None:
        """Gives cells the names that IPython adds."""
        super().init_builtins()
        self.builtin_trap = Builtins(shell=self)

    def init_events(self) -> None:
        """Registers IPython's own callback with events that let an interrupt through."""
        super().init_events()
        callbacks = self.events.callbacks
        self.events: Any = InterruptibleEvents(self, available_events)
        self.events.callbacks = callbacks

    def init_hooks(self) -> None:
        """Registers IPython's hooks, with a payload for the front end in place of its pager."""
        super().init_hooks()
        as_hook: Any = page.as_hook
        self.set_hook("show_in_pager", as_hook(self.page_payload), 99)

    def init_magics(self) -> None:
        """Registers IPython's magics and ours, and refusals for those that can't work here."""
        super().init_magics()
        self.register_magics(BasicMagics, PipMagics, TravelMagics, SessionMagics)
        self.register_magics(SessionFileMagics, ScriptMagics)
        stdlib_patches.replace_magics(self)

    def set_parent(self, parent: dict[str, Any]) -> None:
        """Sets the front end's message that is being served; `Output` widgets ask for it."""
        self.parent_header = parent

    def get_parent(self) -> dict[str, Any]:
        """Returns the front end's message that is being served."""
        return self.parent_header or {}

    def count_from(self, count: int) -> None:
        """Gives the next cell this number; cells whose effects are undone stay empty in `In`."""
        self.execution_count = count
        history = self.history_manager
        for inputs in (history.input_hist_parsed, history.input_hist_raw):
            inputs.extend([""] * (count - len(inputs)))

    def catch_up(self, count: int | None, alone: list[tuple[int, str]]) -> None:
        """Gives the next cell this number, after the cells that the host ran by itself."""
        for number, code in alone:
            self.count_from(number)
            self.history_manager.store_inputs(number, code)
            self.execution_count = number + 1
        if count is not None and count != self.execution_count:
            self.count_from(count)

    def enable_gui(self, gui: Any = None) -> None:
        """Refuses windows: only inline figures exist here, and they need no event loop."""
        if gui not in (None, "inline", "asyncio"):
            raise UsageError(f"the sandbox has no windows, so it has no event loop of {gui!r}")

    def enable_matplotlib(self, gui: Any = None) -> Any:
        """Draws figures inline, or without showing them."""
        return super().enable_matplotlib(possible(gui, "%matplotlib {}", INLINE))

    def page_payload(
        self, strg: Any, start: int = 0, screen_lines: int = 0, pager_cmd: Any = None
    ) -> None:
        """Shows text or a MIME bundle in the front end's pager."""
        data = strg if isinstance(strg, dict) else {"text/plain": strg}
        payload = {"source": "page", "data": data, "start": max(0, start)}
        self.payload_manager.write_payload(payload)

    def ask_exit(self) -> None:
        """Asks the front end to end this kernel."""
        payload = {"source": "ask_exit", "keepkernel": bool(self.keepkernel_on_exit)}
        self.payload_manager.write_payload(payload)

    def set_next_input(self, text: str, replace: bool = False) -> None:
        """Puts `text` into the next cell, or with `replace` into this one.

        Raises:
            ValueError: The text is too long for a cell.
        """
        if len(text) > _NEXT_INPUT_CHARACTERS:
            raise ValueError(
                f"a text of {len(text):,} characters is too long for a cell "
                f"(the limit is {_NEXT_INPUT_CHARACTERS:,})"
            )
        payload = {"source": "set_next_input", "text": text, "replace": replace}
        self.payload_manager.write_payload(payload)

    def _tee(self, channel: str) -> AbstractContextManager[None]:
        """Keeps no second copy of printed text: it would slow down every `print`."""
        return nullcontext()

    def system(self, cmd: str) -> None:
        """Runs `!cmd`: a script of the shell, or `pip`.

        A command that fails does not end the cell, as under ipykernel.
        """
        words = words_for_pip(cmd)
        if words is None:
            code = run_and_print(self.var_expand(cmd, depth=1))
        else:
            code = self._run_pip(words)
        self.user_ns["_exit_code"] = code

    def _run_pip(self, words: str) -> int:
        try:
            self.run_line_magic("pip", words)
        except UsageError as problem:
            self.show_usage_error(problem)
            return 1
        return 0

    system_piped = system_raw = system

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Any:
        """Returns the output of `files = !cmd` as lines, or as one text."""
        words = words_for_pip(cmd)
        if words is not None:
            with redirect_stdout(StringIO()) as text:
                self._run_pip(words)
            return SList(text.getvalue().splitlines()) if split else LSString(text.getvalue())
        return output_of(self.var_expand(cmd, depth=depth + 1), split=split)

    def run_cell(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a cell, with no traceback or interrupt left over from an earlier one."""
        self.outbox.begin()
        self.last_traceback = None
        self.ended = self.display_error = None
        return super().run_cell(*args, **kwargs)

    def should_run_async(self, raw_cell: str, **transformed: Any) -> bool:
        """Returns whether a cell awaits something. Only the text of some needs to be compiled."""
        text = transformed.get("transformed_cell") or raw_cell
        may_await = "await" in text or "async" in text
        return may_await and super().should_run_async(raw_cell, **transformed)

    def _get_exc_info(self, exc_tuple: Any = None) -> Any:
        """The error that is being handled; for a cancellation that ended a wait, its cause."""
        kind, value, traceback = super()._get_exc_info(exc_tuple)
        cause = self.awaiter.cause
        if cause is not None and isinstance(value, asyncio.CancelledError):
            self.ended = value = cause.with_traceback(traceback)
            kind = type(cause)
            value.__suppress_context__ = True
            sys.last_type, sys.last_value = kind, value
        whole, (traceback, cut) = traceback, tracebacks.without_agent(traceback)
        if traceback is not whole:
            value.with_traceback(traceback)
            sys.last_traceback = traceback
        tracebacks.shorten_causes(value)
        if cut:
            value.add_note(f"[wasm-kernel] {cut:,} frames of the traceback are not shown")
        memory_use.explain(value, whole, self)
        hints.add_hint(value)
        return kind, value, traceback

    def showtraceback(
        self,
        exc_tuple: Any = None,
        filename: str | None = None,
        tb_offset: int | None = None,
        exception_only: bool = False,
        running_compiled_code: bool = False,
    ) -> None:
        """Shows an error; an exception group in Python's own layout.

        Raises:
            KeyboardInterrupt: The error hides an interrupt. IPython would show the error of a
                display, and the cell would go on as if it had not been interrupted.
        """
        if not running_compiled_code and tracebacks.hides_interrupt(sys.exc_info()[1]):
            raise KeyboardInterrupt from None
        caught = (
            exc_tuple[1] if exc_tuple else sys.exc_info()[1] or getattr(sys, "last_value", None)
        )
        plain = exception_only or isinstance(caught, SyntaxError | UsageError)
        if plain or not tracebacks.holds_group(caught):
            super().showtraceback(
                exc_tuple, filename, tb_offset, exception_only, running_compiled_code
            )
            return
        kind, value, trace = self._get_exc_info(exc_tuple)
        self._showtraceback(kind, value, tracebacks.group_lines(value, trace, self.compile))
        if self.call_pdb:
            self.debugger(force=True)

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        """Sends the error, and remembers its lines for the reply."""
        texts = [line if isinstance(line, str) else repr(line) for line in stb]
        lines = tracebacks.with_hints_first(tracebacks.folded(texts), etype.__name__)
        self.last_traceback = lines
        if self.displayhook.is_active:
            self.display_error = evalue
        self.outbox.send_error(
            str(etype.__name__), text_of(evalue), lines, memory=isinstance(evalue, MemoryError)
        )

    def debugger(self, force: bool = False) -> None:
        """Opens the debugger on the last error, unless all its frames were IPython's."""
        if getattr(sys, "last_traceback", True) is None:
            print("The last error has no frame that a debugger could show.", file=sys.stderr)
        else:
            super().debugger(force)

    def _format_exception_for_storage(
        self, exception: Any, filename: Any = None, running_compiled_code: bool = False
    ) -> dict[str, Any]:
        """The error for the history: the lines that were shown, not rendered again."""
        return {
            "ename": type(exception).__name__,
            "evalue": text_of(exception),
            "traceback": self.last_traceback or [],
        }

    def show_usage_error(self, exc: Any) -> None:
        """Shows the wrong use of a magic: one line, no traceback."""
        flush()
        print(f"UsageError: {exc}", file=sys.stderr)


# pandas, rich and many notebooks recognize a notebook by this name.
GuestShell.__name__ = GuestShell.__qualname__ = "ZMQInteractiveShell"
