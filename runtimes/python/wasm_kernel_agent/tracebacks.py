"""Errors as users see them: tracebacks without the agent's frames, exception groups, hints."""

from __future__ import annotations

import errno
import inspect
import itertools
import linecache
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, cast

from IPython.core import ultratb
from IPython.core.compilerop import CachingCompiler

from wasm_kernel_agent import unavailable

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
_MARK = "[wasm-kernel]"
_GUEST_FOLDERS = ("/app/", "/home/user/", "/notebook/", "/tmp/", "/usr/local/lib/")
_NOTEBOOK = "/notebook"
_SHOWN = (
    "Cells see the notebook's folder as /notebook, and the session's own files, but no other path "
    "of this computer; names that begin with a dot, and links that lead out of the folder, are "
    "left out."
)
_BESIDE = "Put the file beside the notebook and name it by a relative path"
_MOUNTED = "or let the kernel mount its folder (WasmKernel.mounts)"
_MOUNTED_ABOVE = (
    "or let the kernel mount that folder: after c.WasmKernel.mounts = ['/path/of/{0}:/{0}'] in "
    "jupyter_wasm_kernel_config.py and a restart, this line works as it is"
)
_FILES = (
    "Cells see the session's own folder, /app, and not the folder of the notebook. If this file "
    "lies beside the notebook, move both to a folder of their own and start the notebook there: "
    "its files are seen then, unless that is a home folder or switched off (WasmKernel.folder). Or "
    "bring the file in: upload it with ipywidgets.FileUpload, write it into the session from a "
    "terminal (wasm-kernel sessions write; %session_info names the session), or let the kernel "
    "mount its folder (WasmKernel.mounts)."
)
_WRITING = (
    "Cells write into {own} and /tmp alone, and folders of other places, such as /content and "
    "/mnt/data, are not there. Name the file by a relative path."
)
_NO_FOLDER = re.compile(r"Cannot save file into a non-existent directory: '(/.*)'")
_NO_DATABASE = (
    "A folder in the path of the database is not there. Make it first, or name the file by a "
    "relative path."
)
_APP = "Cells see the session's own folder, /app, and no other path of this computer."
_FULL = (
    "The session's files in /app and /tmp have reached what its policy allows (or the disk itself "
    "is full). Delete what you no longer need, and close files that you deleted."
)
advice = {"memory": "", "disk": "", "files": ""}
"""Advice for the user of this session, from the host's request that starts it."""
_DATA_SET = re.compile(r"/statsmodels/datasets/\w+/(\w+\.csv)$")
_NO_DATA_SET = (
    "This data set is not built in. Take {file} out of the statsmodels package on your machine "
    "({folder}), put it beside the notebook, and read it with pandas.read_csv('{file}')."
)
_NO_BACKEND = (
    "Figures are drawn inline here: this way to draw them needs a window, or a script in the page. "
    "Use %matplotlib inline; for figures that answer, Plotly and Altair (%pip install)."
)
_NO_MOVIE = (
    "Films are made by a program, ffmpeg, and the sandbox has none. HTML(animation.to_jshtml()) "
    "shows the animation moving, and animation.save('a.gif', writer='pillow') writes it to a file."
)
_NO_CLIPBOARD = (
    "The sandbox has no clipboard. Paste the table into a cell, and read it with "
    "pandas.read_csv(io.StringIO(text), sep='\\t'); to_csv(sep='\\t') makes a text to copy."
)
_CODEC = re.compile(
    r"(en|de)coder (jpeg2k|libtiff)\w* not available|unknown file extension: \.avif"
    r"|cannot identify image file '.*\.avif'"
)
_NO_CODEC = (
    "Pillow and matplotlib neither read nor write AVIF and JPEG 2000 here, nor compressed TIFF. "
    "They do read and write PNG, JPEG, WebP and GIF, such as savefig('figure.png')."
)
_INTEGERS = {
    **dict.fromkeys(
        ("too large to convert to C long", "out of bounds for int32"),
        "An array of int32 holds numbers up to 2,147,483,647, and here an array of positions (of "
        "argsort, nonzero and the like), too. Make it wider first: array.astype(np.int64).",
    ),
    **dict.fromkeys(
        ("expected 'intp_t' but got 'long long'", "expected 'const intp_t' but got 'long long'"),
        "This compiled function takes positions, which have 32 bits here, and other integers have "
        "64. Give it array.astype(np.intp).",
    ),
    **dict.fromkeys(
        (
            "cannot fit 'int' into an index-sized integer",
            "too large to convert to C ssize_t",
            "Maximum allowed dimension exceeded",
            "is larger than the maximum possible size",
        ),
        "Sizes and positions have 32 bits here: one object has at most 2,147,483,647 bytes or "
        "items. Work in pieces.",
    ),
}
"""Words in errors about the width of integers, and the advice for each."""
_NO_CALL = "If {name} is there elsewhere, it belongs to an operating system; the sandbox has none."
_LIMIT = "%%limit seconds=5, as the first line of a cell, ends the cell in time."
_TIMERS = ("alarm", "setitimer")
_FETCHED_SETS = {
    "load_dataset": "seaborn fetches its data sets. Plotly's package holds iris, tips and "
    "gapminder: after %pip install plotly, plotly.express.data.tips() is such a table.",
    "fetch_": "This data set is fetched. load_iris, load_wine, load_digits, load_diabetes and "
    "load_breast_cancer of sklearn.datasets are built in.",
    "get_rdataset": "This data set is fetched. Those of statsmodels.datasets, such as "
    "longley.load_pandas(), are built in.",
}
_NO_SERVER = "The sandbox has no network: no socket can listen or connect."
_NESTED = (
    "This code has more brackets inside each other than can be parsed here, some 140. Build the "
    "value in several steps, or read it from JSON, which may be nested deeper."
)


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
    ours = [lines[i] for i in range(at, len(lines)) if plain[i].startswith(_MARK)]
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


