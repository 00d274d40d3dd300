"""Finds, reads, checks and writes the notebooks of a batch.

A notebook to run is not trusted: its own kernelspec is ignored, and its size and content are
checked before it is used.
"""

# mypy: disable-error-code="no-untyped-call"
# (nbformat carries no types)

from __future__ import annotations

import glob
import json
import os
import stat
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, groupby
from pathlib import Path
from typing import Any

import nbformat
from msgspec import Struct
from nbformat import NotebookNode
from nbformat.validator import get_validator

from wasm_kernel.errors import WasmKernelError, describe
from wasm_kernel.frontends.batch.outcome import BatchError, BatchStopped, plain
from wasm_kernel.guests.protocol import without_surrogates
from wasm_kernel.linux.channel import marks_in
from wasm_kernel.linux.folders import Folder
from wasm_kernel.policy import RuntimeType

STDIN = "-"
METADATA = "wasm_kernel"
"""The key of a notebook's metadata that holds the record of a run."""

SUFFIX = ".ipynb"
SKIP_TAG = "skip-execution"  # nbclient's own
MOST_BYTES = 256 * 1024 * 1024
MOST_VALUES = 2_000_000
"""The most values of JSON in a notebook: reading a million takes some 4 s, and 0.5 GB."""
_OLD_VALUES = 20_000
"""The most values in a cell of an old format; nbformat takes some 60 KB for a fault in one."""
_PYTHON = ("python", "ipython", "python3")
_STDIN_NAME = "stdin.ipynb"
_VERSION = 4
_READ_ONLY = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_LEADS_OUT = "The notebook is a link that leads out of its folder. Name the file itself."
_NO_FILE = "The notebook is not a file."
_NAME_MOST, _PATH_MOST = 240, 3_800  # bytes; drafts and results have somewhat longer names
_TOO_LONG = "The path of the executed notebook would be too long. Give the notebook a shorter name."


Cell = tuple[int, NotebookNode]
"""A cell, with its place among all cells of its notebook."""


class NotebookError(WasmKernelError):
    """A notebook that can't be run."""


class Source(Struct, frozen=True):
    """A notebook to run: a file, or the content of standard input.

    The executed one is written to `output`. Its kernel starts in `folder`, the notebook's own.
    """

    name: str
    path: Path | None
    output: Path
    folder: Path
    data: bytes = b""

    def exchanges_in(self, folder: Path, *, records: bool) -> Path:
        """Returns the folder of its recorded requests: its own, or the one that all replay."""
        own = folder / self.name.removesuffix(SUFFIX)
        if records or own.is_dir() or not folder.is_dir():
            return own
        return folder if any(each.is_file() for each in folder.iterdir()) else own


# -- finding


def find_sources(named: Sequence[str], out: Path) -> list[Source]:
    """Returns the notebooks that files, folders, globs or `-` stand for, each once.

    Executed notebooks get the same relative paths in `out` as the notebooks have below their
    deepest common folder. For a single notebook, `out` may also be a file. Raises `BatchError` if a
    name matches nothing, or an executed notebook would replace its source.
    """
    is_file = out.suffix == SUFFIX and not out.is_dir()
    found: dict[Path | None, str] = {}
    for name in named:
        for path in [None] if name == STDIN else _files_of(name, out):
            found.setdefault(path, name)
    paths = [path for path in found if path is not None]
    if is_file and len(found) > 1:
        raise BatchError(f"{len(found)} notebooks can't be written into one file. Name a folder.")
    top = Path(os.path.commonpath([path.parent for path in paths])) if paths else Path()
    sources = []
    for path in found:
        below = Path(_STDIN_NAME) if path is None else path.relative_to(top)
        output = out if is_file else out / below
        if path is not None and output.exists() and output.samefile(path):
            raise BatchError(f"{below} would be replaced by its own outputs. Name another folder.")
        folder = Path.cwd() if path is None else path.parent
        data = b"" if path is not None else sys.stdin.buffer.read(MOST_BYTES + 1)
        sources.append(Source(str(below), path, _real(output), folder, data))
    return sources


