"""What each of `wasm-kernel sessions ...` does; what it prints comes from `tables.py`.

A command returns its exit status, and raises a `WasmKernelError` or an `OSError` where it can't do
what it was asked.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from wasm_kernel.errors import SessionInUse, WasmKernelError
from wasm_kernel.frontends.sessions import tables
from wasm_kernel.sessions import overview
from wasm_kernel.sessions.pruning import hours_of

_REFUSED = 1


class Unsure(WasmKernelError):
    """Nobody is there to be asked; nothing was done."""


def confirmed(question: str, options: argparse.Namespace) -> bool:
    """Whether the user wants it: asked in a terminal, or told with `--yes`.

    Raises:
        Unsure: neither.
    """
    if options.yes:
        return True
    if not sys.stdin.isatty():
        raise Unsure(f"{question} Nobody is there to be asked: add --yes. Nothing was done.")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def listing(options: argparse.Namespace) -> int:
    """The sessions, the last used first."""
    found = overview.sessions_in(options.root, options.private_root)
    if options.json:
        print(tables.as_json([tables.as_dict(one) for one in found]))
    elif found:
        print(tables.table(tables.HEADINGS, [tables.row_of(one) for one in found]))
    else:
        print(f"There are no sessions in {options.root}.", file=sys.stderr)
    return 0


def show(options: argparse.Namespace) -> int:
    """One session."""
    found = overview.session_in(options.root, options.session, options.private_root)
    if options.json:
        print(tables.as_json(tables.as_dict(found)))
    else:
        print(tables.facts(tables.facts_of(found)))
    return 0


def files(options: argparse.Namespace) -> int:
    """The files of a session."""
    from wasm_kernel.sessions.files import list_session_files

    found = list_session_files(
        options.session, options.root, options.pattern, private_root=options.private_root
    )
    if options.json:
        print(tables.as_json(found))
    elif options.long:
        workspace = overview.session_in(
            options.root, options.session, options.private_root
        ).workspace
        rows = [tables.file_row(workspace, path) for path in found]
        print(tables.table(("FILE", "SIZE", "MODIFIED"), rows))
    else:
        for path in found:
            print(tables.shown(path))
    return 0


def read(options: argparse.Namespace) -> int:
    """The content of a file, to standard output or into another file."""
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
    """A file, from another one or from standard input."""
    from wasm_kernel.sessions.files import write_session_file

    overview.session_in(
        options.root, options.session, options.private_root
    )  # a slip of the pen makes no session
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
    """A file or folder of a session, or the whole session."""
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
    """Delete the sessions that nobody has used for long; only tell which, without `--apply`."""
    from dataclasses import asdict

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
        print(tables.as_json(asdict(result)))
    else:
        for name in result.deleted_sessions:
            print(name)
        print(result, file=sys.stderr)
    return int(bool(result.errors))


def fork(options: argparse.Namespace) -> int:
    """Further sessions that begin where one stands."""
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
        names = [str(one.session_id) for one in made]
        for one in made:
            one.close()
    print(tables.as_json(names) if options.json else "\n".join(names))
    return 0


def export(options: argparse.Namespace) -> int:
    """One archive of a session's files and variables."""
    from wasm_kernel.sessions.archive import export_session

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
        print(tables.as_json(fields))
    else:
        print(f"{target}: {made.files:,} files, {made.states:,} states of memory")
        _tell(made.left_out, made.note)
    return 0


def import_(options: argparse.Namespace) -> int:
    """A session of an archive."""
    from wasm_kernel.sessions.arrival import import_session

    same = options.name == SAME
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
        print(tables.as_json(fields))
    else:
        print(made.session_id)
        _tell(made.left_out, made.note)
    return 0


SAME = "="
"""Stands for the id that a session in an archive had; no id is like it."""


def _tell(left_out: dict[str, str], note: str) -> None:
    for path, why in left_out.items():
        print(f"left out: {tables.shown(path)} ({why})", file=sys.stderr)
    if note:
        print(note, file=sys.stderr)