def hint_for(error: BaseException) -> str:
    """Returns a sentence for the person who meets `error`; empty if there is nothing to add.

    It depends on the error's own words alone. Nothing is looked up on the host: an answer that knew
    which files lie there would tell them to the author of the cell.
    """
    found = (hint(error) for kind, hint in _HINTS if isinstance(error, kind))
    return next(filter(None, found), "")


def add_hint(error: BaseException) -> None:
    """Adds the sentence to `error` as a note, once."""
    try:
        hint = hint_for(error)
        if hint and not any(_MARK in note for note in getattr(error, "__notes__", ())):
            error.add_note(f"{_MARK} {hint}")
    except Exception:  # an error of the user's own class may refuse anything
        return


def _missing_file(error: BaseException) -> str:
    lacking = _DATA_SET.search(text_of(error))
    if lacking is not None:
        return _NO_DATA_SET.format(file=lacking[1], folder=lacking[0].strip("/"))
    name = getattr(error, "filename", None)
    if not isinstance(name, str) or not name or os.path.normpath(name).startswith(_GUEST_FOLDERS):
        return ""
    known, is_shown = advice["files"], os.path.isdir(_NOTEBOOK)  # noqa: PTH112 - a cell may have changed Path
    if not is_shown:
        return f"{_APP} {known}" if known else _FILES
    if known:
        return f"{_SHOWN} {_BESIDE}. {known}"
    above = re.match(r"(?:\.\./)+([^/]+)/", os.path.normpath(name))
    return f"{_SHOWN} {_BESIDE}, {_MOUNTED_ABOVE.format(above[1]) if above else _MOUNTED}."


def _outside(error: BaseException) -> str:
    """Returns advice for a program that would write where other places have a folder for it."""
    lacking = _NO_FOLDER.match(text_of(error))
    name = getattr(error, "filename", None) if lacking is None else lacking[1]
    if not (isinstance(error, PermissionError) or lacking) or not isinstance(name, str):
        return ""
    path = f"{os.path.normpath(name)}/"
    if path.startswith(_GUEST_FOLDERS) or not path.startswith("/"):
        return ""
    is_shown = os.path.isdir(_NOTEBOOK)  # noqa: PTH112 - as above
    return _WRITING.format(own=_NOTEBOOK if is_shown else "/app")


def _full(error: BaseException) -> str:
    return (
        f"{_FULL} {advice['disk']}".rstrip()
        if getattr(error, "errno", None) == errno.ENOSPC
        else ""
    )


def _missing_module(error: BaseException) -> str:
    name = getattr(error, "name", None)
    if isinstance(name, str) and name.startswith("matplotlib.backends."):
        return _NO_BACKEND
    if not isinstance(name, str) or not name.isidentifier():
        return ""
    known = sys.stdlib_module_names.union(unavailable.STAND_INS)
    if name.startswith("_") and name not in known:
        return ""  # a part of a package that is built in
    return unavailable.advice_on_module(name)


def _missing_call(error: BaseException) -> str:
    module, name = getattr(error, "obj", None), getattr(error, "name", None)
    if module is not os and module is not signal:
        return ""
    hint = _NO_CALL.format(name=f"{module.__name__}.{name}")
    return f"{hint} {_LIMIT}" if name in _TIMERS else hint


def _fetched_set(error: BaseException) -> str:
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    found = (
        text for start, text in _FETCHED_SETS.items() if any(n.startswith(start) for n in names)
    )
    return next(found, "") if "has no network" in text_of(error) else ""


def _no_codec(error: BaseException) -> str:
    return _NO_CODEC if _CODEC.search(text_of(error)) else ""


def _width_of_integers(error: BaseException) -> str:
    text = str(error)
    return next((advice for words, advice in _INTEGERS.items() if words in text), "")


_HINTS: tuple[tuple[type[BaseException], Callable[[BaseException], str]], ...] = (
    (FileNotFoundError, _missing_file),
    (OSError, _outside),
    (OSError, _full),
    (OSError, _fetched_set),
    (OSError, lambda error: _NO_SERVER if "could not bind on any" in text_of(error) else ""),
    (OSError, _no_codec),
    (ValueError, _no_codec),
    (ModuleNotFoundError, _missing_module),
    (ImportError, lambda error: unavailable.advice_on_import_error(str(error))),
    (AttributeError, _missing_call),
    (RuntimeError, lambda error: _NO_MOVIE if "MovieWriter" in str(error) else ""),
    (RuntimeError, lambda error: _NO_CLIPBOARD if "copy/paste" in str(error) else ""),
    (OverflowError, _width_of_integers),
    (Exception, lambda e: _NO_DATABASE if "unable to open database" in text_of(e) else ""),
    (MemoryError, lambda error: _NESTED if "too complex to parse" in text_of(error) else ""),
    (ValueError, _width_of_integers),
)


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
