"""The commands `wasm-kernel sessions ...`, with their options and output.

A command returns its exit status, or None for success; it raises a `WasmKernelError` or an
`OSError` if it fails.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from wasm_kernel.errors import SessionInUse, WasmKernelError
from wasm_kernel.folders.notebook_file import NotebookFile, NotebookRefused
from wasm_kernel.folders.places import ROOTS
from wasm_kernel.frontends.cli.session_tables import (
    HEADINGS,
    facts_of,
    file_row,
    notes_on,
    row_of,
    table,
)
from wasm_kernel.outputs.terminal import printable
from wasm_kernel.result import readable
from wasm_kernel.service.named_functions import path_of
from wasm_kernel.sessions import overview
from wasm_kernel.sessions.overview import Overview
from wasm_kernel.sessions.pruning import hours_of
from wasm_kernel.sessions.root import SessionsRoot

Command = Callable[[argparse.Namespace], int | None]
Option = tuple[tuple[str, ...], dict[str, Any]]

_REFUSED = 1
_NAMED_MOST = 10
_WITH_VARIABLES = (
    "The variables go along, with the memory of the sandbox that they lie over: for Python, some "
    "50 MB beside the files. --files-only leaves them out."
)
_NO_SESSION = (
    "There is no such session, nor a notebook of this name that has one (`wasm-kernel sessions "
    "list` shows both)"
)
_AS = "the new session's id; without a value the old one; by default a new one"
_SAME = "="  # stands for the id of the session in an archive; it is not a valid id
_COMMANDS: dict[str, tuple[Command, str, tuple[Option, ...]]] = {}


def add(commands_of: Any, root: Callable[[], Path]) -> None:
    """Adds the command to those of `wasm-kernel`; `root` returns the default sessions' folder."""
    sessions = commands_of.add_parser("sessions", help="list, look into, move and delete sessions")
    _add_folders(sessions)
    kinds = sessions.add_subparsers(required=True, metavar="COMMAND")
    for name, (command, about, options) in _COMMANDS.items():
        parser = kinds.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        for names, fields in options:
            parser.add_argument(*names, **fields)
        _add_folders(parser, default=argparse.SUPPRESS)
        parser.set_defaults(run=_running(command, root))


def _add_folders(parser: argparse.ArgumentParser, **fields: Any) -> None:
    for name, about in (
        ("--root", "the folder that holds the sessions"),
        ("--private-root", "the folder of their variables; not needed if it was used before"),
    ):
        parser.add_argument(name, type=path_of, metavar="FOLDER", help=about, **fields)


def _running(command: Command, default: Callable[[], Path]) -> Command:
    def run(options: argparse.Namespace) -> int | None:
        place, private = options.root or default(), options.private_root
        options.elsewhere = [] if options.root else ROOTS.paths()
        root = options.root = SessionsRoot(place, private)
        if "session" in options:
            options.session = _id_of(root, options.session)
        options.folders = {"workspace_root": place, "private_root": private}
        options.overview = lambda: overview.session_in(root, options.session)
        return command(options)

    return run


def _command(about: str, *options: Option) -> Callable[[Command], Command]:
    """Registers a function as a command, named after it, with `about` as its help."""

    def named(command: Command) -> Command:
        _COMMANDS[command.__name__.strip("_")] = (command, about, options)
        return command

    return named


def _option(names: str, about: str, **fields: Any) -> Option:
    return tuple(names.split()), {"metavar": names.upper(), "help": about, **fields}


def _switch(names: str, about: str) -> Option:
    return tuple(names.split()), {"action": "store_true", "help": about}


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on is needed, not {text!r}")
    return int(text)


_SESSION = _option("session", "its id, the beginning of its id, or its notebook's name")
_WANTED = ("wanted",), _SESSION[1]  # also in other folders of sessions that were used before
_JSON = _switch("--json", "write JSON, for other programs")
_YES = _switch("--yes -y", "do not ask")


# -- the commands


