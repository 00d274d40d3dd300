"""Parquet for pandas: `read_parquet` and `DataFrame.to_parquet`, in place of pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas
from pandas.api.extensions import no_default

from wasm_kernel_agent.codecs import frames
from wasm_kernel_agent.codecs.arrow_messages import Out, stream_of
from wasm_kernel_agent.codecs.arrow_rows import taken
from wasm_kernel_agent.codecs.arrow_schema import Schema
from wasm_kernel_agent.codecs.calls import CodecError, call
from wasm_kernel_agent.codecs.parquet_file import joined
from wasm_kernel_agent.codecs.parquet_folders import parts, sources
from wasm_kernel_agent.codecs.parquet_table import ParquetTable, conditions

_CODEC = "parquet"
_COMPRESSIONS = {"none": 0, "snappy": 1, "gzip": 2, "brotli": 3, "zstd": 5, "lz4": 6, "lz4_raw": 6}
_VERSION = "2.6"  # pyarrow's name for the version that is written
_ROWS = 1024 * 1024  # the rows of a row group, as in pyarrow
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
            ParquetError: A file is damaged, or holds values that can't be read.
        """
        _check(storage_options or filesystem, to_pandas_kwargs, options.keys() - _KEPT_OPTIONS)
        if dtype_backend == "pyarrow":
            raise ImportError("dtype_backend='pyarrow' needs pyarrow; 'numpy_nullable' works")
        table = ParquetTable(sources(path), columns, conditions(filters) if filters else [])
        return table.frame(nullable=dtype_backend == "numpy_nullable")

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
        version: str = _VERSION,
        **options: Any,
    ) -> None:
        """Writes a frame to a file or a file object.

        Raises:
            ValueError: A column has values that Parquet has no type for.
        """
        if not isinstance(df, pandas.DataFrame):
            raise ValueError("to_parquet only supports IO with DataFrames")
        _check(storage_options or filesystem, None, options.keys() - _KEPT_OPTIONS)
        if version != _VERSION:
            raise ValueError(f"only version {_VERSION} of Parquet can be written")
        if row_group_size < 1:
            raise ValueError("row_group_size must be 1 or more")
        kind = _COMPRESSIONS.get(str(compression).lower())
        if kind is None:
            raise ValueError(f"compression must be one of {', '.join(_COMPRESSIONS)}, or None")
        schema, arrays = frames.taken_apart(df, index, keeps_categories=False)
        if not partition_cols:
            with _writing(path) as file:
                for piece in _file(schema, arrays, len(df), kind, row_group_size):
                    file.write(piece)
            return
        by = [partition_cols] if isinstance(partition_cols, str) else [*partition_cols]
        for part in parts(df, by, schema, arrays):
            folder = Path(path).expanduser() / part.folder
            folder.mkdir(parents=True, exist_ok=True)
            with _writing(folder / part.file) as file:
                for piece in _file(part.schema, part.arrays, part.rows, kind, row_group_size):
                    file.write(piece)


def _check(file_options: Any, to_pandas: Any, others: Any) -> None:
    if file_options:
        raise NotImplementedError(_NO_FILESYSTEM)
    unknown = ["to_pandas_kwargs"] if to_pandas else sorted(others)
    if unknown:
        raise NotImplementedError(_WITHOUT.format(", ".join(unknown)))


def _file(
    schema: Schema, arrays: Sequence[Out], rows: int, compression: int, group_rows: int
) -> Iterator[Any]:
    """Yields the pieces of a file, whose row groups are encoded in turn."""
    step = group_rows * max(1, _ROWS // group_rows)
    places = [slice(at, min(at + step, rows)) for at in range(0, rows, step)] or [slice(0, 0)]

    def files() -> Iterator[Any]:
        for place in places:
            fields = zip(arrays, schema.fields, strict=True)
            some = [taken(each, field, place) for each, field in fields]
            stream = stream_of(schema, some, place.stop - place.start)
            yield call(_CODEC, "write", stream, compression, group_rows)[0]

    try:
        yield from joined(files(), schema.metadata)
    except CodecError as problem:
        raise ValueError(f"Parquet can't be written: {problem}") from None


@contextmanager
def _writing(path: Any) -> Iterator[Any]:
    if hasattr(path, "write"):
        yield path
    else:
        place = Path(path).expanduser()
        with place.open("wb") as file:
            try:
                yield file
            except BaseException:
                place.unlink(missing_ok=True)
                raise
