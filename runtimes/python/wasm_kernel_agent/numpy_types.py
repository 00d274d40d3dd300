"""numpy's names for its default integer, which a patch of the guest's binary makes 64 bits wide.

The patch (`guest/int64.py` in the sources) changes the type that numpy's compiled code uses if none
is named. Names such as `np.int_` are bound by Python code when numpy is imported.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy
from numpy import _array_api_info
from numpy._core import _internal, _methods, arrayprint, numeric, numerictypes
from numpy.lib import _iotools

_Array = numpy.ndarray
_POSITIONS = 7  # the number of their type, which is quicker to read than its letter


def install() -> None:
    """Lets all names of the default integer mean 64 bits. Must run before other modules import
    numpy.
    """
    wide, unsigned = numpy.int64, numpy.uint64
    for name, kind in (("int_", wide), ("long", wide), ("uint", unsigned), ("ulong", unsigned)):
        for module_name, module in sys.modules.items():
            if module_name.partition(".")[0] == "numpy" and hasattr(module, name):
                setattr(module, name, kind)
    types: Any = numerictypes.sctypeDict
    types |= {"int": numpy.int64, "int_": numpy.int64, "uint": numpy.uint64}
    interface: Any = _array_api_info.__array_namespace_info__
    interface.default_dtypes = _with_wide_integers(interface.default_dtypes)
    printing: Any = arrayprint
    printing._typelessdata[0] = numpy.int64  # the integers whose arrays are shown without `dtype=`
    printing._typelessdata.append(numpy.intp)
    _widen_arrays_like_positions()
    _keep_fields_of_positions()
    methods: Any = _methods
    methods._amin = _extreme(numpy.minimum, _Array.argmin)
    methods._amax = _extreme(numpy.maximum, _Array.argmax)
    numpy.copyto = _copying(numpy.copyto)
    for name in ("histogram", "digitize"):
        setattr(numpy, name, _widening(getattr(numpy, name)))
    for name in ("insert", "pad", "ediff1d"):  # these functions put other numbers beside an array's
        widen_argument(numpy, name)
    reading: Any = _iotools.StringConverter  # tries types in turn, the narrowest first
    reading._mapper = [row for row in reading._mapper if row[0] is not numpy.intp]


def _with_wide_integers(default_dtypes: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that names int64 as the default integer, in place of positions."""

    @functools.wraps(default_dtypes)
    def named(self: Any, **settings: Any) -> Any:
        return {**default_dtypes(self, **settings), "integral": numpy.dtype(numpy.int64)}

    return named


def _widen_arrays_like_positions() -> None:
    """Lets zeros_like, ones_like and full_like make int64 arrays from arrays of positions."""
    numeric_: Any = numeric
    empty_like = numeric_.empty_like

    def wider(prototype: Any, dtype: Any = None, **settings: Any) -> Any:
        if dtype is None and type(prototype) is numpy.ndarray and prototype.dtype.char == "l":
            dtype = numpy.int64
        return empty_like(prototype, dtype=dtype, **settings)

    numeric_.empty_like = wider  # only for its module's functions; `np.empty_like` stays


def _keep_fields_of_positions() -> None:
    """Lets the common type of two equal types of positions be that type, as compiled code
    expects.
    """
    internal: Any = _internal
    promote_types = internal.promote_types

    def promoted(one: Any, other: Any) -> Any:
        return one if one.char == other.char == "l" else promote_types(one, other)

    internal.promote_types = promoted


def _extreme(ufunc: Any, place: Callable[[Any], Any]) -> Any:
    """Returns the method `min` or `max` of arrays.

    For a whole array of positions the method finds the extreme's index, since a cast to int64 takes
    longer. pandas asks for both extremes before it takes rows.
    """
    reduce, nothing, positions = ufunc.reduce, numpy._NoValue, numpy.dtype(numpy.intp)

    def extreme(  # noqa: PLR0917 - as numpy has them
        a: Any,
        axis: Any = None,
        out: Any = None,
        keepdims: Any = False,
        initial: Any = nothing,
        where: Any = True,
    ) -> Any:
        is_plain = a.dtype is positions and axis is out is None and initial is nothing
        if is_plain and keepdims is False and where is True and a.size:
            return a.ravel()[place(a)]
        return reduce(a, axis, None, out, keepdims, initial, where)

    return extreme