@_command("list the sessions, the last used first", _JSON)
def _list(options: argparse.Namespace) -> None:
    found = overview.sessions_in(options.root)
    if found or options.json:
        _print(options, [asdict(each) for each in found], table(HEADINGS, *map(row_of, found)))
        total = readable(sum(each.disk_bytes for each in found))
        print(f"On disk, that is {total} in all.", file=sys.stderr)
    else:
        print(f"There are no sessions in {options.root.named}.", file=sys.stderr)


@_command("show what is known about a session", _SESSION, _JSON)
def _show(options: argparse.Namespace) -> None:
    found = options.overview()
    _print(options, asdict(found), table(*facts_of(found)))


@_command(
    "list the files of a session",
    _SESSION,
    _option("pattern", "a glob, such as '**/*.csv'; all by default", nargs="?"),
    _switch("--long -l", "with sizes and times"),
    _JSON,
)
def _files(options: argparse.Namespace) -> None:
    from wasm_kernel.sessions.files import list_session_files

    found = list_session_files(options.session, pattern=options.pattern, **options.folders)
    if options.long and not options.json:
        workspace = options.overview().workspace
        print(table(("FILE", "SIZE", "MODIFIED"), *(file_row(workspace, path) for path in found)))
    elif found or options.json:
        _print(options, found, "\n".join(map(printable, found)))


@_command(
    "print a file of a session",
    _SESSION,
    _option("path", "the file's path in the session"),
    _option("--output -o", "instead of standard output", type=path_of, metavar="FILE"),
)
def _read(options: argparse.Namespace) -> None:
    from wasm_kernel.sessions.files import read_session_file

    data = read_session_file(options.session, options.path, **options.folders)
    if options.output is not None:
        options.output.write_bytes(data)
        return
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


@_command(
    "write a file of a session",
    _SESSION,
    _option("path", "the file's path in the session"),
    _option("source", "its content; - is standard input", nargs="?", default="-", metavar="FILE"),
    _switch("--no-overwrite", "fail if it is there already"),
)
def _write(options: argparse.Namespace) -> None:
    from wasm_kernel.sessions.files import write_session_file

    source = options.source
    data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    overwrite = not options.no_overwrite
    write_session_file(options.session, options.path, data, overwrite=overwrite, **options.folders)


@_command(
    "delete a file of a session, or the session",
    _SESSION,
    _option("path", "a file or folder of it; else the whole session", nargs="?"),
    _switch("--recursive -r", "a folder with all in it"),
    _YES,
)
def _delete(options: argparse.Namespace) -> int | None:
    from wasm_kernel.sessions.files import delete_session_path
    from wasm_kernel.sessions.removal import delete_session_workspace

    session, path, recursive = options.session, options.path, options.recursive
    if path is not None:
        if recursive and not _confirmed(f"Delete {path} and all in it?", options):
            return _REFUSED
        delete_session_path(session, path, recursive=recursive, **options.folders)
        return None
    files = options.overview().files
    if not _confirmed(f"Delete session {session} with its {files:,} files and variables?", options):
        return _REFUSED
    delete_session_workspace(session, **options.folders)
    print(f"Deleted {session}")
    return None


@_command(
    "delete sessions that were not used for long",
    _option("--older-than", "such as 30m, 24h, 7d or 2w", required=True, metavar="TIME"),
    _switch("--apply", "delete them; without it, only list them"),
    _YES,
    _JSON,
)
def _prune(options: argparse.Namespace) -> int:
    from wasm_kernel.sessions.pruning import prune_sessions

    hours = hours_of(options.older_than)
    if hours is None:
        raise WasmKernelError(
            f"--older-than takes minutes, hours, days or weeks (30m, 24h, 7d, 2w), not "
            f"{options.older_than!r}. Nothing was deleted."
        )
    result = prune_sessions(hours, dry_run=True, **options.folders)
    if options.apply:
        count = len(result.deleted_sessions)
        if count and not _confirmed(f"Delete {count} sessions?", options):
            return _REFUSED
        result = prune_sessions(hours, **options.folders)
    if options.json:
        print(_as_json(asdict(result)))
    else:
        print("".join(f"{name}\n" for name in result.deleted_sessions), end="")
        print(result, file=sys.stderr)
    return int(bool(result.errors))


