"""What a front end may be shown: outputs in, outputs out, and a sentence about what was left out.

Everything a cell sends to the notebook passes through here once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from wasm_kernel.guests.protocol import Display, Error, Output, Result
from wasm_kernel.outputs import bundle, terminal
from wasm_kernel.outputs.bundle import Mode

Bundle = Mapping[str, Any]
ShouldStop = Callable[[], bool]

_REASON = {
    Mode.SAFE: "An output can't run code, load anything or reach out of its place in the page.",
    Mode.STATIC: "Only text and raster images are shown here (outputs = 'static').",
    Mode.TRUSTED: "",
}
_ADVICE = {
    Mode.SAFE: "c.WasmKernel.outputs = 'trusted' shows outputs as they are, with all that they do.",
    Mode.STATIC: "c.WasmKernel.outputs = 'safe' shows more.",
    Mode.TRUSTED: "",
}


def clean_bundle(
    data: Bundle, mode: Mode, should_stop: ShouldStop = bundle.never_stop
) -> dict[str, Any]:
    """A MIME bundle with each content made fit to be shown; what it loses is not told."""
    return bundle.clean(data, {}, mode, should_stop).data


def clean_metadata(metadata: Bundle, data: Bundle, mode: Mode) -> dict[str, Any]:
    """What front ends are told of the contents of `data`."""
    return bundle.metadata_of(metadata, data, mode)


def clean_error(error: Error) -> Error:
    """An error whose name, text and traceback hold colours and no other terminal control."""
    return Error(
        terminal.clean(error.ename),
        terminal.clean(error.evalue),
        tuple(terminal.clean(line) for line in error.traceback),
    )


def clean_output(
    output: Output, mode: Mode, should_stop: ShouldStop = bundle.never_stop
) -> tuple[Output, tuple[str, ...]]:
    """`output` as it may be shown, and phrases for what was taken out of it.

    Streams pass: they come in pieces, which `terminal.StreamCleaner` puts together. What is not
    checked when `should_stop` says that nobody waits any more is left out.
    """
    if isinstance(output, Error):
        return clean_error(output), ()
    if not isinstance(output, Display | Result):
        return output, ()
    shown = bundle.clean(output.data, output.metadata, mode, should_stop)
    clean = replace(output, data=shown.data, metadata=shown.metadata)
    if isinstance(clean, Display) and mode is not Mode.TRUSTED:
        clean = replace(clean, transient=bundle.transient(clean.transient))
    return clean, shown.removed


def notice(removed: Iterable[str], mode: Mode, *, first: bool = True) -> str:
    """The line that says what was left out of an output; the first one of a cell says why."""
    listed = ", ".join(terminal.clean(phrase) for phrase in removed)
    why = f" {_REASON[mode]} {_ADVICE[mode]}" if first else ""
    return f"[wasm-kernel] Left out of this output: {listed}.{why}\n"
