"""Some rows of arrays, for writing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy

from wasm_kernel_agent.codecs.arrow_messages import Out
from wasm_kernel_agent.codecs.arrow_reader import numpy_type
from wasm_kernel_agent.codecs.arrow_schema import Field


def taken(array: Out, field: Field, rows: Any) -> Out:
    """Returns the rows of an array that have these places, in their order.

    Consecutive places, given as a slice, take one copy or none.
    """
    kind = field.type
    count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
    if kind.name == "null":
        return Out(count, count, [])
    valid, *buffers = array.buffers
    nulls = 0
    if len(valid):
        valid, nulls = _some_bits(valid, rows)
    made = replace(array, length=count, nulls=nulls, buffers=[valid])
    if field.dictionary is not None:
        made.buffers.append(buffers[0][rows])
    elif kind.name == "struct":
        pairs = zip(array.children, field.children, strict=True)
        made.children = tuple(taken(child, each, rows) for child, each in pairs)
    elif kind.name == "bool":
        made.buffers.append(_some_bits(buffers[0], rows)[0])
    elif kind.name in ("utf8", "binary", "list"):
        offsets, items = _items(buffers[0], rows)
        made.buffers.append(offsets)
        if kind.name == "list":
            made.children = (taken(array.children[0], field.children[0], items),)
        else:
            made.buffers.append(numpy.frombuffer(buffers[1], numpy.uint8)[items])
    else:
        made.buffers.append(numpy.frombuffer(buffers[0], numpy_type(kind))[rows])
    return made


def _some_bits(bits: Any, rows: Any) -> tuple[Any, int]:
    """Returns bits at some places, and how many of them are 0."""
    chosen = numpy.unpackbits(bits, bitorder="little")[rows]
    return numpy.packbits(chosen, bitorder="little"), int(len(chosen) - chosen.sum())


def _items(offsets: Any, rows: Any) -> tuple[Any, Any]:
    """Returns the offsets of some lists, and the places of their items."""
    if isinstance(rows, slice):
        some = offsets[rows.start : rows.stop + 1]
        return some - some[0], slice(int(some[0]), int(some[-1]))
    starts = offsets[rows].astype(numpy.int64)
    lengths = offsets[rows + 1] - starts
    ends = numpy.zeros(len(rows) + 1, numpy.int64)
    numpy.cumsum(lengths, out=ends[1:])
    places = numpy.arange(ends[-1]) + numpy.repeat(starts - ends[:-1], lengths)
    return ends.astype("<i4"), places
