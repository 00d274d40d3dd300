"""Hints: a sentence in an error that says what to do, where the sandbox differs from a machine."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable

from wasm_kernel_agent import unavailable
from wasm_kernel_agent.tracebacks import MARK, text_of

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
        if hint and not any(MARK in note for note in getattr(error, "__notes__", ())):
            error.add_note(f"{MARK} {hint}")
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
