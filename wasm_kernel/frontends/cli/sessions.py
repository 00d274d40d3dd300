"""`wasm-kernel sessions ...`: its options, what each command does, and the tables that it prints.

A command returns its exit status; it raises a `WasmKernelError` or an `OSError` if it fails.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from wasm_kernel.errors import SessionInUse, WasmKernelError
from wasm_kernel.result import readable
from wasm_kernel.sessions import overview
from wasm_kernel.sessions.overview import Overview
from wasm_kernel.sessions.pruning import hours_of

Command = Callable[[argparse.Namespace], int]
Option = tuple[tuple[str, ...], dict[str, Any]]

_REFUSED = 1
_BROKEN_PIPE = 141  # the status that a shell gives a program that wrote to nobody
_SAME = "="  # stands for the id that the session in an archive had; no id looks like it


# -- the commands


class Unsure(WasmKernelError):
    """A question that nobody is there to answer; nothing was done."""


def confirmed(question: str, options: argparse.Namespace) -> bool:
    """Returns whether the user wants it: asked in a terminal, or told with `--yes`.

    Raises:
        Unsure: there is neither.
    """
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise Unsure(f"{question} Nobody is there to be asked: add --yes. Nothing was done.")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def listing(options: argparse.Namespace) -> int:
    """Prints the sessions, the last used first."""
    found = overview.sessions_in(options.root, options.private_root)
    if options.json:
        print(as_json([asdict(session) for session in found]))
    elif found:
        print(table(_HEADINGS, *map(row_of, found)))
    else:
        print(f"There are no sessions in {options.root}.", file=sys.stderr)
    return 0


def show(options: argparse.Namespace) -> int:
    """Prints what is known of one session."""
    found = overview.session_in(options.root, options.session, options.private_root)
    if options.json:
        print(as_json(asdict(found)))
    else:
        print(table(*facts_of(found)))
    return 0


def files(options: argparse.Namespace) -> int:
    """Prints the files of a session."""
    from wasm_kernel.sessions.files import list_session_files

    found = list_session_files(
        options.session, options.root, options.pattern, private_root=options.private_root
    )
    if options.json:
        print(as_json(found))
    elif options.long:
        workspace = overview.session_in(
            options.root, options.session, options.private_root
        ).workspace
        rows = [file_row(workspace, path) for path in found]
        print(table(("FILE", "SIZE", "MODIFIED"), *rows))
    else:
        for path in found:
            print(printable(path))
    return 0


def read(options: argparse.Namespace) -> int:
    """Copies a file of a session to standard output or into another file."""
    from wasm_kernel.sessions.files import read_session_file

    data = read_session_file(
        options.session, options.path, options.root, private_root=options.private_root
    )
    if options.output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        Path(options.output).write_bytes(data)
    return 0


def write(options: argparse.Namespace) -> int:
    """Writes a file of a session, from another one or from standard input."""
    from wasm_kernel.sessions.files import write_session_file

    # a typing error in the id makes no new session
    overview.session_in(options.root, options.session, options.private_root)
    source = options.source
    data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    write_session_file(
        options.session,
        options.path,
        data,
        options.root,
        overwrite=not options.no_overwrite,
        private_root=options.private_root,
    )
    return 0


def delete(options: argparse.Namespace) -> int:
    """Deletes a file or folder of a session, or the whole session."""
    from wasm_kernel.sessions.files import delete_session_path
    from wasm_kernel.sessions.lifecycle import delete_session_workspace

    if options.path is not None:
        asked = options.recursive and not confirmed(
            f"Delete {options.path} and all in it?", options
        )
        if asked:
            return _REFUSED
        delete_session_path(
            options.session,
            options.path,
            options.root,
            recursive=options.recursive,
            private_root=options.private_root,
        )
        return 0
    found = overview.session_in(options.root, options.session, options.private_root)
    question = f"Delete session {found.session_id} with its {found.files:,} files and variables?"
    if not confirmed(question, options):
        return _REFUSED
    delete_session_workspace(options.session, options.root, private_root=options.private_root)
    print(f"Deleted {options.session}")
    return 0


def prune(options: argparse.Namespace) -> int:
    """Deletes the sessions that nobody has used for long; without `--apply`, only prints them."""
    from wasm_kernel.sessions.pruning import prune_sessions

    hours = hours_of(options.older_than)
    if hours is None:
        raise WasmKernelError(
            f"--older-than takes minutes, hours, days or weeks (30m, 24h, 7d, 2w), not "
            f"{options.older_than!r}. Nothing was deleted."
        )
    result = prune_sessions(hours, options.root, dry_run=True, private_root=options.private_root)
    if options.apply and result.deleted_sessions:
        question = f"Delete {len(result.deleted_sessions)} sessions?"
        if not confirmed(question, options):
            return _REFUSED
    if options.apply:
        result = prune_sessions(hours, options.root, private_root=options.private_root)
    if options.json:
        print(as_json(asdict(result)))
    else:
        for name in result.deleted_sessions:
            print(name)
        print(result, file=sys.stderr)
    return int(bool(result.errors))


def fork(options: argparse.Namespace) -> int:
    """Makes further sessions that begin with the files and variables of one."""
    from wasm_kernel.sessions.lifecycle import get_session_sandbox

    found = overview.session_in(options.root, options.session, options.private_root)
    if found.in_use:
        raise SessionInUse(
            "This session is open, so its variables may change at any moment. Nothing was forked. "
            "Use %fork in its notebook, or shut its kernel down first."
        )
    with get_session_sandbox(
        options.session, workspace_root=options.root, private_root=options.private_root
    ) as sandbox:
        made = sandbox.fork(options.count, deterministic=options.deterministic)
        names = [str(session.session_id) for session in made]
        for session in made:
            session.close()
    print(as_json(names) if options.json else "\n".join(names))
    return 0


def export(options: argparse.Namespace) -> int:
    """Writes a session's files and variables into one archive."""
    from wasm_kernel.sessions.archives import export_session

    target = options.target or f"{options.session}.tar.gz"
    made = export_session(
        options.session,
        target,
        options.root,
        files_only=options.files_only,
        private_root=options.private_root,
    )
    fields = {"archive": target, "files": made.files, "states": made.states}
    fields |= {"left_out": made.left_out, "note": made.note}
    if options.json:
        print(as_json(fields))
    else:
        print(f"{target}: {made.files:,} files, {made.states:,} states of memory")
        _tell(made.left_out, made.note)
    return 0