@_command("open a console on a session, with its files and variables", _WANTED)
def _open(options: argparse.Namespace) -> None:
    from importlib.util import find_spec

    from wasm_kernel.frontends.cli.kernelspecs import offered

    found = _overview(options)
    if found.in_use:
        raise SessionInUse(
            "This session is open in a kernel or a program. Nothing was opened. Shut that down "
            "first, or run %fork there and open what it makes."
        )
    if find_spec("jupyter_console") is None:
        raise WasmKernelError(
            "jupyter-console is not installed here. Nothing was opened. Install it with pip, or "
            f"open the session in a notebook: wasm-kernel sessions bind {found.session_id} NOTEBOOK"
        )
    traits = {"session_id": found.session_id, "workspace_root": found.workspace.parent.absolute()}
    traits |= {"resume": "always"}
    if options.private_root is not None:
        traits |= {"private_root": Path(options.private_root).absolute()}
    # -P: the current folder may hold untrusted modules
    command = [sys.executable, "-P", "-m", "jupyter_console", "--kernel", offered().name, "--"]
    command += [f"--WasmKernel.{name}={value}" for name, value in traits.items()]
    os.execv(sys.executable, command)  # noqa: S606 - so that the console gets the terminal's signals


@_command(
    "give a session to a notebook, whose next kernel opens it",
    _WANTED,
    _option(
        "notebook",
        "its file; if it is missing, a notebook is made, for a fork with its parent's cells",
    ),
)
def _bind(options: argparse.Namespace) -> None:
    from wasm_kernel.frontends.cli.kernelspecs import empty_notebook
    from wasm_kernel.sessions.notebooks import bind

    found, path = _overview(options), Path(options.notebook)
    made = path.suffix == ".ipynb" and not os.path.lexists(path)
    if not (made or os.path.lexists(path)):
        raise WasmKernelError(
            f"There is no file {printable(path.name)}, and a new notebook needs a name that ends "
            "in .ipynb. Nothing was done."
        )
    parent = found.parent_notebook
    cells = _cells_of(parent) if made and parent is not None else ""
    if made:
        with path.open("x", encoding="utf-8") as file:
            file.write(cells or empty_notebook())
    try:
        bind(SessionsRoot(found.workspace.parent), found.session_id, path)
    except BaseException:
        if made:
            path.unlink()
        raise
    what = "Open it." if made else "Open it, or restart its kernel if it is open."
    if parent is not None and cells:
        what = f"Its cells are those of {printable(parent.name)}, as they were saved last. {what}"
    print(f"{printable(path.name)} has session {found.session_id} from its next kernel on. {what}")


def _cells_of(notebook: Path) -> str:
    """The text of a notebook, from which a fork's notebook begins; empty if it can't be read."""
    with suppress(OSError, ValueError, RecursionError, NotebookRefused):
        with NotebookFile.at(notebook) as file:
            text = file.content().decode()
        if isinstance(book := json.loads(text), dict) and isinstance(book.get("cells"), list):
            return text
    return ""


def _overview(options: argparse.Namespace) -> Overview:
    """The wanted session in the sessions' folder, or, if none is named, in others used before."""
    for place in (options.root.named, *options.elsewhere):
        with suppress(FileNotFoundError):
            root = SessionsRoot(place, options.private_root)
            return overview.session_in(root, _id_of(root, options.wanted))
    raise FileNotFoundError(errno.ENOENT, _NO_SESSION, options.wanted)


