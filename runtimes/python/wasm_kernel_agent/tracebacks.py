"""Errors as users see them: tracebacks without the agent's frames, and exception groups."""

from __future__ import annotations

import inspect
import itertools
import linecache
import re
import sys
import traceback
from types import FrameType, TracebackType
from typing import Any, cast

from IPython.core import ultratb
from IPython.core.compilerop import CachingCompiler

_AGENT = __name__.partition(".")[0]
_SHELL = "IPython"
_MOST = 5_000  # a traceback of a million frames would take minutes to render
_CAUSES = 50  # errors that led to an error; any more are ignored
_NO_SOURCE = "Could not get source, probably due dynamically evaluated source code."
_KEPT = 250  # frames that a cut traceback keeps
_COLOUR = r"(?:\x1b\[[\d;]*m)*"
_COLOURS = re.compile(_COLOUR)
_EMPTY_FRAME = re.compile(r"File .+:\d+(?:, in [^=\n]+)?")
_NOTHING = re.compile(rf"/usr/local/lib/python\d+\.zip/|\(.*\)(?={_COLOUR}$)")
"""The parts of the lines of folded frames that are left out."""
_CELL = "/tmp/ipykernel_42/"
_FILE = re.compile(rf'File {_COLOUR}"({_CELL}[^"]+)"({_COLOUR})')
MARK = "[wasm-kernel]"
"""The word that a note of the sandbox begins with."""


class CellCompiler(CachingCompiler):
    """Compiles cells under names of files, as ipykernel does: some libraries need them."""

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        """Returns the name of a cell's code."""
        name: str = super().get_code_name(raw_code, transformed_code, number)
        return f"{_CELL}{name.strip('<>').removeprefix('ipython-input-')}.py"


def text_of(error: BaseException | None) -> str:
    """Returns `str(error)`, and a sentence if that raises."""
    try:
        return str(error)
    except Exception as problem:
        return f"<{type(error).__name__}, whose text raised {type(problem).__name__}>"


def hides_interrupt(error: BaseException | None) -> bool:
    """Returns whether `error` took the place of an interrupt that no handler had caught.

    This happens if cleaning up fails because of the interrupt: IPython's printer, stopped between
    two steps, removes what it had not added yet. The frame that such an interrupt reached has
    ended; that of a handler still runs.
    """
    running = {frame for frame, _ in traceback.walk_stack(None)}
    for _ in range(_CAUSES):
        error = error.__context__ if error is not None else None
        if isinstance(error, KeyboardInterrupt):
            reached = error.__traceback__
            return reached is not None and reached.tb_frame not in running
    return False


def without_agent(trace: TracebackType | None) -> tuple[TracebackType | None, int]:
    """Returns `trace` as a user should see it, and the number of frames that were cut out of it.

    The outermost frames of a deep recursion are kept. The agent's own frames are left out, too, but
    not counted, and so are IPython's below a cell's: IPython does not show them, but would parse
    their files, which takes half a second.
    """
    steps = []
    step = trace
    while step is not None:
        steps.append(step)
        step = step.tb_next
    kept = [each for each in steps if not _is_of(_AGENT, each)]
    cell = next((i for i, each in enumerate(kept) if not _is_of(_SHELL, each)), 0)
    kept[cell:] = [each for each in kept[cell:] if not _is_of(_SHELL, each)]
    cut = 0
    if len(kept) > _MOST:
        # The innermost frames would hold all others, and tens of thousands overflow the stack when
        # they are freed: now, which costs this cell, and not in the next cell that fails.
        cut = len(kept) - _KEPT
        kept = kept[:_KEPT]
    if len(kept) == len(steps):
        return trace, 0
    rebuilt: TracebackType | None = None
    for each in reversed(kept):
        rebuilt = TracebackType(rebuilt, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rebuilt, cut


def shorten_causes(error: BaseException) -> None:
    """Leaves the agent's frames out of the errors that led to `error`, too."""
    seen = {id(error)}
    waiting = [error]
    while waiting and len(seen) < _CAUSES:
        each = waiting.pop()
        for cause in (each.__cause__, each.__context__):
            if cause is not None and id(cause) not in seen:
                seen.add(id(cause))
                waiting.append(cause)
                cause.with_traceback(without_agent(cause.__traceback__)[0])


def folded(blocks: list[str]) -> list[str]:
    """Returns rendered blocks of a traceback, with empty frames folded to one.

    These are frames of libraries without source. The first and the last of several in a row are
    named, and only arguments with values are shown.
    """
    found: list[str] = []
    for is_empty, run in itertools.groupby(map(_without_excuse, blocks), key=_is_empty_frame):
        group = list(run)
        found += [_one_line(group)] if is_empty else group
    return found


def _without_excuse(block: str) -> str:
    """Returns a block without IPython's remark on a missing source."""
    if _NO_SOURCE not in block:
        return block
    return "".join(line for line in block.splitlines(keepends=True) if _NO_SOURCE not in line)


def _is_empty_frame(block: str) -> bool:
    return bool(_EMPTY_FRAME.fullmatch(_COLOURS.sub("", block).strip()))


def _one_line(frames: list[str]) -> str:
    first, *others = [_NOTHING.sub("", frame.strip()) for frame in frames]
    others = [frame.replace("File ", "", 1) for frame in others]
    if others[1:]:
        count = len(others) - 1
        others[:-1] = [f"{count} frame{'s' * (count > 1)}"]
    return " ... ".join([first, *others]) + "\n"


def with_hints_first(lines: list[str], name: str) -> list[str]:
    """Returns rendered traceback lines with our notes before the line of the error itself.

    Tools that report the last line of a traceback report the error then, and not a note.

    Args:
        lines: The traceback.
        name: The error's class, with which its line begins.
    """
    plain = [_COLOURS.sub("", line) for line in lines]
    at = max((i for i, line in enumerate(plain) if line.startswith(name)), default=len(lines))
    ours = [lines[i] for i in range(at, len(lines)) if plain[i].startswith(MARK)]
    return lines[:at] + ours + [line for line in lines[at:] if line not in ours]


def _is_of(package: str, step: TracebackType) -> bool:
    name = step.tb_frame.f_globals.get("__name__")
    return isinstance(name, str) and name.partition(".")[0] == package


def holds_group(error: BaseException | None) -> bool:
    """Returns whether `error` is an exception group, or was caused by one."""
    for _ in range(_CAUSES):
        if error is None or isinstance(error, BaseExceptionGroup):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, BaseExceptionGroup)