def import_(options: argparse.Namespace) -> int:
    """Makes a session of an archive."""
    from wasm_kernel.sessions.archives import import_session

    same = options.name == _SAME
    made = import_session(
        options.source,
        options.root,
        private_root=options.private_root,
        session_id=None if same else options.name,
        same_id=same,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )
    fields = {"session_id": made.session_id, "files": made.files, "states": made.states}
    fields |= {"left_out": made.left_out, "note": made.note}
    if options.json:
        print(as_json(fields))
    else:
        print(made.session_id)
        _tell(made.left_out, made.note)
    return 0


def _tell(left_out: dict[str, str], note: str) -> None:
    for path, why in left_out.items():
        print(f"left out: {printable(path)} ({why})", file=sys.stderr)
    if note:
        print(printable(note), file=sys.stderr)


# -- what they print

Row = Sequence[str]


def printable(text: str) -> str:
    """`text` on one line, with whatever does not print escaped: names are the guest's choice."""
    return text if text.isprintable() else repr(text)[1:-1]


def table(*rows: Row) -> str:
    """Rows in columns, each as wide as its longest cell."""
    lines = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def as_json(value: Any) -> str:
    """JSON for other programs: times in ISO 8601, paths as text."""
    return json.dumps(value, indent=2, default=_plain)


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def when(time: datetime | None) -> str:
    """A time in this machine's zone."""
    return "unknown" if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M")


_HEADINGS = ("SESSION", "LAST USED", "FILES", "SIZE", "STATES", "MEMORY", "")


def row_of(session: Overview) -> Row:
    """A session as one row."""
    return (
        session.session_id,
        when(session.updated_at),
        f"{session.files:,}",
        readable(session.file_bytes),
        f"{session.history_states:,}",
        readable(session.history_bytes),
        "open" if session.in_use else "",
    )


def facts_of(session: Overview) -> list[Row]:
    """A session as many rows of a name and a value."""
    return [
        ("session", session.session_id),
        ("folder", str(session.workspace)),
        ("created", when(session.created_at)),
        ("last used", when(session.updated_at)),
        ("files", f"{session.files:,} ({readable(session.file_bytes)})"),
        ("states of memory", f"{session.history_states:,} ({readable(session.history_bytes)})"),
        ("named checkpoints", ", ".join(session.checkpoints) or "none"),
        ("open in a process", "yes" if session.in_use else "no"),
    ]


def file_row(workspace: Path, path: str) -> Row:
    """A row for a file of a session: its path, size and time."""
    try:
        status = (workspace / path).stat()
    except OSError:
        return (path, "gone", "")
    return (
        path,
        readable(status.st_size),
        when(datetime.fromtimestamp(status.st_mtime).astimezone()),
    )


