"""The way to the host: frames, standard output and error, and commands that the host runs.

The encoder and the decoder are bound here once, so that a cell which overwrites `json.dumps` or the
`json` module does not cut the agent off from the host.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from IPython.core.error import UsageError

FRAME_BYTES = 64 * 1024 * 1024
"""The most that one frame may hold, in bytes (PROTOCOL.md)."""

Call = Callable[[bytes], bytes]

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


class FrameTooLarge(ValueError):
    """A frame is longer than the protocol allows; `size` is its length in bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"{size / 2**20:.1f} MiB are too large to send (the limit is {FRAME_BYTES >> 20} MiB)"
        )
        self.size = size


class FrameChannel:
    """Sends frames through `call` (bytes to bytes), one at a time, and reads the answers."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def send(self, frame: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the host's answer to `frame`: an object, empty if there is nothing to say.

        The bytes `raw` of a frame and of an answer are behind their JSON.

        Raises:
            FrameTooLarge: The frame is longer than the protocol allows. Nothing was sent.
            TypeError, ValueError, RecursionError: JSON can't hold it. Nothing was sent.
        """
        raw = frame.get("raw", b"")
        if "raw" in frame:
            frame = {name: value for name, value in frame.items() if name != "raw"}
        data = _encode(frame).encode("utf-8", "replace")
        if raw:
            data = b"\0".join((data, raw))
        if len(data) > FRAME_BYTES:
            raise FrameTooLarge(len(data))
        return self.call(data)

    def call(self, data: bytes) -> dict[str, Any]:
        """Returns the host's answer to the bytes of a frame."""
        text, _, raw = self._call(data).partition(b"\0")
        answer: dict[str, Any] = _decode(text.decode("utf-8")) if text else {}
        if raw:
            answer["raw"] = raw
        return answer


def guest_channel() -> FrameChannel:
    """Returns the channel of the guest that this code runs in.

    Raises:
        ImportError: This interpreter is not a guest.
    """
    import _host

    return FrameChannel(_host.call)


class OutputStream(io.TextIOWrapper):
    """A standard stream of the interpreter, which can't be detached: later cells need it."""

    def detach(self) -> NoReturn:
        """Refuses, as under ipykernel.

        Raises:
            UnsupportedOperation: Always.
        """
        raise io.UnsupportedOperation("detach")


def text_stream(descriptor: int) -> io.TextIOWrapper:
    """Returns a text stream over `descriptor`. Each write is passed on at once, in C."""
    raw: Any = io.FileIO(descriptor, "w", closefd=False)
    raw.name = {1: "stdout", 2: "stderr"}[descriptor]  # as ipykernel's: logging shows it
    return OutputStream(
        raw,
        encoding="utf-8",
        errors="backslashreplace",
        newline="",
        write_through=True,
    )


class StandardStreams:
    """Our `sys.stdout` and `sys.stderr`: descriptors 1 and 2, which the host decodes."""

    def __init__(self, make: Callable[[int], io.TextIOWrapper] = text_stream) -> None:
        self._make = make
        self._ours = {"stdout": make(1), "stderr": make(2)}

    def install(self) -> None:
        """Makes ours the interpreter's own, once, at boot."""
        for name, stream in self._ours.items():
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)

    def repair(self) -> None:
        """Puts ours back if `sys.stdout` or `sys.stderr` can't be written to any more.

        A stream of the user's own that works is left in place, as ipykernel leaves it.
        """
        for number, (name, ours) in enumerate(self._ours.items(), start=1):
            present = getattr(sys, name, None)
            intact = _is_intact(ours)
            if (present is ours and intact) or _works(present):
                continue
            fresh = ours if intact else self._make(number)
            self._ours[name] = fresh
            setattr(sys, name, fresh)
            setattr(sys, f"__{name}__", fresh)


def _is_intact(stream: io.TextIOWrapper) -> bool:
    """Returns whether a stream of ours is as it was made: open, with its buffer and methods."""
    try:
        return not stream.closed and not vars(stream)
    except ValueError:  # a cell detached its buffer
        return False


def _works(stream: object) -> bool:
    try:
        stream.write("")  # type: ignore[attr-defined]
        stream.flush()  # type: ignore[attr-defined]
    except Exception:
        return False
    return True


def flush() -> None:
    """Writes out standard output and error, so that output stays in order."""
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except Exception:  # a cell may put anything there; it is repaired after the cell
            continue


def note(text: str) -> None:
    """Prints a sentence from the sandbox on standard error."""
    try:
        print(f"[wasm-kernel] {text}", file=sys.stderr)
    except Exception:  # as above: there is nothing to say it with
        return


def run_host_command(
    shell: Any, name: str, line: str, files: Mapping[str, str] | None = None
) -> Any:
    """Asks the host to run the command behind a magic; returns its result, a JSON value.

    The host runs a command that reaches beyond the session only if the magic stands in the cell's
    own text. It compares the words with the text that it sent, so such a magic must see them
    unexpanded: declare it with `no_var_expand`.

    Args:
        shell: The shell whose cell runs.
        name: The magic's name.
        line: Its words.
        files: The texts of files that the words name, by name.

    Raises:
        UsageError: The host refused; the text says why.
        KeyboardInterrupt: The cell was interrupted while the host ran the command.
    """
    __tracebackhide__ = True
    frame: dict[str, Any] = {"op": "command", "name": name, "line": line}
    if files:
        frame["files"] = list(files.items())
    flush()
    answer = shell.agent.channel.send(frame)
    if answer.get("interrupted"):
        raise KeyboardInterrupt
    if "refused" in answer:
        raise UsageError(answer["refused"])
    return answer.get("value")
