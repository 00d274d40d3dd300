"""The variables that differ between two states of a session.

A second guest is asked in the memory of each, and ends with the answers: the session's guest is not
asked, and no code of a cell runs.
"""

# No `from __future__ import annotations`: msgspec would compile each annotation at every start.

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from wasm_kernel.errors import GuestStopped, HistoryError, TravelError
from wasm_kernel.execution.runner import GuestRunner
from wasm_kernel.result import VariableChange, VariableChanges, VariableValue

SECONDS = 2.0  # for one state
_REQUEST = {"op": "variables"}
_MOST = 300
_UNKNOWN = "The variables of this state can't be listed: {why}"
_NO_ANSWER = "sandboxes of this language don't list variables"

_Short = Annotated[str, Meta(max_length=300)]


class Variable(Struct, frozen=True):
    """A variable as its memory describes it.

    The `traces` are numbers made from its content, step by step; they are `whole` if they cover all
    of it.
    """

    name: _Short
    type: _Short
    text: _Short
    size: Annotated[int, Meta(ge=0, lt=2**53)]
    traces: Annotated[list[int], Meta(max_length=10)]
    whole: bool

    def differs(self, other: "Variable") -> bool:
        """Returns whether another value differs in the parts of both that were looked at."""
        if (self.type, self.text) != (other.type, other.text):
            return True
        if self.whole and other.whole:
            return self.traces != other.traces
        return any(one != two for one, two in zip(self.traces, other.traces, strict=False))


class _Answer(Struct, frozen=True):
    variables: Annotated[list[Variable], Meta(max_length=_MOST)]
    more: bool


def changes_between(runner: GuestRunner, since: int, state: int) -> VariableChanges:
    """Returns the variables in which `state` differs from `since`; 0 is a state without variables.

    Call it on the guest's thread, between cells. Raises `TravelError` with the reason if a state's
    variables can't be read.
    """
    runner.keep()
    *earlier, after = _answers_of(runner, [since, state] if since else [state])
    before = earlier[0] if earlier else _Answer([], more=False)
    old, new = ({each.name: each for each in one.variables} for one in (before, after))
    changed = [
        VariableChange(name, _value(old.get(name)), _value(new.get(name)))
        for name in [*new, *(name for name in old if name not in new and not after.more)]
        if _differs(old.get(name), new.get(name))
    ]
    return VariableChanges(changed, before.more or after.more)


def _answers_of(runner: GuestRunner, states: list[int]) -> list[_Answer]:
    try:
        return msgspec.convert([*runner.ask_at(states, _REQUEST, SECONDS)], list[_Answer])
    except (GuestStopped, HistoryError, MemoryError) as problem:
        raise TravelError(_UNKNOWN.format(why=problem)) from problem
    except msgspec.ValidationError as problem:
        raise TravelError(_UNKNOWN.format(why=_NO_ANSWER)) from problem


def _value(found: Variable | None) -> VariableValue | None:
    return None if found is None else VariableValue(found.type, found.text, found.size)


def _differs(old: Variable | None, new: Variable | None) -> bool:
    return old is None or new is None or old.differs(new)
