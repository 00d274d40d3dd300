"""Folders of Parquet files, whose names may hold values of columns: `year=2024/part.parquet`.

Source: https://arrow.apache.org/docs/python/dataset.html#reading-partitioned-data.
"""

from __future__ import annotations

import io
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy
import pandas

from wasm_kernel_agent.codecs.arrow_messages import Out
from wasm_kernel_agent.codecs.arrow_rows import taken
from wasm_kernel_agent.codecs.arrow_schema import Schema

_MISSING = "__HIVE_DEFAULT_PARTITION__"  # stands for a missing value
_IGNORED = ("_", ".")
_NUMBER = re.compile(r"-?[0-9]{1,10}", re.ASCII)
_INT32_LEAST, _INT32_MOST = -(2**31), 2**31 - 1
_FRACTIONS = {"s": 0, "ms": 3, "us": 6, "ns": 9}

Opened = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class TableFile:
    """A file of a table.

    Attributes:
        opened: Opens it.
        name: Its name in a folder, for errors; empty for a single file.
        values: The values that the names of its folders hold, by their columns' names.
    """

    opened: Opened
    name: str = ""
    values: Mapping[str, str | None] = field(default_factory=dict)


def sources(path: Any) -> list[TableFile]:
    """Returns the files behind a path, a file object, bytes, or a list of paths.

    Raises:
        OSError: There is no file.
    """
    if hasattr(path, "read"):
        return [TableFile(partial(_lent, path))]
    if isinstance(path, bytes):
        return [TableFile(partial(_lent, io.BytesIO(path)))]
    if isinstance(path, list | tuple):
        return [each for one in path for each in _listed(one)]
    place = _place(path)
    return _in_folder(place) if place.is_dir() else [TableFile(partial(place.open, "rb"))]


def _listed(path: Any) -> list[TableFile]:
    """Returns the files of one path of a list, whose own folders' names count, too."""
    if hasattr(path, "read") or (place := _place(path)).is_dir():
        return sources(path)
    return [TableFile(partial(place.open, "rb"), str(place), _values(place))]


def _place(path: Any) -> Path:
    name = os.fspath(path)
    if "://" in name:
        raise OSError(f"the sandbox has no network, so {name.partition('?')[0]} can't be read")
    return Path(name).expanduser()


def _in_folder(place: Path) -> list[TableFile]:
    found = []
    for each in place.rglob("*"):
        inner = each.relative_to(place)
        if each.is_file() and not any(part.startswith(_IGNORED) for part in inner.parts):
            found.append(TableFile(partial(each.open, "rb"), inner.as_posix(), _values(inner)))
    if not found:
        raise FileNotFoundError(f"there are no files in {place}")
    return sorted(found, key=lambda source: source.name)


def _values(path: Path) -> dict[str, str | None]:
    pairs = [part.split("=", 1) for part in path.parts[:-1] if "=" in part]
    return {unquote(name): None if value == _MISSING else unquote(value) for name, value in pairs}


@contextmanager
def _lent(file: Any) -> Iterator[Any]:
    if hasattr(file, "seek"):
        yield file
    else:
        yield io.BytesIO(file.read())


class Partitions:
    """The columns whose values the names of folders hold: categories of integers or of texts."""

    def __init__(self, files: Sequence[TableFile]) -> None:
        self._files = files
        self.names = [*dict.fromkeys(name for each in files for name in each.values)]
        self._kinds = {name: self._kind(name) for name in self.names}

    def _kind(self, name: str) -> pandas.CategoricalDtype:
        texts = [each.values.get(name) for each in self._files]
        known = [*dict.fromkeys(each for each in texts if each is not None)]
        if known and all(_NUMBER.fullmatch(each) for each in known):
            numbers = [*dict.fromkeys(map(int, known))]
            if all(_INT32_LEAST <= each <= _INT32_MOST for each in numbers):
                return pandas.CategoricalDtype(pandas.Index(numbers, dtype="int32"))
        return pandas.CategoricalDtype(pandas.Index(known, dtype="str"))

    def column(self, name: str, files: Sequence[TableFile], rows: Sequence[int]) -> Any:
        """Returns a column for files with these numbers of rows."""
        kind = self._kinds[name]
        is_number = kind.categories.dtype.kind == "i"
        codes = []
        for each in files:
            value: Any = each.values.get(name)
            value = int(value) if is_number and value is not None else value
            codes.append(-1 if value is None else kind.categories.get_loc(value))
        return pandas.Categorical.from_codes(numpy.repeat(codes, rows), dtype=kind)

    def of(self, file: TableFile) -> pandas.DataFrame:
        """Returns the values of one file, as a frame with one row."""
        return pandas.DataFrame({name: self.column(name, [file], [1]) for name in self.names})


# -- writing


@dataclass(frozen=True)
class Part:
    """A part of a table: its folder, its columns, the number of its rows, and its file's name."""

    folder: Path
    schema: Schema
    arrays: Sequence[Out]
    rows: int
    file: str


def parts(
    frame: pandas.DataFrame, by: Sequence[str], schema: Schema, arrays: Sequence[Out]
) -> Iterator[Part]:
    """Yields the parts of a frame's table, whose folders hold the values of the columns `by`.

    Raises:
        KeyError: The frame has no such column.
        ValueError: No column is left for the files.
    """
    for name in by:
        if name not in frame.columns:
            raise KeyError(f"partition_cols: there is no column {name!r}")
    kept = [n for n, each in enumerate(schema.fields) if each.name not in by]
    if not kept:
        raise ValueError("partition_cols: no column is left for the files")
    shorter = replace(schema, fields=tuple(schema.fields[n] for n in kept))
    name = uuid.uuid4().hex  # a new name: files of other tables stay
    for folder, rows in _groups(frame, by):
        some = [taken(arrays[n], schema.fields[n], rows) for n in kept]
        yield Part(folder, shorter, some, len(rows), f"{name}-0.parquet")


def _groups(frame: pandas.DataFrame, by: Sequence[str]) -> Iterator[tuple[Path, Any]]:
    """Yields the folder of each group of rows, and the rows' places."""
    groups, names = numpy.zeros(len(frame), numpy.int64), []
    for name in by:
        codes, values = pandas.factorize(frame[name])
        texts = [*map(_text, values), _MISSING]  # the code of a missing value is -1
        names.append((codes, [f"{quote(name, '')}={quote(each, '')}" for each in texts]))
        groups = pandas.factorize(groups * len(texts) + codes + 1)[0]
    order = numpy.argsort(groups, kind="stable")
    for rows in numpy.split(order, numpy.flatnonzero(numpy.diff(groups[order])) + 1):
        if len(rows):
            yield Path(*(segments[codes[rows[0]]] for codes, segments in names)), rows


def _text(value: Any) -> str:
    if isinstance(value, bool | numpy.bool_):
        return str(value).lower()
    if isinstance(value, float | numpy.floating):
        return str(value).removesuffix(".0")
    if isinstance(value, pandas.Timestamp):
        whole, digits = value.tz_convert(None) if value.tz else value, _FRACTIONS[value.unit]
        fraction = f"{whole.nanosecond + whole.microsecond * 1000:09}"[:digits]
        zone = "Z" if value.tz else ""
        return f"{whole:%Y-%m-%d %H:%M:%S}{'.' if digits else ''}{fraction}{zone}"
    return str(value)
