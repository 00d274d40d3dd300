"""Standard output and error: text over descriptors 1 and 2, which the host decodes and streams."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import NoReturn


class CellStream(io.TextIOWrapper):
    """A stream that later cells need as well."""

    def detach(self) -> NoReturn:
        """Refuse, as under ipykernel.

        Raises:
            UnsupportedOperation: always.
        """
        raise io.UnsupportedOperation("detach")


def text_stream(descriptor: int) -> io.TextIOWrapper:
    """A text stream over `descriptor`; each write is passed on at once, in C."""
    return CellStream(
        io.FileIO(descriptor, "w", closefd=False),
        encoding="utf-8",
        errors="backslashreplace",
        newline="",
        write_through=True,
    )


class Streams:
    """Our `sys.stdout` and `sys.stderr`, put back for each cell where an earlier one broke them."""

    def __init__(self, make: Callable[[int], io.TextIOWrapper] = text_stream) -> None:
        self._make = make
        self._ours = {"stdout": make(1), "stderr": make(2)}

    def install(self) -> None:
        """Make ours the interpreter's own, once, at boot."""
        for name, stream in self._ours.items():
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)

    def mend(self) -> None:
        """Put ours back where `sys.stdout` or `sys.stderr` can't be written to any more.

        A stream of the user's own that works is left in place, as ipykernel leaves it.
        """
        for number, (name, ours) in enumerate(self._ours.items(), start=1):
            present = getattr(sys, name, None)
            whole = _is_whole(ours)
            if (present is ours and whole) or _works(present):
                continue
            fresh = ours if whole else self._make(number)
            self._ours[name] = fresh
            setattr(sys, name, fresh)
            setattr(sys, f"__{name}__", fresh)


def _is_whole(stream: io.TextIOWrapper) -> bool:
    """Returns whether a stream of ours is as it was made: open, with its buffer and methods."""
    try:
        return not stream.closed and not vars(stream)
    except ValueError:  # it was detached
        return False


def _works(stream: object) -> bool:
    try:
        stream.write("")  # type: ignore[attr-defined]
        stream.flush()  # type: ignore[attr-defined]
    except Exception:
        return False
    return True
