"""Terminal control in text: colours stay, everything that could act on a terminal goes.

Jupyter's front ends show SGR colours (`ESC [ ... m`). Other sequences move the cursor, set titles
or write to the clipboard (OSC 52) of the terminal that shows the text, so they are cut out, with
all control characters but tab, newline, carriage return and backspace.
"""

from __future__ import annotations

import re

from wasm_kernel.outputs.limits import check_stopped

HELD_CHARACTERS = 4096
PIECE = 256 * 1024

# A string sequence (OSC, DCS, SOS, PM, APC) ends at BEL or ST. Its content excludes every character
# that can start a sequence, so that no input makes the search quadratic.
_STRING = r"(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]*"
_CSI = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*"

_SEQUENCE = re.compile(
    rf"(?P<colour>\x1b\[[0-9;:]*m)"
    rf"|{_CSI}[@-~]"
    rf"|{_STRING}(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"
    r"|[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]++|[\x1b\x80-\x9f]"
)
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_UNFINISHED = re.compile(rf"(?:{_CSI}|{_STRING}\x1b?|\x1b[ -/]*)\Z")


def clean(text: str) -> str:
    """Returns `text` with its colours, and without any other terminal control."""
    if not _CONTROL.search(text):  # most texts; this looks at each character once
        return text
    stream = StreamCleaner()
    pieces = [stream.feed(text[at : at + PIECE]) for at in range(0, len(text), PIECE)]
    return "".join([*pieces, stream.finish()])


def printable(text: str) -> str:
    """Returns `text` on one line, with unprintable characters escaped: for logs and tables."""
    return text if text.isprintable() else repr(text)[1:-1]


def _cleaned(text: str) -> str:
    check_stopped()
    return _SEQUENCE.sub(lambda match: match["colour"] or "", text)


class StreamCleaner:
    """Cleans one stream whose text arrives in pieces. One thread uses it.

    A sequence may be cut between two pieces, so an unfinished one is held back, up to
    `HELD_CHARACTERS`.
    """

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """Takes the next piece; returns the text that can be shown by now."""
        text = self._held + text
        unfinished = _UNFINISHED.search(text, max(0, len(text) - HELD_CHARACTERS))
        cut = unfinished.start() if unfinished else len(text)
        self._held = text[cut:]
        return _cleaned(text[:cut])

    def finish(self) -> str:
        """Ends the stream; returns the text that was held back."""
        held, self._held = self._held, ""
        return _cleaned(held)
