"""The options of `wasm-kernel sessions ...`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.frontends.sessions import commands

Command = Callable[[argparse.Namespace], int]
_ROOT = "the folder that holds the sessions"
_PRIVATE = "the folder that holds their variables; found by itself if it was used before"
_BROKEN_PIPE = 141  # what a shell says of a program that wrote to nobody


def add(commands_of: Any, root: Callable[[], Path]) -> None:
    """Add the command to those of `wasm-kernel`.

    Args:
        commands_of: The subparsers.
        root: The sessions' folder, where none is named.
    """
    sessions = commands_of.add_parser("sessions", help="list, look into, move and delete sessions")
    sessions.add_argument("--root", metavar="FOLDER", help=_ROOT)
    sessions.add_argument("--private-root", metavar="FOLDER", help=_PRIVATE)
    kinds = sessions.add_subparsers(required=True, metavar="COMMAND")
    for name, about, command, describe in _COMMANDS:
        parser = kinds.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        describe(parser)
        parser.add_argument("--root", metavar="FOLDER", default=argparse.SUPPRESS, help=_ROOT)
        parser.add_argument(
            "--private-root", metavar="FOLDER", default=argparse.SUPPRESS, help=_PRIVATE
        )
        parser.set_defaults(run=_running(command, root))


def _running(command: Command, root: Callable[[], Path]) -> Command:
    def run(options: argparse.Namespace) -> int:
        options.root = Path(options.root) if options.root else root()
        try:
            return command(options)
        except BrokenPipeError:
            # whoever read has had enough; Python would complain once more at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _BROKEN_PIPE
        except WasmKernelError:
            raise
        except OSError as problem:
            named = f": {problem.filename!r}" if problem.filename else ""
            raise WasmKernelError(f"{problem.strerror or problem}{named}") from problem

    return run


def _one(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", metavar="SESSION", help="the session's id")


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for other programs")


def _yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")


def _show(parser: argparse.ArgumentParser) -> None:
    _one(parser)
    _json(parser)


def _files(parser: argparse.ArgumentParser) -> None:
    _one(parser)
    parser.add_argument(
        "pattern", nargs="?", metavar="PATTERN", help="a glob, such as '**/*.csv'; all by default"
    )
    parser.add_argument("--long", "-l", action="store_true", help="with sizes and times")
    _json(parser)


def _read(parser: argparse.ArgumentParser) -> None:
    _one(parser)
    parser.add_argument("path", metavar="PATH", help="the file's path in the session")
    parser.add_argument("--output", "-o", metavar="FILE", help="instead of standard output")


def _write(parser: argparse.ArgumentParser) -> None:
    _one(parser)
    parser.add_argument("path", metavar="PATH", help="the file's path in the session")
    parser.add_argument(
        "source", nargs="?", default="-", metavar="FILE", help="its content; - is standard input"
    )
    parser.add_argument(
        "--no-overwrite", action="store_true", help="fail where it is there already"
    )


def _delete(parser: argparse.ArgumentParser) -> None:
    _one(parser)
    parser.add_argument(
        "path", nargs="?", metavar="PATH", help="a file or folder of it; else the whole session"
    )
    parser.add_argument("--recursive", "-r", action="store_true", help="a folder with all in it")
    _yes(parser)


def _prune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--older-than", required=True, metavar="TIME", help="such as 30m, 24h, 7d or 2w"
    )
    parser.add_argument("--apply", action="store_true", help="delete them; else only tell which")
    _yes(parser)
    _json(parser)


def _fork(parser: argparse.ArgumentParser) -> None:
    _one(parser)
    parser.add_argument("--count", "-n", type=_count, default=1, metavar="N", help="how many; 1")
    parser.add_argument(
        "--deterministic", action="store_true", help="keep the state of random generators"
    )
    _json(parser)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on is needed, not {text!r}")
    return int(text)


def _export(parser: argparse.ArgumentParser) -> None:
    _one(parser)
    parser.add_argument(
        "target", nargs="?", metavar="FILE", help="the archive; SESSION.tar.gz by default"
    )
    parser.add_argument(
        "--files-only", action="store_true", help="without variables; also while it is open"
    )
    _json(parser)


def _import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FILE", help="an archive that export made")
    parser.add_argument(
        "--as",
        dest="name",
        nargs="?",
        const=commands.SAME,
        metavar="SESSION",
        help="the id that it gets, or keeps where none is named; a new one by default",
    )
    _json(parser)


_COMMANDS: tuple[tuple[str, str, Command, Callable[[argparse.ArgumentParser], None]], ...] = (
    ("list", "list the sessions, the last used first", commands.listing, _json),
    ("show", "tell what is known of a session", commands.show, _show),
    ("files", "list the files of a session", commands.files, _files),
    ("read", "print a file of a session", commands.read, _read),
    ("write", "write a file of a session", commands.write, _write),
    ("delete", "delete a file of a session, or the session", commands.delete, _delete),
    ("prune", "delete the sessions that nobody has used for long", commands.prune, _prune),
    ("fork", "make sessions that begin where one stands", commands.fork, _fork),
    ("export", "write a session into one archive", commands.export, _export),
    ("import", "make a session of an archive", commands.import_, _import),
)
