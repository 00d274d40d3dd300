"""Records behave as `@dataclass(frozen=True)` makes classes behave."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace

import pytest

from wasm_kernel.record import record


@record
class Ours:
    a: int
    b: str = "b"
    c: list[int] = field(default_factory=list, compare=False)


@dataclass(frozen=True)
class Theirs:
    a: int
    b: str = "b"
    c: list[int] = field(default_factory=list, compare=False)


@pytest.mark.parametrize("kind", [Ours, Theirs])
def test_a_record_is_made_shown_compared_and_changed_as_a_dataclass_is(
    kind: type[Ours] | type[Theirs],
) -> None:
    one = kind(1, c=[2])
    assert repr(one) == f"{kind.__name__}(a=1, b='b', c=[2])"
    assert one == kind(a=1, b="b", c=[3]) != kind(2)
    assert hash(one) == hash(kind(1))
    assert one.__eq__((1, "b", [2])) is NotImplemented
    assert one.__eq__(Theirs(1) if kind is Ours else Ours(1)) is NotImplemented
    assert asdict(one) == {"a": 1, "b": "b", "c": [2]}
    assert [each.name for each in fields(kind)] == ["a", "b", "c"]
    assert replace(one, a=5).a == 5 and replace(one, a=5).c == [2]
    assert kind(1).c is not kind(1).c
    assert copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one
    match one:
        case Ours(a, b) | Theirs(a, b):
            assert (a, b) == (1, "b")


@pytest.mark.parametrize("kind", [Ours, Theirs])
def test_a_record_can_not_be_changed_in_place(kind: type[Ours] | type[Theirs]) -> None:
    one = kind(1)
    with pytest.raises(FrozenInstanceError):
        one.a = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del one.a
    assert one.a == 1


@pytest.mark.parametrize("kind", [Ours, Theirs])
@pytest.mark.parametrize(
    ("values", "named"),
    [((), {}), ((1, "b", [], 4), {}), ((1,), {"a": 1}), ((1,), {"d": 1}), ((), {"d": 1})],
)
def test_wrong_fields_are_refused(
    kind: type[Ours] | type[Theirs], values: tuple[object, ...], named: dict[str, object]
) -> None:
    with pytest.raises(TypeError):
        kind(*values, **named)  # type: ignore[arg-type]
