"""The magics for the session's files.

`%session_files`, `%session_read`, `%%session_write` and `%session_delete` follow the rules of the
Python API; `%session_publish` has the host copy files beside the notebook. Paths are relative to
the workspace; backslashes separate names, too. `..` and links are followed as long as they stay
inside.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import secrets
import shlex
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand
from IPython.display import display

from wasm_kernel_agent import file_links
from wasm_kernel_agent.file_links import PublishedFiles
from wasm_kernel_agent.host import run_host_command
from wasm_kernel_agent.magics.tables import Row, ShownAsTable, readable

_OPTIONS = {
    "files": ("--long",),
    "read": ("--bytes",),
    "write": ("--no-overwrite",),
    "delete": ("--recursive",),
    "publish": (),
}
_SHORT = {"-r": "--recursive"}
_ROOT, _SCRATCH = "/app", "/tmp"  # on one disk
_COVER = ".wh."  # marks a file of the notebook's folder that was deleted here
_BEGUN = re.compile(r"(?:.*=\s*)?%{0,2}session_(files|read|write|delete|publish)\s")
_glob: Any = glob
_ESCAPES = "Path escapes session workspace: {path!r}"
_ABSOLUTE = (
    "Absolute paths are not allowed in a session workspace (a.csv names /app/a.csv): {path!r}"
)


def words_of(line: str, options: tuple[str, ...]) -> tuple[list[str], set[str]]:
    """Returns the words of a magic's line, without quotes, and the options among them.

    Raises:
        UsageError: An option is unknown, or a quote is left open.
    """
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters, lexer.escape = True, "", ""
    try:
        words = list(lexer)
    except ValueError as problem:
        raise UsageError(f"{problem}: {line}") from None
    words = [_SHORT[word] if _SHORT.get(word) in options else word for word in words]
    flags = {word for word in words if word.startswith("--")}
    if unknown := flags - set(options):
        known = ", ".join(options) or "none"
        raise UsageError(f"{min(unknown)} is not known; options here: {known}")
    return [word for word in words if word not in flags], flags


def one_path(name: str, line: str, kind: str) -> tuple[str, set[str]]:
    """Returns the one path that a magic takes, and its options.

    Raises:
        UsageError: There is no path, or more than one.
    """
    words, flags = words_of(line, _OPTIONS[kind])
    if len(words) != 1:
        usage = " ".join([name, "PATH", *(f"[{option}]" for option in _OPTIONS[kind])])
        raise UsageError(f"Usage: {usage} (quote a path with spaces)")
    return words[0], flags


def files_of_session(pattern: str | None = None) -> list[str]:
    """Returns the paths of the files, sorted; with a glob pattern, of those that it matches.

    A link counts as a file if it leads to one of the session. It is never walked.
    """
    wanted = None if pattern is None else _pattern_regex(pattern)
    return sorted(path for path in _walk() if wanted is None or wanted.match(path) is not None)


def _walk() -> Iterator[str]:
    for folder, _, names in os.walk(_ROOT):
        for name in names:
            place = f"{folder}/{name}"
            path = place[len(_ROOT) + 1 :]
            if not name.startswith(_COVER) and _is_file(place, path):
                yield path


def _is_file(place: str, path: str) -> bool:
    try:
        if stat.S_ISLNK(os.lstat(place).st_mode):
            place = _inside(path)
        return stat.S_ISREG(os.lstat(place).st_mode)
    except (OSError, ValueError):
        return False  # it was deleted in between, or leads nowhere


def read_file(path: str) -> bytes:
    """Returns a file's content.

    Raises:
        UsageError: The path is absolute, or escapes the workspace; there is no such file, or
            it can't be read.
    """
    with _in_words(path):
        place = Path(_inside(path))
        if not (place.is_file() or place.is_dir()) and place.exists():
            raise OSError(errno.ENOTSUP, "It is a pipe, a socket or a device")
        return place.read_bytes()


def write_file(path: str, data: bytes, *, overwrite: bool = True) -> None:
    """Writes a file as a whole. Makes missing folders.

    Raises:
        UsageError: The path is absolute, or escapes the workspace; the file exists, and
            `overwrite` is False; or the file can't be written.
    """
    with _in_words(path):
        place = Path(_inside(path))
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        if not overwrite and place.exists():
            raise FileExistsError(errno.EEXIST, "There is something already")
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(f"{_SCRATCH}/.write-{secrets.token_hex(8)}")
        try:
            draft.write_bytes(data)
            shutil.move(draft, place, shutil.copyfile)
        finally:
            draft.unlink(missing_ok=True)


def delete_path(path: str, *, recursive: bool = False) -> None:
    """Deletes a file, a folder, or a link itself.

    Raises:
        UsageError: The path is absolute, escapes the workspace, is the workspace itself, does
            not exist, or is a folder with something in it and `recursive` is False.
    """
    with _in_words(path):
        place = Path(_inside(path))
        above, _, name = _plain(path).rstrip("/").rpartition("/")
        if name not in ("", ".", ".."):
            place = Path(_inside(above or "."), name)
        if str(place) == _ROOT:
            raise ValueError(f"The workspace goes with its session only: {path!r}")
        if not stat.S_ISDIR(place.lstat().st_mode):
            place.unlink()
        elif recursive:
            shutil.rmtree(place)
        else:
            place.rmdir()


def _inside(path: str) -> str:
    """The absolute path in the guest, links followed."""
    plain = _plain(path)
    if "\0" in plain or not plain:
        raise ValueError(f"This is not a path: {path!r}")
    if plain.startswith("/") or re.match(r"[A-Za-z]:", plain):
        raise ValueError(_ABSOLUTE.format(path=path))
    place = os.path.realpath(f"{_ROOT}/{plain}")
    if place != _ROOT and not place.startswith(f"{_ROOT}/"):
        raise ValueError(_ESCAPES.format(path=path))
    return place


def _plain(path: str) -> str:
    return path.replace("\\", "/")


def _pattern_regex(pattern: str) -> re.Pattern[str]:
    plain = _plain(pattern)
    if not plain or plain.startswith("/") or ".." in plain.split("/"):
        raise UsageError(f"A pattern stays inside the session workspace: {pattern!r}")
    parts = [part for part in plain.split("/") if part not in ("", ".")]
    text = _glob.translate("/".join(parts), recursive=True, include_hidden=True, seps="/")
    return re.compile(text)


@contextmanager
def _in_words(path: str) -> Iterator[None]:
    """Makes errors sentences that name the path as it was given."""
    try:
        yield
    except FileNotFoundError:
        why = f"There is no file {path!r} in the session. %session_files lists the files."
        raise UsageError(why) from None
    except OSError as problem:
        why = f"{problem.strerror or os.strerror(problem.errno or errno.EIO)}: {path!r}"
        if problem.errno == errno.ENOTEMPTY:
            why += ". --recursive deletes a folder with everything in it."
        raise UsageError(why) from None
    except ValueError as problem:
        raise UsageError(str(problem)) from None


class FileListing(ShownAsTable, list[str]):
    """Paths, shown as a table, with their sizes and times if it is `long`."""

    _nothing = "no files"

    def __init__(self, paths: list[str], *, long: bool) -> None:
        super().__init__(paths)
        self._headings = ("file", "size", "modified") if long else ("file",)

    def _rows(self) -> list[Row]:
        is_long = len(self._headings) > 1
        return [(path, *(self._details(path) if is_long else ())) for path in self]

    @staticmethod
    def _details(path: str) -> tuple[str, str]:
        try:
            status = Path(_ROOT, path).stat()
        except OSError:  # it was deleted in between
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
    """The magics for the session's files. Each does the work of a function of the Python API."""

    shell: Any

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        shell.set_hook("complete_command", self.complete, re_key=_BEGUN)
        file_links.install(lambda path: run_host_command(shell, "_session_published", path))

    @line_magic
    def session_files(self, line: str) -> FileListing:
        """List the session's files: `%session_files [PATTERN] [--long]`.

        The pattern is a glob: `*`, `?` and `[...]` within a name, `**` across folders; without one,
        all files are listed. `--long` shows sizes and times. The value is a list of paths:

            tables = %session_files **/*.csv
        """
        words, flags = words_of(line, _OPTIONS["files"])
        if len(words) > 1:
            raise UsageError("Usage: %session_files [PATTERN] [--long]")
        return FileListing(files_of_session(*words), long=bool(flags))

    @line_magic
    def session_read(self, line: str) -> FileText | bytes:
        """Read a file of the session: `%session_read PATH [--bytes]`.

        The value is its text, or its bytes if it is not UTF-8 or `--bytes` asks for them:

            notes = %session_read notes.txt
        """
        path, flags = one_path("%session_read", line, "read")
        data = read_file(path)
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
        write_file(path, data, overwrite=not flags)
        print(f"Wrote {readable(len(data))} to {path}")

    @line_magic
    def session_delete(self, line: str) -> None:
        """Delete a file or an empty folder: `%session_delete PATH [--recursive]`.

        With `--recursive`, or `-r`, a folder goes with everything in it. A link is deleted itself,
        and not what it leads to. `%undo --files` brings the files back.
        """
        path, flags = one_path("%session_delete", line, "delete")
        delete_path(path, recursive=bool(flags))
        print(f"Deleted {path}")

    @no_var_expand
    @line_magic
    def session_publish(self, line: str) -> None:
        """Copy results into a folder beside the notebook: `%session_publish FILES...`.

        The folder is named after the notebook, and a link to each file is shown. Patterns such as
        `*.csv` stand for the files of the session that match. Files of data alone are copied (CSV,
        Parquet, text, JSON, PDF, pictures and the like), and none of yours is replaced:

            report.to_csv("report.csv")
            %session_publish report.csv

        It reaches beyond the sandbox, so it works only if it stands in the cell itself, on a line
        of its own.
        """
        answer = run_host_command(self.shell, "session_publish", line)
        if answer["links"]:
            show: Any = display
            show(PublishedFiles(answer["links"]))
        if answer["refused"]:
            reasons = [f"{path}: {why}" for path, why in answer["refused"].items()]
            raise UsageError("Not published: " + "\n".join(reasons))

    def complete(self, _: Any, event: Any) -> list[str]:
        """Returns paths and options, for IPython's completer."""
        begun = _BEGUN.match(event.line)
        if begun is None:
            return []
        if event.symbol.startswith("-"):
            return list(_OPTIONS[begun[1]])
        found = [path for path in files_of_session() if " " not in path]
        if begun[1] in ("delete", "write"):
            found += sorted({f"{path.rpartition('/')[0]}/" for path in found if "/" in path})
        return found
