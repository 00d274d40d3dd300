"""What an error of Python does not say by itself: a sentence about the sandbox, beneath it.

A hint depends on the error's own words alone. Nothing is looked up for it, on the host least of
all: an answer that knew which files lie there would tell them to whoever writes the cell.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

_MARK = "[wasm-kernel]"
_OURS = ("/app/", "/tmp/", "/usr/local/lib/")
_FILES = (
    "Cells see the session's own folder, /app, and not the folder of the notebook. If this file "
    "lies beside the notebook, bring it in first: upload it with ipywidgets.FileUpload, write it "
    "into the session from a terminal (wasm-kernel sessions write; %session_info names the "
    "session), or let the kernel mount its folder (WasmKernel.mounts)."
)
_FULL = (
    "The session's files in /app and /tmp have reached what its policy allows (or the disk itself "
    "is full). Delete what you no longer need, and close files that you deleted, or raise "
    "workspace_bytes or workspace_files (WasmKernel.workspace_bytes, WasmKernel.workspace_files)."
)
_PACKAGE = (
    "{name} is not built in. If it is a file of yours that lies beside the notebook, bring it into "
    "/app first. If it is the package {package}, and pure Python, %pip install {package} brings it "
    "in where this kernel allows %pip."
)
_COMPILED = "{name} needs compiled code, and is not among what is built in; %pip can't bring it in."
_NEVER = {
    *("torch", "torchvision", "tensorflow", "keras", "jax", "cv2", "pyarrow", "polars", "duckdb"),
    *("xgboost", "lightgbm", "spacy", "numba", "psycopg2", "cupy", "grpc", "zmq"),
}
_PLATFORM = "{name} belongs to an operating system; the sandbox has none."
_INTEGERS = (
    "numpy's default integer has 32 bits here. Ask for more with dtype=np.int64, in the array or "
    "in the call that makes it."
)
_INTEGER_WORDS = ("too large to convert to C long", "out of bounds for int32")
_NAMES = {  # modules whose package has another name
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dotenv": "python-dotenv",
    "git": "GitPython",
    "jwt": "PyJWT",
    "skimage": "scikit-image",
    "yaml": "PyYAML",
}


def hint_for(error: BaseException) -> str:
    """A sentence for the person who meets `error`; empty where there is nothing to add."""
    for kind, words in _HINTS:
        if isinstance(error, kind):
            return words(error)
    return ""


def add_hint(error: BaseException) -> None:
    """Put the sentence beneath `error`, once."""
    try:
        words = hint_for(error)
        if words and not any(_MARK in note for note in getattr(error, "__notes__", ())):
            error.add_note(f"{_MARK} {words}")
    except Exception:  # an error of the user's own class may refuse anything
        return


def _missing_file(error: BaseException) -> str:
    name = getattr(error, "filename", None)
    if not isinstance(name, str) or not name or os.path.normpath(name).startswith(_OURS):
        return ""
    return _FILES


def _full(error: BaseException) -> str:
    return _FULL if getattr(error, "errno", None) == errno.ENOSPC else ""


def _missing_module(error: BaseException) -> str:
    name = getattr(error, "name", None)
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        return ""  # a part of a package that is there
    if name in sys.stdlib_module_names:
        return _PLATFORM.format(name=name)
    if name in _NEVER:
        return _COMPILED.format(name=name)
    return _PACKAGE.format(name=name, package=_NAMES.get(name, name))


def _large_integer(error: BaseException) -> str:
    text = str(error)
    return _INTEGERS if any(words in text for words in _INTEGER_WORDS) else ""


_HINTS: tuple[tuple[type[BaseException], Callable[[BaseException], str]], ...] = (
    (FileNotFoundError, _missing_file),
    (OSError, _full),
    (ModuleNotFoundError, _missing_module),
    (OverflowError, _large_integer),
    (ValueError, _large_integer),
)
