"""Programs that a shell's scripts run in this interpreter: Python itself, and commands."""

from __future__ import annotations

import contextvars
import importlib.util
import os
import platform
import re
import runpy
import sys
import traceback
import types
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wasm_kernel_agent.shell_options import Misuse, Program, in_words
from wasm_kernel_agent.shell_process import Left, PythonProcess, ShellProcess, Streams

_PLAIN_FLAGS = re.compile("-[uBsEIOqSbP]+([cm]?)")
_PAIRED_FLAGS = ("-W", "-X")
_BADLY_USED_2 = ("python", "python3", "sort", "tar", "diff", "ls", "awk", "zip", "unzip")
_OF_PYTHON = ("python", "python3", "pip", "pip3")
_PIP_LISTS = ("list", "freeze", "show")
_NO_PIP = "packages are not installed by a script. Use %pip on a line of its own in the cell.\n"


def run_program(asked: Mapping[str, Any], running: list[Any]) -> dict[str, Any]:
    """Runs the program that a script asks for; returns its output and its exit status.

    `running` gets the program's process until its end.

    Raises:
        KeyboardInterrupt: The cell was interrupted.
    """
    name, *words = asked["argv"]
    streams = Streams(asked["stdin"].encode("latin1", "replace"))
    process = PythonProcess() if name in _OF_PYTHON else ShellProcess()
    running.append(process)
    try:
        try:
            process.begin(streams, asked["cwd"], asked["env"])
            contextvars.Context().run(_run, name, words)
            status = 0
        except SystemExit as end:
            status = _status_of(end, streams)
        except Misuse as problem:
            streams.stderr.write(f"{name}: {problem}\n")
            status = 2 if name in _BADLY_USED_2 else 1
        except (KeyboardInterrupt, Left):
            raise
        except BaseException as problem:
            streams.stderr.write("".join(_lines_of(problem)))
            status = 1
        process.call_exit_functions()
    except Left as end:
        status = end.args[0]
    finally:
        process.end()
        running.remove(process)
    return {
        "stdout": streams.out.getvalue().decode("latin1"),
        "stderr": streams.err.getvalue().decode("utf-8", "replace"),
        "exitCode": status,
    }


def _status_of(end: SystemExit, streams: Streams) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    streams.stderr.write(f"{end.code}\n")
    return 1


def _lines_of(problem: BaseException) -> Iterator[str]:
    """Yields the lines of a traceback without the frames of this file and of `runpy`."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__):
        trace = trace.tb_next
    yield from traceback.format_exception(type(problem), problem, trace)


# -- Python


def _python(words: list[str]) -> None:
    while words:
        if plain := _PLAIN_FLAGS.fullmatch(words[0]):
            words[:1] = [f"-{plain[1]}"] if plain[1] else []
        elif words[0].startswith(_PAIRED_FLAGS):
            del words[: 2 if words[0] in _PAIRED_FLAGS else 1]
        else:
            break
    sys.path[0:0] = filter(None, os.environ.get("PYTHONPATH", "").split(":"))
    match words:
        case ["-V" | "--version", *_]:
            print("Python", platform.python_version())
        case ["-c", code, *rest]:
            _run_text(code, "<string>", ["-c", *rest])
        case ["-m", "pip", *_]:
            _pip(words[2:])
        case ["-m", module, *rest]:
            sys.argv, sys.path[0:0] = [module, *rest], [""]
            if not _is_there(module):
                raise SystemExit(f"{sys.executable}: No module named {module}")
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [] | ["-", *_]:
            _run_text(sys.stdin.read(), "<stdin>", words or [""])
        case [flag, *_] if flag.startswith("-"):
            raise Misuse(f"the option {flag} is not known here")
        case [path, *_]:
            _run_file(path, words)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package does not exist either
        return False


def _run_file(path: str, argv: list[str]) -> None:
    if os.path.isdir(path) or zipfile.is_zipfile(path):  # noqa: PTH112
        sys.argv, sys.modules["__main__"] = argv, types.ModuleType("__main__")
        runpy.run_path(path, run_name="__main__")
        return
    try:
        source = Path(path).read_bytes()
    except OSError as problem:
        raise Misuse(f"can't open file {path!r}: {problem.strerror}") from None
    place = os.path.abspath(path)  # noqa: PTH100 - as Python does
    _run_text(source, place, argv, os.path.dirname(place))  # noqa: PTH120


def _run_text(source: str | bytes, name: str, argv: list[str], folder: str = "") -> None:
    module = types.ModuleType("__main__")
    if name.startswith("/"):
        module.__file__ = name
    sys.argv, sys.path[0:0] = argv, [folder]
    sys.modules["__main__"] = module
    exec(compile(source, name, "exec"), vars(module))


def _pip(words: list[str]) -> None:
    from IPython import get_ipython
    from IPython.core.error import UsageError

    if not words or words[0] not in _PIP_LISTS:
        sys.stderr.write(_NO_PIP)
        raise SystemExit(1)
    try:
        get_ipython().run_line_magic("pip", " ".join(words))
    except UsageError as problem:
        raise Misuse(str(problem)) from None


def _run(name: str, words: list[str]) -> None:
    if name in ("python", "python3"):
        _python(words)
    elif name in ("pip", "pip3"):
        _pip(words)
    elif name in (programs := _programs()):
        in_words(programs[name], words)


def _programs() -> dict[str, Program]:
    from wasm_kernel_agent import (
        shell_archives,
        shell_awk,
        shell_basics,
        shell_digests,
        shell_files,
        shell_text,
    )

    tables = (shell_archives, shell_awk, shell_basics, shell_digests, shell_files, shell_text)
    return {name: run for table in tables for name, run in table.PROGRAMS.items()}
