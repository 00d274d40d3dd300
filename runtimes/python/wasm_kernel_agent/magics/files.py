"""`%session_files`, `%session_read`, `%%session_write`, `%session_delete`: the session's files."""

from __future__ import annotations

import errno
import re
import shlex
import time
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from wasm_kernel_agent.tables import Row, Shown, readable
from wasm_kernel_agent.workspace import Workspace

_OPTIONS = {
    "files": ("--long",),
    "read": ("--bytes",),
    "write": ("--no-overwrite",),
    "delete": ("--recursive",),
}
_BEGUN = re.compile(r"(?:.*=\s*)?%{0,2}session_(files|read|write|delete)\s")


def words_of(line: str, options: tuple[str, ...]) -> tuple[list[str], set[str]]:
    """The words of a magic's line, quotes taken off, and which of its options are among them.

    Raises:
        UsageError: an option is unknown, or a quote is left open.
    """
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", ""
    try:
        words = list(lexer)
    except ValueError as problem:
        raise UsageError(f"{problem}: {line}") from None
    flags = {word for word in words if word.startswith("--")}
    if unknown := flags - set(options):
        known = ", ".join(options) or "none"
        raise UsageError(f"{min(unknown)} is not known; options here: {known}")
    return [word for word in words if word not in flags], flags


def one_path(name: str, line: str, kind: str) -> tuple[str, set[str]]:
    """The one path that a magic takes, and its options.

    Raises:
        UsageError: there is none, or more than one.
    """
    words, flags = words_of(line, _OPTIONS[kind])
    if len(words) != 1:
        usage = " ".join([name, "PATH", *(f"[{option}]" for option in _OPTIONS[kind])])
        raise UsageError(f"Usage: {usage} (quote a path with spaces)")
    return words[0], flags


class SessionFiles(Shown, list[str]):
    """Paths, shown as a table; with sizes and times where those were asked for."""

    _nothing = "no files"

    def __init__(self, paths: list[str], workspace: Workspace | None = None) -> None:
        super().__init__(paths)
        self._workspace = workspace
        self._headings = ("file",) if workspace is None else ("file", "size", "modified")

    def _rows(self) -> list[Row]:
        if not self._workspace:
            return [(path,) for path in self]
        return [(path, *self._facts(self._workspace, path)) for path in self]

    @staticmethod
    def _facts(workspace: Workspace, path: str) -> tuple[str, str]:
        status = workspace.status(path)
        if status is None:
            return "gone", ""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status.st_mtime))
        return readable(status.st_size), when


class FileText(str):
    """A file's text; at the end of a cell it shows as itself, without quotes."""

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


@magics_class
class SessionFileMagics(Magics):
    """The session's files. Each magic means what the function of the Python API means."""

    shell: Any

    def __init__(self, shell: Any, workspace: Workspace | None = None) -> None:
        super().__init__(shell)
        self._workspace = workspace or Workspace()
        shell.set_hook("complete_command", self.complete, re_key=_BEGUN)

    @line_magic
    def session_files(self, line: str) -> SessionFiles:
        """List the session's files: `%session_files [PATTERN] [--long]`.

        The pattern is a glob: `*`, `?` and `[...]` within a name, `**` across folders; without one,
        all files are listed. `--long` shows sizes and times. The value is a list of paths:

            tables = %session_files **/*.csv
        """
        words, flags = words_of(line, _OPTIONS["files"])
        if len(words) > 1:
            raise UsageError("Usage: %session_files [PATTERN] [--long]")
        paths = self._workspace.files(*words)
        return SessionFiles(paths, self._workspace if flags else None)

    @line_magic
    def session_read(self, line: str) -> FileText | bytes:
        """Read a file of the session: `%session_read PATH [--bytes]`.

        The value is its text, or its bytes where it is no UTF-8 or `--bytes` asks for them:

            notes = %session_read notes.txt
        """
        path, flags = one_path("%session_read", line, "read")
        data = self._workspace.read(path)
        if flags:
            return data
        try:
            return FileText(data.decode("utf-8"))
        except UnicodeDecodeError:
            return data

    @cell_magic
    def session_write(self, line: str, cell: str) -> None:
        """Write the rest of the cell into a file: `%%session_write PATH [--no-overwrite]`.

        Folders that are missing are made. The file is there as a whole or not at all.

            %%session_write reports/summary.md
            All is well.
        """
        path, flags = one_path("%%session_write", line, "write")
        data = cell.encode("utf-8")
        self._workspace.write(path, data, overwrite=not flags)
        print(f"Wrote {readable(len(data))} to {path}")

    @line_magic
    def session_delete(self, line: str) -> None:
        """Delete a file or an empty folder: `%session_delete PATH [--recursive]`.

        With `--recursive` a folder goes with everything in it. A link is deleted itself, and not
        what it leads to. `%undo --files` brings back what was deleted.
        """
        path, flags = one_path("%session_delete", line, "delete")
        try:
            self._workspace.delete(path, recursive=bool(flags))
        except OSError as problem:
            if problem.errno == errno.ENOTEMPTY:
                problem.add_note("--recursive deletes a folder with everything in it.")
            raise
        print(f"Deleted {path}")

    def complete(self, _: Any, event: Any) -> list[str]:
        """Paths and options, for IPython's completer."""
        begun = _BEGUN.match(event.line)
        if begun is None:
            return []
        if event.symbol.startswith("-"):
            return list(_OPTIONS[begun[1]])
        found = [path for path in self._workspace.files() if " " not in path]
        if begun[1] in ("delete", "write"):
            found += sorted({f"{path.rpartition('/')[0]}/" for path in found if "/" in path})
        return found
