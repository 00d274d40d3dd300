"""IPython's shell, for a guest: output as frames, paging and exit as payloads, nothing on disk."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from IPython.core import page
from IPython.core.autocall import ZMQExitAutocall
from IPython.core.error import UsageError
from IPython.core.events import available_events
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir
from traitlets import Any as AnyTrait
from traitlets import CBool, Instance, Type, default

from wasm_kernel_agent import frames, groups, hints, notebooks, refusals
from wasm_kernel_agent.commands import Commands
from wasm_kernel_agent.completion import Subject
from wasm_kernel_agent.display import FrameHook, FramePublisher
from wasm_kernel_agent.forks import ForkMagics
from wasm_kernel_agent.hooks import Events
from wasm_kernel_agent.limits import LimitMagic, in_place
from wasm_kernel_agent.loop import Awaiter, allow_tasks
from wasm_kernel_agent.magics import KernelMagics
from wasm_kernel_agent.outbox import Outbox, flush
from wasm_kernel_agent.packages import PipMagics
from wasm_kernel_agent.session import SessionMagics
from wasm_kernel_agent.session_files import SessionFileMagics
from wasm_kernel_agent.shelf import Shelf
from wasm_kernel_agent.travel import TravelMagics

NEXT_INPUT_CHARACTERS = 1_000_000
_ENVIRONMENT = {
    "TERM": "xterm-color",
    "CLICOLOR": "1",
    "FORCE_COLOR": "1",
    "CLICOLOR_FORCE": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
}


_Base: Any = InteractiveShell


class GuestShell(_Base):  # type: ignore[misc]
    """Runs cells as ipykernel's shell does. One an interpreter, used from its only thread."""

    displayhook_class = Type(FrameHook)
    display_pub_class = Type(FramePublisher)
    autoindent = CBool(False)
    exiter = Instance(ZMQExitAutocall)
    kernel = AnyTrait(help="What of the kernel is inside the guest; libraries look for it.")
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
        self.commands = Commands()
        super().__init__(**kwargs)
        self._db = Shelf(_home(self.profile_dir) / "db")
        self.display_pub.outbox = outbox
        self.displayhook.outbox = outbox
        self.loop_runner = self.awaiter
        allow_tasks(self.awaiter)
        self.Completer.use_jedi = False
        self.subject = Subject(self.Completer)
        self.extension_manager.load_extension("storemagic")
        self.input_transformer_manager.cleanup_transforms.insert(0, in_place)

    @default("exiter")
    def _default_exiter(self) -> ZMQExitAutocall:
        kind: Any = ZMQExitAutocall
        exiter: ZMQExitAutocall = kind(self)
        return exiter

    def init_profile_dir(self, profile_dir: Any) -> None:
        """A profile folder in the guest's scratch space: nothing of it outlives the session."""
        self.profile_dir = ProfileDir(location=str(Path(self.ipython_dir) / "profile_default"))

    def init_environment(self) -> None:
        """Colours on, pagers off, as ipykernel has it."""
        os.environ.update(_ENVIRONMENT)

    def init_virtualenv(self) -> None:
        """There is none in the guest."""

    def init_events(self) -> None:
        """IPython's own callback, among events that an interrupt passes through."""
        super().init_events()
        callbacks = self.events.callbacks
        self.events: Any = Events(self, available_events)
        self.events.callbacks = callbacks

    def init_hooks(self) -> None:
        """IPython's hooks, with its pager replaced by a payload for the front end."""
        super().init_hooks()
        as_hook: Any = page.as_hook
        self.set_hook("show_in_pager", as_hook(self.page_payload), 99)

    def init_magics(self) -> None:
        """IPython's magics, those of a notebook kernel, `%%limit`, and refusals for the rest."""
        super().init_magics()
        self.register_magics(KernelMagics, LimitMagic, PipMagics, TravelMagics, ForkMagics)
        self.register_magics(SessionMagics, SessionFileMagics)
        refusals.replace_magics(self)

    def set_parent(self, parent: dict[str, Any]) -> None:
        """The front end's message that is being served; `Output` widgets want to know it."""
        self.parent_header = parent

    def get_parent(self) -> dict[str, Any]:
        """As it was set."""
        return self.parent_header or {}

    def count_from(self, count: int) -> None:
        """The next cell has this number; cells whose effects are undone stand empty in `In`."""
        self.execution_count = count
        history = self.history_manager
        for inputs in (history.input_hist_parsed, history.input_hist_raw):
            inputs.extend([""] * (count - len(inputs)))

    def catch_up(self, count: int | None, alone: list[tuple[int, str]]) -> None:
        """The next cell has this number; before it come cells that the host did without us."""
        for number, code in alone:
            self.count_from(number)
            self.history_manager.store_inputs(number, code)
            self.execution_count = number + 1
        if count is not None and count != self.execution_count:
            self.count_from(count)

    def enable_gui(self, gui: Any = None) -> None:
        """Only inline figures exist here, and they need no event loop of their own."""
        if gui not in (None, "inline"):
            raise refusals.no_window(gui)

    def enable_matplotlib(self, gui: Any = None) -> Any:
        """Figures inline, or drawn without being shown; nothing else exists here."""
        if gui not in (None, "auto", "inline", "agg", "svg", "pdf", "ps"):
            raise refusals.no_window(gui)
        return super().enable_matplotlib(gui)

    def page_payload(
        self, strg: Any, start: int = 0, screen_lines: int = 0, pager_cmd: Any = None
    ) -> None:
        """Show text or a MIME bundle in the front end's pager."""
        data = strg if isinstance(strg, dict) else {"text/plain": strg}
        payload = {"source": "page", "data": data, "start": max(0, start)}
        self.payload_manager.write_payload(payload)

    def ask_exit(self) -> None:
        """Ask the front end to end this kernel."""
        payload = {"source": "ask_exit", "keepkernel": bool(self.keepkernel_on_exit)}
        self.payload_manager.write_payload(payload)

    def set_next_input(self, text: str, replace: bool = False) -> None:
        """Put `text` into the next cell, or with `replace` into this one.

        Raises:
            ValueError: it is longer than a front end should be handed.
        """
        if len(text) > NEXT_INPUT_CHARACTERS:
            raise ValueError(
                f"a text of {len(text):,} characters is too long for a cell "
                f"(the limit is {NEXT_INPUT_CHARACTERS:,})"
            )
        payload = {"source": "set_next_input", "text": text, "replace": replace}
        self.payload_manager.write_payload(payload)

    def _tee(self, channel: str) -> AbstractContextManager[None]:
        """Keep no second copy of what a cell prints: it would slow down every `print`."""
        return nullcontext()

    def system(self, cmd: str) -> None:
        """`!cmd`: one of the few commands we have in Python, or a sentence why not."""
        name, _, words = cmd.strip().partition(" ")
        if name == "pip":  # the host compares the words with the cell's, as they stand there
            self.run_line_magic("pip", words)
            return
        code = self.commands.run(self.var_expand(cmd, depth=1))
        self.user_ns["_exit_code"] = code

    system_piped = system_raw = system

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Any:
        """`files = !cmd`: the output as lines, or as one text.

        Raises:
            OSError: there is no such command here.
        """
        return self.commands.output(self.var_expand(cmd, depth=depth + 1), split=split)

    def safe_execfile_ipy(
        self, fname: Any, shell_futures: bool = False, raise_exceptions: bool = False
    ) -> None:
        """`%run FILE` for a notebook, or for Python with magics in it (`.ipy`)."""
        path = Path(fname).expanduser()
        is_notebook = path.suffix == ".ipynb"
        for cell in notebooks.code_cells(path) if is_notebook else [path.read_text("utf-8")]:
            result = self.run_cell(cell, silent=True, shell_futures=shell_futures)
            if raise_exceptions:
                result.raise_error()
            elif not result.success:
                break

    def run_cell(self, *args: Any, **kwargs: Any) -> Any:
        """Run a cell, with no traceback or interrupt left over from an earlier one."""
        self.outbox.begin()
        self.last_traceback = None
        self.ended = self.display_error = None
        return super().run_cell(*args, **kwargs)

    def _get_exc_info(self, exc_tuple: Any = None) -> Any:
        """What is being handled; a cancellation that ended a wait gives way to its cause."""
        kind, value, traceback = super()._get_exc_info(exc_tuple)
        cause = self.awaiter.cause
        if cause is not None and isinstance(value, asyncio.CancelledError):
            self.ended = value = cause.with_traceback(traceback)
            kind = type(cause)
            value.__suppress_context__ = True
            sys.last_type, sys.last_value = kind, value
        whole, (traceback, cut) = traceback, frames.shown(traceback)
        if traceback is not whole:
            value.with_traceback(traceback)
        frames.shorten_causes(value)
        if cut:
            value.add_note(f"[wasm-kernel] {cut:,} frames of the traceback are not shown")
        if isinstance(value, MemoryError) and not value.args:
            value.args = (self._memory_full(),)
        hints.add_hint(value)
        return kind, value, traceback

    def _memory_full(self) -> str:
        size = f" of {self.memory_bytes / 2**20:,.0f} MiB" if self.memory_bytes else ""
        return (
            f"this needs more than the sandbox's memory{size}. The variables are kept. "
            "Delete what you no longer need, or raise memory_bytes."
        )

    def showtraceback(
        self,
        exc_tuple: Any = None,
        filename: str | None = None,
        tb_offset: int | None = None,
        exception_only: bool = False,
        running_compiled_code: bool = False,
    ) -> None:
        """Show an error; a group of them as Python lays it out, and as an error all the same."""
        caught = exc_tuple[1] if exc_tuple else sys.exc_info()[1] or _last_error()
        plain = exception_only or isinstance(caught, SyntaxError | UsageError)
        if plain or not groups.holds_group(caught):
            super().showtraceback(
                exc_tuple, filename, tb_offset, exception_only, running_compiled_code
            )
            return
        kind, value, trace = self._get_exc_info(exc_tuple)
        self._showtraceback(kind, value, groups.lines(value, trace, self.compile))
        if self.call_pdb:
            self.debugger(force=True)

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        """Send the error, and remember its lines for the reply."""
        texts = [line if isinstance(line, str) else repr(line) for line in stb]
        lines = frames.without_missing(texts)
        self.last_traceback = lines
        if self.displayhook.is_active:
            self.display_error = evalue
        self.outbox.error(str(etype.__name__), text_of(evalue), lines)

    def _format_exception_for_storage(
        self, exception: Any, filename: Any = None, running_compiled_code: bool = False
    ) -> dict[str, Any]:
        """What the history keeps of an error: the lines that were shown, not rendered again."""
        return {
            "ename": type(exception).__name__,
            "evalue": text_of(exception),
            "traceback": self.last_traceback or [],
        }

    def show_usage_error(self, exc: Any) -> None:
        """A magic was used wrongly: one line, no traceback."""
        flush()
        print(f"UsageError: {exc}", file=sys.stderr)


# pandas, rich and many notebooks recognize a notebook by this name.
GuestShell.__name__ = GuestShell.__qualname__ = "ZMQInteractiveShell"


def text_of(error: BaseException | None) -> str:
    """`str(error)`, also where that raises."""
    try:
        return str(error)
    except Exception as problem:
        return f"<{type(error).__name__}, whose text raised {type(problem).__name__}>"


def _last_error() -> BaseException | None:
    """What `%tb` shows."""
    return getattr(sys, "last_value", None)


def _home(profile: Any) -> Path:
    """Where what outlives the session lies: a hidden folder of the workspace."""
    return Path("/app/.ipython") if sys.platform == "wasi" else Path(profile.location)
