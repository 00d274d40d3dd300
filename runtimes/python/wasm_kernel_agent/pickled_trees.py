"""Pickles of nearest-neighbour trees: they are read and written with positions of 64 bits.

scipy and scikit-learn pickle a tree's nodes as records of compiled code, whose positions have 32
bits here. They become the records of x86-64, so trees pickled there can be read here, and vice
versa.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy

State = tuple[Any, ...]

_NO_NODES = (
    "this pickle does not hold the nodes of a k-d tree as scipy writes them, on x86-64 or here: "
    "build the tree again, from its points"
)


def _records(integer: Any, names: str, floats: str) -> Any:
    """Returns the type of nodes that have fields of an integer's type and of floats."""
    kinds = [(name, numpy.float64 if name in floats.split() else integer) for name in names.split()]
    return numpy.dtype(kinds, align=True)


_SCIPYS = ("axis points split start end less greater less_at greater_at", "split")
_SCIPYS_WIDE = _records(numpy.int64, *_SCIPYS)
_SCIPYS_HERE = _records(numpy.int32, *_SCIPYS)  # the addresses of nodes wrap around, unread
_SKLEARNS = ("idx_start idx_end is_leaf radius", "radius")


def keep_trees_of_scipy(module: ModuleType) -> None:
    """Changes `scipy.spatial._ckdtree`. Its class is compiled and can't change: a child does."""
    trees: Any = module
    trees.cKDTree = _child(trees.cKDTree, _scipys_for_others, _scipys_for_here)


def _scipys_for_others(state: State) -> State:
    nodes, *rest = state
    return (nodes.view(_SCIPYS_HERE).astype(_SCIPYS_WIDE).view(nodes.dtype), *rest)


def _scipys_for_here(state: State) -> State:
    nodes, data, points, *rest = state
    for kind in (_SCIPYS_WIDE, _SCIPYS_HERE):  # the second as this sandbox once wrote them
        found = nodes.view(kind) if nodes.size and nodes.size % kind.itemsize == 0 else None
        if found is not None and found["points"][0] == points:
            *others, indexes, box, size = rest
            narrow = found.astype(_SCIPYS_HERE).view(nodes.dtype)
            return (narrow, data, points, *others, indexes.astype(numpy.intp), box, size)
    raise ValueError(_NO_NODES)


def keep_trees_of_sklearn(module: ModuleType) -> None:
    """Changes `sklearn.neighbors._kd_tree`, or `_ball_tree`: children take the place of the two
    compiled classes, and of the Python class that is a child of one.
    """
    trees: Any = module
    name = "KDTree" if hasattr(trees, "KDTree") else "BallTree"
    for width in ("32", "64"):
        compiled = getattr(trees, name + width)
        child = _child(compiled, _sklearns_as(numpy.int64), _sklearns_as(numpy.intp))
        setattr(trees, name + width, child)
    body = {key: each for key, each in vars(getattr(trees, name)).items() if key != "__dict__"}
    setattr(trees, name, type(name, (getattr(trees, f"{name}64"),), body))


def _sklearns_as(integer: Any) -> Callable[[State], State]:
    kind = _records(integer, *_SKLEARNS)

    def changed(state: State) -> State:
        data, indexes, nodes, *rest = state
        return (data, indexes.astype(integer), nodes.astype(kind), *rest)

    return changed


def _child(
    compiled: Any, for_others: Callable[[State], State], for_here: Callable[[State], State]
) -> Any:
    """Returns a child of the compiled class that only pickles in another way."""
    kept = {name: getattr(compiled, name) for name in ("__doc__", "__module__", "__qualname__")}
    methods: dict[str, Callable[..., Any]] = {
        "__getstate__": lambda tree: for_others(compiled.__getstate__(tree)),
        "__setstate__": lambda tree, state: compiled.__setstate__(tree, for_here(state)),
    }
    return type(compiled.__name__, (compiled,), {"__slots__": (), **kept, **methods})
