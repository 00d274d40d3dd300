"""The recipe of the JavaScript guest: two modules of the wheel of `quickjs-rs`, pinned and checked.

One is the interpreter, QuickJS-NG; it is changed in one place, and gets one function more. The
other takes types out of TypeScript, and is not changed.

`python -m guest.javascript FOLDER` makes the guest by hand, if `quickjs-rs` is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from guest.assembler import unsigned
from guest.pinned import (
    GuestFilesError,
    check,
    check_patched,
    make_by_hand,
    pinned_version,
    upstream,
    write_sums,
)

UPSTREAM = "quickjs-rs"
INTERPRETER, STRIPPER = "quickjs.wasm", "typescript.wasm"
NOTICE = "javascript-notice.txt"
_FROM = {INTERPRETER: "_guest.wasm", STRIPPER: "_transform.wasm"}

# The options of an evaluation, as four booleans: global, strict, no barrier, with `await`. With the
# change cells are not strict, as in the consoles of browsers.
_STRICT, _SLOPPY = bytes.fromhex("4181828008"), bytes.fromhex("4181808008")

# The function that the interpreter calls for each promise that is rejected without a handler, and
# for each that gets a handler later (`JSHostPromiseRejectionTracker` in quickjs.h). It calls the
# host: `host_call(0, 0, is_handled, promise, 0)`. The base image has its number in the table.
_TRACKER = bytes.fromhex("00 4100 4100 2003 2001a7 4100 1003 1a 0b")
_TRACKER_TYPE, _TRACKER_INDEX = 37, 1997  # the last, so that no other index changes
_TABLE_SIZE = 609
_FUNCTIONS, _TABLE, _ELEMENTS, _CODE = 3, 4, 9, 10  # sections
_ELEMENTS_AT = 5  # bytes before their list: one segment, which begins at 1
_HEADER_BYTES = 8


@dataclass(frozen=True)
class Pins:
    """The pinned version and digests of the guest's sources and result.

    Attributes:
        version: Upstream's version.
        sha256: The sums of upstream's two modules and of its licence, by their names there.
        patched: The sum of the patched interpreter.
    """

    version: str
    sha256: Mapping[str, str]
    patched: str

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Pins:
        """Reads the pins from the build hook's table in `pyproject.toml`."""
        own = config["javascript"]
        return cls(pinned_version(config, UPSTREAM), own["sha256"], own["patched"])


def make(pins: Pins, folder: Path) -> list[str]:
    """Makes the guest's files in a folder; returns their names.

    Raises:
        GuestFilesError: upstream's files are not there, or a file differs from its pin.
    """
    found = upstream(UPSTREAM, pins.version)
    files = {name: _checked(found, source, pins) for name, source in _FROM.items()}
    files[INTERPRETER] = patched(files[INTERPRETER], pins.patched)
    files["LICENSE"] = _checked(found, "LICENSE", pins)
    files["NOTICE"] = Path(__file__).with_name(NOTICE).read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return write_sums(folder)


def patched(module: bytes, digest: str) -> bytes:
    """Returns the interpreter with its patch, whose sum must be `digest`.

    Raises:
        GuestFilesError: the place to change is not there, or the result has another sum.
    """
    if module.count(_STRICT) != 1:
        raise GuestFilesError("the interpreter of quickjs-rs can't be patched. Nothing was built.")
    changed = _with_tracker(module.replace(_STRICT, _SLOPPY))
    check_patched(changed, digest, INTERPRETER)
    return changed


def _with_tracker(module: bytes) -> bytes:
    """Returns the interpreter with one function more, at the end of its table."""
    parts, at = [module[:_HEADER_BYTES]], _HEADER_BYTES
    while at < len(module):
        kind = module[at]
        size, start = _number(module, at + 1)
        content, at = module[start : start + size], start + size
        if kind == _FUNCTIONS:
            content = _longer(content, unsigned(_TRACKER_TYPE))
        elif kind == _TABLE:
            content = content.replace(unsigned(_TABLE_SIZE), unsigned(_TABLE_SIZE + 1))
        elif kind == _ELEMENTS:
            head, items = content[:_ELEMENTS_AT], content[_ELEMENTS_AT:]
            content = head + _longer(items, unsigned(_TRACKER_INDEX))
        elif kind == _CODE:
            content = _longer(content, unsigned(len(_TRACKER)) + _TRACKER)
        parts += [bytes([kind]), unsigned(len(content)), content]
    return b"".join(parts)


def _longer(items: bytes, item: bytes) -> bytes:
    """Returns a list of WebAssembly with one item more."""
    count, start = _number(items, 0)
    return unsigned(count + 1) + items[start:] + item


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Returns a number in LEB128, and the position behind it."""
    number = shift = 0
    while data[at] >= 0x80:
        number, shift, at = number | (data[at] & 0x7F) << shift, shift + 7, at + 1
    return number | data[at] << shift, at + 1


def _checked(found: Distribution, name: str, pins: Pins) -> bytes:
    place = f"quickjs_rs-{found.version}.dist-info/licenses" if name == "LICENSE" else "quickjs_rs"
    path = Path(str(found.locate_file(f"{place}/{name}")))
    check(path, pins.sha256[name], UPSTREAM)
    return path.read_bytes()


if __name__ == "__main__":
    make_by_hand(lambda config, folder: make(Pins.of(config), folder))
