"""The immutable collections of `rpds` in plain Python.

jsonschema and referencing, and therefore nbformat and Altair, need `rpds`, which is compiled. Their
maps are small: a changed map is a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

_EMPTY: Any = object()


class HashTrieMap(Mapping[K, V]):
    """A mapping whose changes are new mappings."""

    __slots__ = ("_items",)

    def __init__(self, value: Any = (), **items: Any) -> None:
        self._items: dict[K, V] = dict(value, **items)

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"HashTrieMap({self._items!r})"

    @classmethod
    def convert(cls, value: Any) -> HashTrieMap[K, V]:
        """Returns `value` as a map; a map as it is."""
        return value if isinstance(value, HashTrieMap) else cls(value)

    @classmethod
    def fromkeys(cls, keys: Iterable[K], value: Any = None) -> HashTrieMap[K, V]:
        """Returns a map of `keys` to one value."""
        return cls(dict.fromkeys(keys, value))

    def insert(self, key: K, val: V) -> HashTrieMap[K, V]:
        """Returns this map with one more key."""
        return HashTrieMap({**self._items, key: val})

    def update(self, *others: Any, **items: Any) -> HashTrieMap[K, V]:
        """Returns this map with the keys of others."""
        changed = dict(self._items)
        for other in others:
            changed.update(other)
        return HashTrieMap(changed, **items)

    def remove(self, key: K) -> HashTrieMap[K, V]:
        """Returns this map without a key.

        Raises:
            KeyError: It has no such key.
        """
        changed = dict(self._items)
        del changed[key]
        return HashTrieMap(changed)

    def discard(self, key: K) -> HashTrieMap[K, V]:
        """Returns this map without a key, if it has it."""
        return self.remove(key) if key in self._items else self


class HashTrieSet(Set[T]):
    """A set whose changes are new sets."""

    __slots__ = ("_items",)

    def __init__(self, value: Iterable[T] = ()) -> None:
        self._items = frozenset(value)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        return f"HashTrieSet({{{', '.join(map(repr, self))}}})"

    def insert(self, value: T) -> HashTrieSet[T]:
        """Returns this set with one more value."""
        return HashTrieSet(self._items | {value})

    def update(self, *others: Iterable[T]) -> HashTrieSet[T]:
        """Returns this set with the values of others."""
        return HashTrieSet(self._items.union(*others))

    def remove(self, value: T) -> HashTrieSet[T]:
        """Returns this set without a value.

        Raises:
            KeyError: It has no such value.
        """
        if value not in self._items:
            raise KeyError(value)
        return HashTrieSet(self._items - {value})

    def discard(self, value: T) -> HashTrieSet[T]:
        """Returns this set without a value, if it has it."""
        return HashTrieSet(self._items - {value})


class _Sequence(Iterable[T]):
    """The methods that `List` and `Queue` share."""

    __slots__ = ("_items",)

    def __init__(self, value: Any = _EMPTY, *more: T) -> None:
        first = () if value is _EMPTY else (value, *more) if more else value
        self._items: tuple[T, ...] = tuple(first)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and tuple(other) == self._items

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        return f"{type(self).__name__}([{', '.join(map(repr, self))}])"

    def _without_first(self) -> tuple[T, ...]:
        if not self._items:
            raise IndexError(f"empty {type(self).__name__.lower()}")
        return self._items[1:]


class List(_Sequence[T]):
    """A list that grows and shrinks at its front."""

    __slots__ = ()

    @property
    def first(self) -> T:
        """The first item. Raises `IndexError` if there is none."""
        return self._items[0]

    @property
    def rest(self) -> List[T]:
        """All items but the first."""
        return List(self._items[1:])

    def push_front(self, value: T) -> List[T]:
        """Returns this list with one more item, at its front."""
        return List((value, *self._items))

    def drop_first(self) -> List[T]:
        """Returns this list without its first item. Raises `IndexError` if there is none."""
        return List(self._without_first())


class Queue(_Sequence[T]):
    """A queue."""

    __slots__ = ()

    def is_empty(self) -> bool:
        """Returns whether the queue is empty."""
        return not self._items

    def peek(self) -> T:
        """Returns the item that comes next. Raises `IndexError` if there is none."""
        return self._items[0]

    def enqueue(self, value: T) -> Queue[T]:
        """Returns this queue with one more item."""
        return Queue((*self._items, value))

    def dequeue(self) -> Queue[T]:
        """Returns this queue without its next item. Raises `IndexError` if there is none."""
        return Queue(self._without_first())