def _copying(original: Any) -> Any:
    """Returns a `copyto` that also copies int64 into positions by the rule "safe".

    numpy's random generators copy so into the array that `permuted` fills.
    """

    @functools.wraps(original)
    def copying(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
        if casting == "safe" and isinstance(dst, numpy.ndarray) and dst.dtype.char == "l":
            casting = "same_kind" if numpy.result_type(src) == numpy.int64 else casting
        original(dst, src, casting=casting, where=where)

    return copying


def widen(values: Any) -> Any:
    """Returns an array of positions or counts as int64, which it is on x86-64; others unchanged.

    Positions have 32 bits here, since compiled code takes no others. Values computed from positions
    may have 64.
    """
    if type(values) is _Array and values.dtype.num == _POSITIONS:
        return values.astype(numpy.int64)
    return values


def widen_masked(array: Any) -> Any:
    """Returns a masked array of positions as one of int64, for the numbers that fill it."""
    return array.astype(numpy.int64) if array.dtype.num == _POSITIONS else array


def widen_to_keep(values: Any) -> Any:
    """Returns an array as files hold it: positions, or fields of positions, become int64."""
    if isinstance(values, numpy.ndarray) and values.dtype.char in "lV":
        return values.astype(_wide_type(values.dtype), copy=False)
    return values


def _wide_type(kind: Any) -> Any:
    """Returns a type with int64 for positions; the same object if it has none."""
    if kind.char == "l":
        return numpy.dtype(numpy.int64).newbyteorder(kind.byteorder)
    if kind.subdtype is not None:
        base, shape = kind.subdtype
        wide = _wide_type(base)
        return kind if wide is base else numpy.dtype((wide, shape))
    fields = [kind.fields[name] for name in kind.names or ()]
    kinds = [_wide_type(field[0]) for field in fields]
    if all(wide is field[0] for wide, field in zip(kinds, fields, strict=True)):
        return kind
    titled = [(*field[2:], name) for name, field in zip(kind.names, fields, strict=True)]
    names = [each if len(each) > 1 else each[0] for each in titled]
    wide = numpy.dtype(list(zip(names, kinds, strict=True)), align=kind.isalignedstruct)
    return numpy.dtype((kind.type, wide))


def _widening(original: Any) -> Any:
    """Returns a function whose counts become int64; no compiled code takes its results."""

    @functools.wraps(original)
    def widening(*args: Any, **settings: Any) -> Any:
        given = original(*args, **settings)
        return tuple(map(widen, given)) if isinstance(given, tuple) else widen(given)

    return widening


def widen_argument(
    owner: Any, name: str, place: int = 0, wider: Callable[[Any], Any] = widen
) -> None:
    """Lets a function take an argument as int64 if it is an array of positions.

    Args:
        owner: The module or class that has the function.
        name: The function's name.
        place: The argument's place; `self` counts.
        wider: Returns the argument as it is taken, from the given one.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def widening(*args: Any, **settings: Any) -> Any:
        if len(args) > place:
            given = args[place]
            wide = wider(given)
            if wide is not given:
                args = (*args[:place], wide, *args[place + 1 :])
        return original(*args, **settings)

    setattr(owner, name, in_place_of(original, widening))


def in_place_of(original: Any, wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a wrapper whose code names the file of the function that it replaces.

    pandas warns of the first line outside of its own files, which is the user's.
    """
    if hasattr(original, "__code__"):
        names = {name: getattr(original.__code__, name) for name in ("co_filename", "co_name")}
        code: Any = wrapper.__code__
        wrapper.__code__ = code.replace(**names)
    return wrapper


def widen_indexes(module: Any) -> None:
    """Lets pandas' indexes hold positions as int64.

    Each lookup of rows makes one or two: a wrapper with its own arguments is the quickest.
    """
    original = vars(module.Index)["_simple_new"].__func__

    @functools.wraps(original)
    def simple_new(cls: Any, values: Any, name: Any = None, refs: Any = None) -> Any:
        if type(values) is _Array and values.dtype.num == _POSITIONS:
            values = values.astype(numpy.int64)
        return original(cls, values, name, refs)

    module.Index._simple_new = classmethod(in_place_of(original, simple_new))
