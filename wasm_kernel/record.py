"""Frozen dataclasses that cost a kernel's start next to nothing.

`@dataclass(frozen=True)` writes, compiles and runs six functions for each class: 0.4 ms, and a
kernel defines seventy classes before its guest starts. The methods here are shared by all of them.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from typing import Any, NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(kind: type[T]) -> type[T]:
    """Make a class a frozen dataclass: `fields`, `replace` and `asdict` of `dataclasses` know it.

    There is no `__post_init__`: what must be checked when it is made is a true dataclass.
    """
    dataclass(init=False, repr=False, eq=False)(kind)
    known: Any = kind
    known._names = tuple(one.name for one in fields(known))
    known._known = frozenset(known._names)
    known._compared = tuple(one.name for one in fields(known) if one.compare)
    known._optional = {one.name: one for one in fields(known) if _optional(one)}
    for method in (__init__, __repr__, __eq__, __hash__, __setattr__, __delattr__):
        if method.__name__ not in vars(kind):
            setattr(kind, method.__name__, method)
    return kind


def _optional(one: Field[Any]) -> bool:
    return one.default is not MISSING or one.default_factory is not MISSING


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def __init__(self: Any, *values: Any, **named: Any) -> None:  # noqa: N807
    names = self._names
    given = dict(zip(names, values, strict=False))
    given.update(named)
    once = len(given) == len(values) + len(named)
    if len(given) < len(names):
        left = {name: one for name, one in self._optional.items() if name not in given}
        given.update((name, _default(one)) for name, one in left.items())
    if not once or given.keys() != self._known:
        raise TypeError(f"{type(self).__name__} takes {', '.join(names)}, each once")
    self.__dict__.update(given)


def __repr__(self: Any) -> str:  # noqa: N807
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._names)
    return f"{type(self).__qualname__}({shown})"


def __eq__(self: Any, other: Any) -> bool:  # noqa: N807
    if type(other) is not type(self):
        return NotImplemented
    return all(getattr(self, name) == getattr(other, name) for name in self._compared)


def __hash__(self: Any) -> int:  # noqa: N807
    return hash(tuple(getattr(self, name) for name in self._compared))


def __setattr__(_: Any, name: str, value: Any) -> NoReturn:  # noqa: ARG001, N807
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def __delattr__(_: Any, name: str) -> NoReturn:  # noqa: N807
    raise FrozenInstanceError(f"cannot delete field {name!r}")
