"""`numpy.fromfile` and `ndarray.tofile`, whose compiled code needs a second descriptor of a file,
which WASI does not have.
"""

from __future__ import annotations

import functools
import gc
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy

from wasm_kernel_agent import numpy_types


def install() -> None:
    """Replaces both functions. Must run before others ask for `tofile`, which Python caches."""
    (methods,) = gc.get_referents(numpy.ndarray.__dict__)  # the dict of an unchangeable type
    methods["tofile"] = functools.wraps(numpy.ndarray.tofile)(_tofile)
    files: Any = numpy
    files.fromfile = functools.wraps(numpy.fromfile)(_fromfile)


@contextmanager
def _open(file: Any, mode: str) -> Iterator[Any]:
    """Yields a file that was given as a path or an object, and closes the one that it opens."""
    if isinstance(file, io.TextIOWrapper):  # elsewhere, numpy writes to its descriptor
        file.flush()
        yield file.buffer
        file.buffer.flush()
    elif hasattr(file, "read") or hasattr(file, "write"):
        yield file
    else:
        with open(os.fspath(file), mode) as held:  # noqa: PTH123 - a path may be of bytes
            yield held


def _tofile(self: Any, fid: Any, /, sep: str = "", format: str = "%s") -> None:  # noqa: A002
    with _open(fid, "wb") as file:
        if sep:
            file.write(sep.join(format % (each,) for each in self.ravel().tolist()).encode())
        elif self.dtype.hasobject:
            raise OSError("cannot write object arrays to a file in binary mode")
        else:
            file.write(numpy_types.widen_to_keep(self).tobytes())


def _fromfile(
    file: Any,
    dtype: Any = float,
    count: int = -1,
    sep: str = "",
    offset: int = 0,
    *,
    like: Any = None,
) -> Any:
    kind = numpy.dtype(dtype)
    if like is not None:
        raise NotImplementedError("numpy.fromfile has no argument like= here")
    if sep and offset:
        raise TypeError("'offset' argument only permitted for binary files")
    if kind.hasobject:
        raise ValueError("Cannot read into object array")
    with _open(file, "rb") as held:
        if sep:
            return numpy.fromstring(held.read().decode("latin-1"), kind, count, sep=sep)
        held.seek(offset, os.SEEK_CUR)
        data = held.read() if count < 0 else held.read(count * kind.itemsize)
    whole = len(data) - len(data) % (kind.itemsize or 1)
    return numpy.frombuffer(bytearray(data[:whole]), kind)