def _id_of(root: SessionsRoot, text: str) -> str:
    """The id of the session that a user means."""
    found = overview.ids_named(root, text)
    if len(found) > 1:
        some = ", ".join([*found[:_NAMED_MOST], *["..."] * (len(found) > _NAMED_MOST)])
        raise WasmKernelError(
            f"{len(found)} sessions fit {printable(text)} ({some}). Nothing was done. Name one "
            "by its id, or by more of it."
        )
    if not found:
        raise FileNotFoundError(errno.ENOENT, _NO_SESSION, text)
    return found[0]


@_command(
    "make copies of a session, with its variables and files",
    _SESSION,
    _option("--count -n", "how many; 1", type=_count, default=1, metavar="N"),
    _switch("--deterministic", "keep the state of random generators"),
    _JSON,
)
def _fork(options: argparse.Namespace) -> None:
    from wasm_kernel.service.create_session import get_session_sandbox

    found = options.overview()
    if found.in_use:
        raise SessionInUse(
            "This session is open, so its variables may change at any moment. Nothing was forked. "
            "Use %fork in its notebook, or shut its kernel down first."
        )
    with get_session_sandbox(options.session, **options.folders) as sandbox:
        made = sandbox.fork(options.count, deterministic=options.deterministic)
        for session in made:
            session.close()
    if found.evicted:
        print(f"{found.session_id}: {notes_on(found)}", file=sys.stderr)
    names = [str(session.session_id) for session in made]
    _print(options, names, "\n".join(names))


@_command(
    "write a session into one archive",
    _SESSION,
    _option("target", "the archive; SESSION.tar.gz by default", nargs="?", metavar="FILE"),
    _switch("--files-only", "leave variables out; works while the session is open, too"),
    _JSON,
)
def _export(options: argparse.Namespace) -> None:
    from wasm_kernel.sessions.archives import export_session

    target = options.target or f"{options.session}.tar.gz"
    found = options.overview()
    if found.image and not (found.in_use or options.files_only or options.json):
        print(_WITH_VARIABLES, file=sys.stderr, flush=True)
    made = export_session(options.session, target, files_only=options.files_only, **options.folders)
    size = readable(Path(target).stat().st_size)
    text = f"{target}: {made.files:,} files, {made.states:,} states of memory, {size}"
    _print_moved(options, {"archive": target}, made, text)


@_command(
    "make a session of an archive",
    _option("source", "an archive that export made", metavar="FILE"),
    _option("--as", _AS, dest="name", nargs="?", const=_SAME, metavar="SESSION"),
    _JSON,
)
def _import(options: argparse.Namespace) -> None:
    from wasm_kernel.sessions.archives import import_session

    same = options.name == _SAME
    made = import_session(
        options.source,
        session_id=None if same else options.name,
        same_id=same,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
        **options.folders,
    )
    _print_moved(options, {"session_id": made.session_id}, made, made.session_id)


def _confirmed(question: str, options: argparse.Namespace) -> bool:
    """Returns whether the user confirms it, in a terminal or with `--yes`."""
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise WasmKernelError(
            f"{question} There is no terminal to ask in: add --yes. Nothing was done."
        )
    if input(f"{question} [y/N] ").strip().lower() in ("y", "yes"):
        return True
    print("Nothing was deleted.", file=sys.stderr)
    return False


# -- output


def _print(options: argparse.Namespace, facts: Any, text: str) -> None:
    print(_as_json(facts) if options.json else text)


def _print_moved(options: argparse.Namespace, facts: dict[str, Any], made: Any, text: str) -> None:
    names = ("files", "states", "left_out", "note")
    _print(options, facts | {name: getattr(made, name) for name in names}, text)
    if not options.json:
        left_out = [f"left out: {path} ({why})" for path, why in made.left_out.items()]
        for line in filter(None, [*left_out, made.note]):
            print(printable(line), file=sys.stderr)


def _as_json(value: Any) -> str:
    """Returns JSON for other programs, with times in ISO 8601, and paths as text."""

    def plain(value: Any) -> str:
        return value.isoformat() if isinstance(value, datetime) else str(value)

    return json.dumps(value, indent=2, default=plain)
