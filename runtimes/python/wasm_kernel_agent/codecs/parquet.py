"""Parquet for pandas: `read_parquet` and `DataFrame.to_parquet`, in place of pyarrow."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pandas
from pandas.api.extensions import no_default

from wasm_kernel_agent.codecs import frames
from wasm_kernel_agent.codecs.arrow_reader import Array, Stream
from wasm_kernel_agent.codecs.arrow_schema import ArrowError, Schema
from wasm_kernel_agent.codecs.arrow_writer import stream_of
from wasm_kernel_agent.codecs.calls import CodecError, call
from wasm_kernel_agent.codecs.parquet_file import ParquetError, ParquetFile, with_pairs

_CODEC = "parquet"
_COMPRESSIONS = {"none": 0, "snappy": 1, "gzip": 2, "brotli": 3, "zstd": 5, "lz4": 6, "lz4_raw": 6}
_ROWS = 1024 * 1024  # of a row group, as pyarrow has it
_KEPT_OPTIONS = {"use_threads", "memory_map", "buffer_size", "pre_buffer"}
_NO_FILESYSTEM = "storage_options and filesystem can't be used: the sandbox has no network"
_WITHOUT = (
    "{} can't be used here: Parquet is read and written without pyarrow. pandas' own arguments "
    "work, and for to_parquet row_group_size"
)


class Engine:
    """The engine that pandas finds as `auto` and `pyarrow`."""

    def read(
        self,
        path: Any,
        columns: Sequence[str] | None = None,
        *,
        filters: Any = None,
        dtype_backend: Any = no_default,
        storage_options: Any = None,
        filesystem: Any = None,
        to_pandas_kwargs: Any = None,
        **options: Any,
    ) -> pandas.DataFrame:
        """Reads a file, a file object, or all files of a folder, as pandas does.

        Raises:
            ParquetError: A file is damaged, or holds what can't be read.
        """
        _check(storage_options or filesystem, to_pandas_kwargs, options.keys() - _KEPT_OPTIONS)
        if dtype_backend == "pyarrow":
            raise ImportError("dtype_backend='pyarrow' needs pyarrow; 'numpy_nullable' works")
        wanted = None if columns is None else [*columns, *_names_in(filters)]
        tables = [
            _table(each, wanted, nullable=dtype_backend == "numpy_nullable")
            for each in _opened(path)
        ]
        frame = tables[0] if len(tables) == 1 else pandas.concat(tables)
        return _filtered(frame, filters, columns) if filters else frame

    def write(
        self,
        df: pandas.DataFrame,
        path: Any,
        *,
        compression: str | None = "snappy",
        index: bool | None = None,
        storage_options: Any = None,
        partition_cols: Any = None,
        filesystem: Any = None,
        row_group_size: int = _ROWS,
        **options: Any,
    ) -> None:
        """Writes a frame to a file or a file object.

        Raises:
            ValueError: A column has values that Parquet has no type for.
        """
        self.validate_dataframe(df)
        _check(storage_options or filesystem, None, options.keys() - _KEPT_OPTIONS)
        if partition_cols:
            raise NotImplementedError(
                "partition_cols can't be used here: write each part with to_parquet"
            )
        kind = _COMPRESSIONS.get(str(compression).lower())
        if kind is None:
            raise ValueError(f"compression must be one of {', '.join(_COMPRESSIONS)}, or None")
        schema, arrays = frames.taken_apart(df, index)
        stream = stream_of(schema, arrays, len(df))
        try:
            data, _ = call(_CODEC, "write", stream, kind, row_group_size)
        except CodecError as problem:
            raise ValueError(f"Parquet can't be written: {problem}") from None
        pieces = with_pairs(data, schema.metadata)
        with _writing(path) as file:
            for piece in pieces:
                file.write(piece)

    @staticmethod
    def validate_dataframe(df: Any) -> None:
        """Raises `ValueError` if it is not a frame."""
        if not isinstance(df, pandas.DataFrame):
            raise ValueError("to_parquet only supports IO with DataFrames")


def _check(file_options: Any, to_pandas: Any, others: Any) -> None:
    if file_options:
        raise NotImplementedError(_NO_FILESYSTEM)
    unknown = ["to_pandas_kwargs"] if to_pandas else sorted(others)
    if unknown:
        raise NotImplementedError(_WITHOUT.format(", ".join(unknown)))


def _table(opened: Any, wanted: Sequence[str] | None, *, nullable: bool) -> pandas.DataFrame:
    with opened as held:
        file = ParquetFile(held)
        layout = frames.Layout(file.metadata, file.names)
        names = layout.with_index(wanted)
        schema: Schema | None = None
        parts: list[list[Array]] = []
        for part in file.parts(names):
            stream = _stream(part)
            schema = stream.schema
            parts += stream.batches()
    assert schema is not None
    return layout.frame(schema, parts, wanted, file.rows, nullable=nullable)


def _stream(part: bytes) -> Stream:
    try:
        return Stream(call(_CODEC, "read", part)[0])
    except (CodecError, ArrowError) as problem:
        raise ParquetError(f"the file can't be read: {problem}") from None


# -- files


def _opened(path: Any) -> list[Any]:
    """Returns the files behind a path, as contexts."""
    if hasattr(path, "read"):
        return [_lent(path)]
    if isinstance(path, bytes):
        return [_lent(io.BytesIO(path))]
    if isinstance(path, list | tuple):
        return [each for one in path for each in _opened(one)]
    name = os.fspath(path)
    if "://" in name:
        raise OSError(f"the sandbox has no network, so {name.partition('?')[0]} can't be read")
    place = Path(name).expanduser()
    if not place.is_dir():
        return [place.open("rb")]
    found = sorted(each for each in place.rglob("*") if each.is_file())
    found = [each for each in found if not each.name.startswith(("_", "."))]
    if any("=" in str(each.relative_to(place)) for each in found):
        raise NotImplementedError(
            "folders with values in their names (year=2024) can't be read as one table: read each "
            "with read_parquet, and join them with pandas.concat"
        )
    if not found:
        raise FileNotFoundError(f"there are no files in {name}")
    return [each.open("rb") for each in found]


@contextmanager
def _lent(file: Any) -> Iterator[Any]:
    if hasattr(file, "seek"):
        yield file
    else:
        yield io.BytesIO(file.read())


@contextmanager
def _writing(path: Any) -> Iterator[Any]:
    if hasattr(path, "write"):
        yield path
    else:
        with Path(path).expanduser().open("wb") as file:
            yield file


# -- filters

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda column, value: column == value,
    "==": lambda column, value: column == value,
    "!=": lambda column, value: (column != value) & column.notna(),
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
    "in": lambda column, value: column.isin(value),
    "not in": lambda column, value: ~column.isin(value) & column.notna(),
}


def _groups(filters: Any) -> list[list[Any]]:
    """Returns filters as alternatives, each of which is a list of conditions."""
    try:
        listed = [*filters]
        groups = [listed] if isinstance(listed[0][0], str) else [[*each] for each in listed]
        if all(operator in _COMPARISONS for group in groups for _, operator, _ in group):
            return groups
    except (TypeError, ValueError, IndexError):
        pass
    raise ValueError(
        f"filters must be tuples such as ('column', '>', 1), with one of {', '.join(_COMPARISONS)}"
    )


def _filtered(frame: pandas.DataFrame, filters: Any, columns: Any) -> pandas.DataFrame:
    """Returns the rows that fulfil the filters, and the wanted columns of them."""
    rows, is_counted = _rows(frame, filters), isinstance(frame.index, pandas.RangeIndex)
    if columns is not None:
        frame = frame[[each for each in frame.columns if each in set(columns)]]
    frame = frame[rows]
    return frame.reset_index(drop=True) if is_counted else frame


def _names_in(filters: Any) -> list[str]:
    if not filters:
        return []
    return [name for group in _groups(filters) for name, _, _ in group]


def _rows(frame: pandas.DataFrame, filters: Any) -> Any:
    """Returns which rows of a frame fulfil the filters."""
    chosen = numpy.zeros(len(frame), bool)
    for group in _groups(filters):
        these = numpy.ones(len(frame), bool)
        for name, operator, value in group:
            if name in frame.columns:
                column = frame[name]
            else:
                column = frame.index.get_level_values(name).to_series(index=frame.index)
            met = _COMPARISONS[operator](column, value)
            these &= met.fillna(False).to_numpy(bool)
        chosen |= these
    return chosen
