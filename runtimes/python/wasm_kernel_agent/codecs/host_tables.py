"""DataFrames for functions of the host, and tables that these return.

The host takes the buffers of columns in Arrow's layout, with a description in JSON (PROTOCOL.md).
It gives streams of Arrow IPC.
"""

from __future__ import annotations

import json
from typing import Any

import pandas

from wasm_kernel_agent.codecs import frames
from wasm_kernel_agent.codecs.arrow_messages import Out
from wasm_kernel_agent.codecs.arrow_reader import IpcStream
from wasm_kernel_agent.codecs.arrow_schema import EXTENSION, ArrowError, Field, Type

_NAMES = {"date": "date32", "time": "time64[us]"}
_ADVICE = "Convert it first, for example with astype('str')."


def described(frame: pandas.DataFrame, raw: bytearray) -> dict[str, Any]:
    """Returns the description of a frame; adds its buffers to `raw`.

    Raises:
        TypeError: A column can't be sent; the text names it.
    """
    try:
        schema, arrays = frames.taken_apart(frame, None, keeps_categories=True)
    except ValueError as problem:
        raise TypeError(f"the host can't take this DataFrame: {problem}") from None
    columns = [_column(*each, raw) for each in zip(schema.fields, arrays, strict=True)]
    return {"columns": columns, "pandas": json.loads(schema.metadata["pandas"])}


def frame_of(data: bytes) -> pandas.DataFrame:
    """Returns the frame of the host's table.

    Raises:
        TypeError: A column is of a type that pandas does not have here.
    """
    try:
        stream = IpcStream(memoryview(data))
        batches = [*stream.batches()]
        layout = frames.Layout(stream.schema.metadata, keeps_categories=True)
        return layout.frame(stream.schema, batches, None, 0, nullable=False)
    except ArrowError as problem:
        raise TypeError(f"the host's table can't be read here: {problem}") from None


def _column(field: Field, out: Out, raw: bytearray) -> dict[str, Any]:
    dictionary, kind = field.dictionary, field.type
    has_parts = bool(dictionary and field.children)  # categories of intervals
    if field.metadata.get(EXTENSION) or has_parts:
        raise TypeError(
            f"the host takes no periods or intervals, as column {field.name!r} has. {_ADVICE}"
        )
    made: dict[str, Any] = {"name": field.name, "length": out.length}
    if dictionary is not None and out.dictionary is not None:
        values = Field(field.name, kind, field.children)
        made["dictionary"] = _column(values, out.dictionary, raw)
        made["ordered"] = dictionary.ordered
        kind = dictionary.index
    made |= {"type": _name(kind), "zone": kind.zone, "digits": kind.precision, "scale": kind.scale}
    made["buffers"] = [_place(each, raw) for each in out.buffers or [b""]]
    parts = zip(field.children, out.children, strict=True)
    made["children"] = [_column(*each, raw) for each in parts]
    return made


def _name(kind: Type) -> str:
    match kind.name:
        case "int" | "float":
            return f"{'' if kind.signed else 'u'}{kind.name}{kind.width}"
        case "timestamp" | "duration":
            return f"{kind.name}[{kind.unit}]"
    return _NAMES.get(kind.name, kind.name)


def _place(data: Any, raw: bytearray) -> list[int]:
    start = len(raw)
    if len(data):
        raw += memoryview(data).cast("B")
    return [start, len(raw) - start]
