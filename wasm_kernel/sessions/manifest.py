"""What an archive of a session says of itself, in its first member."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from wasm_kernel.errors import ImageError, TravelError
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.handles import HANDLES_MOST, Handles
from wasm_kernel.sessions.tarball import ArchiveError
from wasm_kernel.state.image import ImageRecord
from wasm_kernel.state.travel import checked_name

NAME = "manifest.json"
KIND, VERSION = "wasm-kernel session", 2
_FIRST = 1
MOST_BYTES = 2 * 1024 * 1024  # some thirty times as much of this process's memory
STATES = "states.jsonl"
"""The member of the memory with the record of each state, one a line."""

STATES_MOST_BYTES = 16 * 1024 * 1024  # it takes some ten times as much of this process's memory
STATES_MOST = 50_000


_FIRST_FORMAT = (
    "The variables were not imported: an earlier version of the sandbox has saved them, in a "
    "format that this one does not read. The files are all there."
)


@dataclass(frozen=True)
class Memory:
    """The history of a guest's memory in an archive.

    Attributes:
        artifact: Names the guest, the agent and all else that memory depends on.
        image: Names the very base image that the states were saved over.
        facts: The description of that image.
        states: The numbers of the states, ascending.
        at: The state that memory stands at.
        after: The newest state when it was left there.
        names: States by name.
        undone: States that were left by going back, the latest last.
        handles: Where files lie that states had open (`handles.py`).
    """

    artifact: str
    image: str
    facts: str
    states: tuple[int, ...]
    at: int
    after: int
    names: Mapping[str, int] = field(default_factory=dict)
    undone: tuple[int, ...] = ()
    handles: Handles = field(default_factory=dict)

    def known(self) -> ImageRecord | None:
        """What is known of the image; None where that is nothing."""
        try:
            return ImageRecord.load(self.facts)
        except ImageError:
            return None


@dataclass(frozen=True)
class Manifest:
    """The manifest of an archive.

    Attributes:
        session_id: The session that it was made of.
        memory: Its history, where the archive has one.
        why_not: Why there is none, as a sentence.
        skips_memory: Whether the archive has one in a format that is not read any more.
    """

    session_id: str
    memory: Memory | None
    why_not: str = ""
    skips_memory: bool = False

    def dump(self) -> bytes:
        """As JSON."""
        fields = {"kind": KIND, "version": VERSION, **asdict(self)}
        del fields["skips_memory"]
        return json.dumps(fields, indent=1).encode()

    @classmethod
    def load(cls, data: bytes) -> Manifest:
        """The manifest that a member holds.

        Raises:
            ArchiveError: it holds none, or one of a later version.
        """
        try:
            raw = json.loads(data)
        except (ValueError, RecursionError):
            raise ArchiveError("This is no archive of a session: it says nothing.") from None
        if not isinstance(raw, dict) or raw.get("kind") != KIND:
            raise ArchiveError("This is no archive of a session.")
        version = raw.get("version")
        if version not in (_FIRST, VERSION):
            raise ArchiveError(
                f"The archive is of format version {raw.get('version')!r:.20}, and this is version "
                f"{VERSION}. Import it with the wasm-kernel that made it, or a later one."
            )
        session_id = ids.checked(_text(raw, "session_id"))
        memory = raw.get("memory")
        if version == _FIRST and memory is not None:
            return cls(session_id, None, _FIRST_FORMAT, skips_memory=True)
        return cls(session_id, None if memory is None else _memory(memory), "")


def _memory(raw: Any) -> Memory:
    if not isinstance(raw, dict):
        raise ArchiveError("The archive's manifest says nothing of its memory.")
    states, undone = _numbers(raw, "states"), _numbers(raw, "undone")
    if not states or sorted(set(states)) != list(states):
        raise ArchiveError("The archive's manifest names no proper states.")
    names, known = raw.get("names"), set(states)
    if not isinstance(names, dict) or not known.issuperset(names.values()):
        raise ArchiveError("The archive's manifest names checkpoints that are not there.")
    try:
        named = {checked_name(name): int(one) for name, one in names.items()}
    except TravelError as problem:
        raise ArchiveError(str(problem)) from None
    at, after = _number(raw, "at"), _number(raw, "after")
    if at not in known or not known.issuperset(undone):
        raise ArchiveError("The archive's manifest stands at a state that is not there.")
    artifact, image, facts = (_text(raw, name) for name in ("artifact", "image", "facts"))
    return Memory(artifact, image, facts, states, at, after, named, undone, _handles(raw))


def _handles(raw: Mapping[str, Any]) -> Handles:
    """Where open files lie; an archive that does not say so has none."""
    given = raw.get("handles", {})
    if not isinstance(given, dict) or len(given) > HANDLES_MOST:
        raise ArchiveError("The archive's manifest names no proper open files.")
    for where in given.values():
        if not (isinstance(where, list) and list(map(type, where)) == [str, str]):
            raise ArchiveError("The archive's manifest names no proper open files.")
    return {written: (guest, path) for written, (guest, path) in given.items()}


def _text(raw: Mapping[str, Any], name: str) -> str:
    value = raw.get(name)
    if not isinstance(value, str):
        raise ArchiveError(f"The archive's manifest has no {name}.")
    return value


def _number(raw: Mapping[str, Any], name: str) -> int:
    value = raw.get(name)
    if type(value) is not int or not 0 < value < 1 << 31:
        raise ArchiveError(f"The archive's manifest has no proper {name}.")
    return value


def _numbers(raw: Mapping[str, Any], name: str) -> tuple[int, ...]:
    values = raw.get(name)
    if not isinstance(values, list) or len(values) > STATES_MOST:
        raise ArchiveError(f"The archive's manifest has no proper {name}.")
    if any(type(value) is not int or not 0 < value < 1 << 31 for value in values):
        raise ArchiveError(f"The archive's manifest has no proper {name}.")
    return tuple(values)
