"""Nearest-neighbour trees whose pickles and counts of pairs have 64 bits.

scipy and scikit-learn pickle a tree's nodes as records of compiled code, whose positions have 32
bits here. They become the records of x86-64, so trees pickled there can be read here, and vice
versa. Their compiled code also counts pairs of points with 32 bits, and would wrap around.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy

State = tuple[Any, ...]

_MOST = 2**31 - 1
"""The most that compiled code counts."""

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


def widen_trees_of_scipy(module: ModuleType) -> None:
    """Changes `scipy.spatial._ckdtree`. Its class is compiled and can't change: a child does."""
    trees: Any = module
    compiled = trees.cKDTree
    trees.cKDTree = _child(compiled, _scipys_for_others, _scipys_for_here)

    @functools.wraps(compiled.count_neighbors)
    def count_neighbors(  # noqa: PLR0917 - scipy's own arguments
        self: Any, other: Any, r: Any, p: Any = 2.0, weights: Any = None, cumulative: Any = True
    ) -> Any:
        if weights is not None or self.n * other.n <= _MOST:
            return compiled.count_neighbors(self, other, r, p, weights, cumulative)
        ones = numpy.ones(self.n), numpy.ones(other.n)  # sums of weights are floats of 64 bits
        counts = compiled.count_neighbors(self, other, r, p, ones, cumulative)
        return int(counts) if numpy.ndim(counts) == 0 else counts.astype(numpy.int64)

    trees.cKDTree.count_neighbors = count_neighbors


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


def widen_trees_of_sklearn(module: ModuleType) -> None:
    """Changes `sklearn.neighbors._kd_tree`, or `_ball_tree`: children take the place of the two
    compiled classes, and of the Python class that is a child of one.
    """
    trees: Any = module
    name = "KDTree" if hasattr(trees, "KDTree") else "BallTree"
    for width in ("32", "64"):
        compiled = getattr(trees, name + width)
        child = _child(compiled, _sklearns_as(numpy.int64), _sklearns_as(numpy.intp))
        child.two_point_correlation = _counting_in_parts(compiled.two_point_correlation)
        setattr(trees, name + width, child)
    body = {key: each for key, each in vars(getattr(trees, name)).items() if key != "__dict__"}
    setattr(trees, name, type(name, (getattr(trees, f"{name}64"),), body))


def _counting_in_parts(count: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that counts pairs for a part of the points at a time, in 64 bits."""

    @functools.wraps(count)
    def two_point_correlation(self: Any, X: Any, r: Any, dualtree: Any = False) -> Any:  # noqa: N803
        points = numpy.asarray(X)
        step = max(_MOST // max(len(self.data), 1), 1)
        parts = [points[at : at + step] for at in range(0, len(points), step)] or [points]
        return sum(count(self, each, r, dualtree).astype(numpy.int64) for each in parts)

    return two_point_correlation


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