def source_of(folder: Path, name: str, code: str) -> Source:
    """Returns a notebook with one cell, to be executed in a folder."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code, id="cell-1")])
    output = _real(folder / f"{name}{SUFFIX}")
    return Source(name, None, output, folder, nbformat.v4.writes(book).encode())


def _files_of(name: str, out: Path) -> list[Path]:
    path = Path(name)
    if not name:  # often a variable of a shell that is not set
        raise BatchError("A notebook's name is empty. Nothing was run.")
    if path.is_dir():
        found = sorted(_walk(path, out.resolve()))
    elif path.exists():
        found = [path]
    else:
        found = [Path(each) for each in sorted(glob.glob(name, recursive=True))]  # noqa: PTH207 - it may be absolute
        done = out.resolve()
        is_above = _fixed_part(path) in done.parents
        found = [
            each
            for each in found
            if each.is_file() and not (is_above and each.resolve().is_relative_to(done))
        ]
    if not found:
        what = f"in the folder {name}" if path.is_dir() else name
        raise BatchError(f"There is no notebook {what}. Nothing was run.")
    return [_real(each) for each in found]


def _fixed_part(pattern: Path) -> Path:
    """The deepest folder above all possible matches of a glob."""
    return next(top for top in pattern.absolute().parents if not glob.has_magic(str(top))).resolve()


def _real(path: Path) -> Path:
    """The path with all links resolved, except a link at its end."""
    return path.parent.resolve() / path.name


def _walk(folder: Path, out: Path) -> Iterable[Path]:
    """The notebooks below a folder, without hidden folders and the executed notebooks in `out`."""
    for top, folders, files in os.walk(folder):
        here = Path(top)
        folders[:] = [
            each for each in folders if not each.startswith(".") and (here / each).resolve() != out
        ]
        yield from (here / each for each in files if each.endswith(SUFFIX) and each[0] != ".")


# -- reading


def read_stored(source: Source) -> NotebookNode:
    """Returns a notebook as it is stored, with its outputs.

    Raises `NotebookError` if it can't be read, is not a notebook, or is in an unknown language.
    """
    try:
        data = source.data if source.path is None else _content(source.path)
    except OSError as problem:
        raise NotebookError(f"The notebook can't be read ({describe(problem)}).") from None
    book = parse_notebook(data)
    runtime_of(book)
    return book


def _content(path: Path) -> bytes:
    """The content of a notebook's file, whose folder may hold the files of strangers.

    Raises `NotebookError` if it is not a regular file, or is a link to a file of another folder.
    """
    real = Path(os.path.realpath(path, strict=True))  # a loop of links is an OSError here
    if not real.is_relative_to(path.parent):
        raise NotebookError(_LEADS_OUT)
    with os.fdopen(os.open(real, _READ_ONLY), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise NotebookError(_NO_FILE)
        return file.read(MOST_BYTES + 1)


def read_notebook(source: Source) -> NotebookNode:
    """Returns a notebook to run: without outputs, and without the record of an earlier run.

    Raises `NotebookError` as `read_stored`, and if its name is too long for the executed one.
    """
    names = [len(os.fsencode(part)) for part in source.output.parts]
    if max(names) > _NAME_MOST or sum(names) + len(names) > _PATH_MOST:
        raise NotebookError(_TOO_LONG)
    book = read_stored(source)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            cell.metadata.pop("execution", None)
    for key in (METADATA, "widgets"):
        book.metadata.pop(key, None)
    return book


def parse_notebook(data: bytes) -> NotebookNode:
    """Returns the notebook in a file's content, in the newest format; each cell has an id."""
    if len(data) > MOST_BYTES:
        raise NotebookError(f"The notebook has more than {MOST_BYTES:,} bytes.")
    if marks_in(data, MOST_VALUES) > MOST_VALUES:
        raise NotebookError(
            f"The notebook holds more than {MOST_VALUES:,} values of JSON. Clear its outputs."
        )
    try:
        found = json.loads(data)  # also in UTF-16, or with the mark that Windows puts first
        if not isinstance(found, dict):
            raise TypeError("it is JSON of another kind")
        _check_cells(found)
        if found.get("nbformat") == _VERSION:
            _name_cells(found["cells"])
            found["nbformat_minor"] = max(5, int(found["nbformat_minor"]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = without_surrogates(json.dumps(found, ensure_ascii=False))
            book: NotebookNode = nbformat.reader.reads(text)
            if book.nbformat != _VERSION:
                book = nbformat.from_dict(nbformat.convert(book, _VERSION))
                for number, cell in enumerate(book.cells, start=1):
                    cell.id = f"cell-{number}"
            _check_schema(book)
    except NotebookError:
        raise
    except (KeyError, AttributeError) as problem:
        name = plain(str(problem)).strip("'")
        why = f"it lacks {name}" if name.isidentifier() else "a part of it is of another kind"
        raise NotebookError(f"This is not a notebook: {why}.") from None
    except UnicodeDecodeError:
        raise NotebookError("This is not a notebook: it is not text in UTF-8.") from None
    except json.JSONDecodeError as problem:
        why = f"its line {problem.lineno} is not JSON" if data.strip() else "the file is empty"
        raise NotebookError(f"This is not a notebook: {why}.") from None
    except nbformat.ValidationError as problem:
        why = plain(problem.message.removeprefix("data."), 120)
        raise NotebookError(f"This is not a notebook ({why}).") from None
    except Exception as problem:  # the file is untrusted: nbformat may raise anything
        raise NotebookError(f"This is not a notebook ({plain(describe(problem), 120)}).") from None
    return book


def _check_cells(found: Mapping[str, Any]) -> None:
    """Raises an error for cells that would take nbformat very long, or all memory.

    It compares tags that are not texts each with all, and collects all faults in a cell before it
    converts that to the newest format.
    """
    sheets, is_old = [found, *(found.get("worksheets") or [])], found.get("nbformat") != _VERSION
    for cell in (each for sheet in sheets for each in sheet.get("cells") or []):
        tags = (cell.get("metadata") or {}).get("tags") or []
        if not all(isinstance(tag, str) for tag in tags):
            raise TypeError("the tags of a cell are not texts")
        if is_old and marks_in(json.dumps(cell).encode(), _OLD_VALUES) > _OLD_VALUES:
            raise NotebookError(
                f"The notebook is in an old format, and a cell holds more than {_OLD_VALUES:,} "
                "values of JSON. Clear its outputs, or save it in a new format with Jupyter."
            )


def _check_schema(book: NotebookNode) -> None:
    """Raises `ValidationError` for the first fault; nbformat would collect all, for gigabytes."""
    version = book.nbformat, book.nbformat_minor
    get_validator(*version, name="fastjsonschema").validate(book)


def _name_cells(cells: Sequence[Any]) -> None:
    """Gives an id to each cell without a unique one; nbformat would draw one at random."""
    taken: set[Any] = set()
    for number, cell in enumerate(cells, start=1):
        name, more = cell.get("id", f"cell-{number}"), count(len(taken))
        while name in taken:
            name = f"cell-{number}-{next(more)}"
        cell["id"] = name
        taken.add(name)


def runtime_of(book: NotebookNode) -> RuntimeType:
    """Returns a notebook's language, Python by default; or raises `NotebookError`."""
    info, spec = book.metadata.get("language_info", {}), book.metadata.get("kernelspec", {})
    language = str(info.get("name") or spec.get("language") or "python")
    if language.lower() in _PYTHON:
        return RuntimeType.PYTHON
    try:
        return RuntimeType.checked(language.lower())
    except ValueError:
        why = f"The notebook is in {plain(language)}, which no sandbox here runs."
        raise NotebookError(why) from None


def code_cells(book: NotebookNode) -> list[Cell]:
    """Returns the cells to run, each with its place among all cells."""
    return [
        (place, cell)
        for place, cell in enumerate(book.cells)
        if cell.cell_type == "code"
        and cell.source.strip()
        and SKIP_TAG not in cell.metadata.get("tags", [])
    ]


def merged(outputs: Iterable[NotebookNode]) -> list[NotebookNode]:
    """Returns outputs with consecutive texts on one stream as one output, as pages show them."""
    made: list[NotebookNode] = []
    for stream, found in groupby(outputs, lambda output: output.get("name", "")):
        several = [*found]
        text = "".join(each.text for each in several) if stream else ""
        made += [NotebookNode(several[0], text=text)] if stream else several
    return made


# -- writing


def write_notebook(book: NotebookNode, output: Path, record: Mapping[str, Any]) -> int:
    """Writes an executed notebook, with a record of the run, atomically; returns its size."""
    book.metadata[METADATA] = dict(record)
    data = f"{nbformat.v4.writes(book)}\n".encode("utf-8", "replace")
    write_bytes(output, data)
    return len(data)


def write_bytes(output: Path, data: bytes) -> None:
    """Writes the bytes of an executed notebook, atomically.

    Raises `BatchStopped` if it can't be written.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with Folder.open(output.parent) as folder, folder.replacing(output.name) as file:
            file.write(data)
    except OSError as problem:
        raise BatchStopped(
            f"{output.name} can't be written ({describe(problem)}). Cells that were executed "
            "before are kept. Make room, or name another folder, and use --resume."
        ) from problem


def read_executed(output: Path) -> tuple[NotebookNode, dict[str, Any]] | None:
    """Returns the executed notebook of an earlier run and its record; None if there is none."""
    try:
        book = parse_notebook(output.read_bytes())
    except (OSError, NotebookError):
        return None
    record = book.metadata.get(METADATA)
    return (book, dict(record)) if isinstance(record, dict) else None