# -- their options


def add(commands_of: Any, root: Callable[[], Path]) -> None:
    """Adds the command to those of `wasm-kernel`.

    Args:
        commands_of: The subparsers.
        root: Returns the sessions' folder if no other is named.
    """
    sessions = commands_of.add_parser("sessions", help="list, look into, move and delete sessions")
    _add_folders(sessions)
    kinds = sessions.add_subparsers(required=True, metavar="COMMAND")
    for name, about, command, options in _COMMANDS:
        parser = kinds.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        for names, fields in map(_OPTIONS.__getitem__, options.split()):
            parser.add_argument(*names, **fields)
        _add_folders(parser, default=argparse.SUPPRESS)
        parser.set_defaults(run=_running(command, root))


def _add_folders(parser: argparse.ArgumentParser, **fields: Any) -> None:
    for name, about in (
        ("--root", "the folder that holds the sessions"),
        ("--private-root", "the folder of their variables; found by itself if it was used before"),
    ):
        parser.add_argument(name, metavar="FOLDER", help=about, **fields)


def _running(command: Command, root: Callable[[], Path]) -> Command:
    def run(options: argparse.Namespace) -> int:
        options.root = Path(options.root) if options.root else root()
        try:
            return command(options)
        except BrokenPipeError:
            # the reader has had enough; Python would complain once more at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _BROKEN_PIPE
        except WasmKernelError:
            raise
        except OSError as problem:
            named = f": {problem.filename!r}" if problem.filename else ""
            raise WasmKernelError(f"{problem.strerror or problem}{named}") from problem

    return run


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on is needed, not {text!r}")
    return int(text)


def _option(*names: str, **fields: Any) -> Option:
    return names, fields


def _switch(name: str, about: str) -> Option:
    return (name,), {"action": "store_true", "help": about}


_OPTIONS = {
    "session": _option("session", metavar="SESSION", help="the session's id"),
    "json": _switch("--json", "for other programs"),
    "yes": _option("--yes", "-y", action="store_true", help="do not ask"),
    "pattern": _option(
        "pattern", nargs="?", metavar="PATTERN", help="a glob, such as '**/*.csv'; all by default"
    ),
    "long": _option("--long", "-l", action="store_true", help="with sizes and times"),
    "path": _option("path", metavar="PATH", help="the file's path in the session"),
    "output": _option("--output", "-o", metavar="FILE", help="instead of standard output"),
    "content": _option(
        "source", nargs="?", default="-", metavar="FILE", help="its content; - is standard input"
    ),
    "no-overwrite": _switch("--no-overwrite", "fail if it is there already"),
    "deleted": _option(
        "path", nargs="?", metavar="PATH", help="a file or folder of it; else the whole session"
    ),
    "recursive": _option("--recursive", "-r", action="store_true", help="a folder with all in it"),
    "older-than": _option(
        "--older-than", required=True, metavar="TIME", help="such as 30m, 24h, 7d or 2w"
    ),
    "apply": _switch("--apply", "delete them; else only tell which"),
    "count": _option("--count", "-n", type=_count, default=1, metavar="N", help="how many; 1"),
    "deterministic": _switch("--deterministic", "keep the state of random generators"),
    "target": _option(
        "target", nargs="?", metavar="FILE", help="the archive; SESSION.tar.gz by default"
    ),
    "files-only": _switch("--files-only", "without variables; also while it is open"),
    "archive": _option("source", metavar="FILE", help="an archive that export made"),
    "as": _option(
        "--as",
        dest="name",
        nargs="?",
        const=_SAME,
        metavar="SESSION",
        help="the id that it gets, or keeps if none is named; a new one by default",
    ),
}
_COMMANDS: tuple[tuple[str, str, Command, str], ...] = (
    ("list", "list the sessions, the last used first", listing, "json"),
    ("show", "tell what is known of a session", show, "session json"),
    ("files", "list the files of a session", files, "session pattern long json"),
    ("read", "print a file of a session", read, "session path output"),
    ("write", "write a file of a session", write, "session path content no-overwrite"),
    (
        "delete",
        "delete a file of a session, or the session",
        delete,
        "session deleted recursive yes",
    ),
    (
        "prune",
        "delete the sessions that nobody has used for long",
        prune,
        "older-than apply yes json",
    ),
    ("fork", "make sessions that begin where one stands", fork, "session count deterministic json"),
    ("export", "write a session into one archive", export, "session target files-only json"),
    ("import", "make a session of an archive", import_, "archive as json"),
)
"""Each command's name, help, function and options."""
