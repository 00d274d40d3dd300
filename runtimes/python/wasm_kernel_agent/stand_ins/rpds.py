"""The immutable collections of `rpds` in plain Python, as far as packages use them.

jsonschema and referencing, and therefore nbformat and Altair, need `rpds`, which is compiled. Their
maps are small: a changed map is a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


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

    def insert(self, key: K, val: V) -> HashTrieMap[K, V]:
        """Returns this map with one more key."""
        return HashTrieMap({**self._items, key: val})

    def update(self, other: Any = (), **items: Any) -> HashTrieMap[K, V]:
        """Returns this map with the keys of another."""
        return HashTrieMap(self._items | dict(other), **items)

    def remove(self, key: K) -> HashTrieMap[K, V]:
        """Returns this map without a key.

        Raises:
            KeyError: It has no such key.
        """
        changed = dict(self._items)
        del changed[key]
        return HashTrieMap(changed)


class HashTrieSet(frozenset[T]):
    """A set whose changes are new sets."""

    __slots__ = ()

    def insert(self, value: T) -> HashTrieSet[T]:
        """Returns this set with one more value."""
        return HashTrieSet(self | {value})

    def update(self, *others: Iterable[T]) -> HashTrieSet[T]:
        """Returns this set with the values of others."""
        return HashTrieSet(self.union(*others))

    def discard(self, value: T) -> HashTrieSet[T]:
        """Returns this set without a value, if it has it."""
        return HashTrieSet(self - {value})


class List(tuple[T, ...]):
    """A list that grows at its front."""

    __slots__ = ()

    def push_front(self, value: T) -> List[T]:
        """Returns this list with one more item, at its front."""
        return List((value, *self))