def group_lines(error: BaseException, trace: TracebackType | None, compiler: Any) -> list[str]:
    """Returns the traceback of an exception group as lines, laid out by Python's own printer.

    IPython leaves groups to it, too. The frames of the shell are left out, and cells get their
    names, which `compiler` knows.
    """
    whole = traceback.TracebackException(type(error), error, _without_shell(trace), compact=True)
    colours: dict[str, Any] = {"colorize": True} if sys.version_info >= (3, 13) else {}

    def named(found: re.Match[str]) -> str:
        label = compiler.format_code_name(found[1])
        return f"{label[0]} {label[1]}" + found[2] if label else found[0]

    return [_FILE.sub(named, line.rstrip("\n")) for line in whole.format(**colours)]


def _without_shell(trace: TracebackType | None) -> TracebackType | None:
    """`trace` from the first frame on that is not IPython's; None if there is no other."""
    while trace is not None and _is_of(_SHELL, trace):
        trace = trace.tb_next
    return trace


def read_grammar_once() -> None:
    """Lets a lexer that adds nothing to its parent's grammar use the parent's rules.

    The module that shows the lines of a traceback makes such a lexer for each frame.
    """
    from pygments.lexer import RegexLexerMeta
    from pygments.lexers.python import PythonLexer

    read = RegexLexerMeta.process_tokendef

    def read_once(lexer: Any, name: str, tokendefs: Any = None) -> Any:
        parent = vars(lexer.__base__)
        if "tokens" not in vars(lexer) and "_tokens" in parent and len(lexer.__bases__) == 1:
            return parent["_tokens"]
        return read(lexer, name, tokendefs)

    RegexLexerMeta.process_tokendef = read_once
    PythonLexer()


def find_classes_of_cells() -> None:
    """Lets `inspect.getsource` and `C??` find a class that a cell defined.

    Python finds the file of a class through its module, and the module of a notebook has no file.
    """
    original = inspect.getfile

    def getfile(object: Any) -> str:  # noqa: A002 - as inspect calls it
        try:
            return original(object)
        except (OSError, TypeError):
            cell = cell_of(object) if inspect.isclass(object) else None
            if cell is None:
                raise
            return cell

    module: Any = inspect
    module.getfile = getfile


def know_frames_of_cells() -> None:
    """Lets `inspect.getmodule` and IPython know that a frame of a cell belongs to no module's file.

    Python looks for the file in all modules, and IPython asks twice for each frame of a traceback.
    IPython also reads the file, and marks no part of a line if the file is missing.
    """
    original, module = inspect.getmodule, cast("Any", ultratb)
    count = module.get_line_number_of_frame

    def count_lines(frame: FrameType) -> int:
        return 0 if frame.f_code.co_filename.startswith(_CELL) else count(frame)

    def getmodule(object: Any, _filename: str | None = None) -> Any:  # noqa: A002 - as inspect calls it
        if isinstance(object, FrameType) and object.f_code.co_filename.startswith(_CELL):
            return None
        return original(object, _filename)

    inspect.getmodule = getmodule
    module.get_line_number_of_frame = count_lines


def cell_of(kind: type) -> str | None:
    """Returns the name of the cell that defines a class; None if it is not known."""
    if kind.__module__ != "__main__":
        return None
    for value in vars(kind).values():
        code = getattr(inspect.unwrap(value) if callable(value) else value, "__code__", None)
        if code is not None and code.co_qualname.startswith(f"{kind.__qualname__}."):
            return str(code.co_filename)
    return _cell_by_line(kind)


def _cell_by_line(kind: type) -> str | None:
    """The latest cell that has `class NAME` on the line where the class begins."""
    number = vars(kind).get("__firstlineno__")
    if not isinstance(number, int):
        return None
    for name in reversed([each for each in linecache.cache if each.startswith(_CELL)]):
        begin = linecache.getlines(name)[number - 1 : number + 9]  # decorators come first
        if any(line.strip().startswith(f"class {kind.__name__}") for line in begin):
            return name
    return None
