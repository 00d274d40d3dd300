"""Reading a cell's own text for the magics that travel, where it holds nothing else. Pure.

Such a cell is no cell that an undo would count. And where IPython in the guest is so broken that it
can't run the magic, the sandbox can do what the text says.
"""

from __future__ import annotations

import re

from wasm_kernel.sandbox.frames import Travel

_MAGIC = re.compile(r"%(undo|redo|restore|checkpoints?|history_tree)(?:[ \t]+(\S.*))?")
_FILES = re.compile(r"(?:^|\s)--files(?!\S)")
_NUMBER = re.compile(r"[0-9]{1,9}")
_TOLD = {"undo": "Undone", "redo": "Done again", "restore": "Restored"}


def _magics(code: str) -> list[tuple[str, str]] | None:
    """The magics of a cell that has nothing but these, with their arguments; else None."""
    lines = [line.strip() for line in code.splitlines()]
    found = [_MAGIC.fullmatch(line) for line in lines if line and not line.startswith("#")]
    if not found or not all(found):
        return None
    return [(match[1], (match[2] or "").strip()) for match in found if match]


def only_travels(code: str) -> bool:
    """Whether a cell does nothing but travel, name states, or list them."""
    return _magics(code) is not None


def journeys(code: str) -> list[Travel]:
    """The journeys that a cell asks for, if it does nothing else; empty where it does."""
    found = [_journey(how, words) for how, words in _magics(code) or ()]
    return [wish for wish in found if wish] if all(found) else []


def _journey(how: str, line: str) -> Travel | None:
    words, count = _FILES.subn("", line)
    words, files = words.strip(), count > 0
    if how == "undo" and (not words or _NUMBER.fullmatch(words)):
        return Travel(how, cells=int(words or 1), files=files)
    if how == "redo" and not words:
        return Travel(how, files=files)
    named = how == "restore" and (words or files)
    return Travel(how, name=words, files=files) if named else None


def told(wish: Travel, cells: list[str]) -> str:
    """What the guest's own magic would print."""
    what = "; ".join(cells) or wish.name or "nothing that changed a variable"
    return f"{_TOLD[wish.how]}: {what}\n"
