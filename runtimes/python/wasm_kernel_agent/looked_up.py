"""Values that a line reads before a call; a thread that begins the line anew compares them.

Only reads are considered that run no code of the program and can't fail the second time.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import types
from types import CodeType, FrameType
from typing import Any

_NOTHING = object()
_METHODS = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
_PLAIN = (
    *(types.FunctionType, classmethod, staticmethod, types.MemberDescriptorType),
    *(types.MethodDescriptorType, types.ClassMethodDescriptorType, types.BuiltinFunctionType),
    *(types.WrapperDescriptorType, types.GetSetDescriptorType, type),
)
_FIXED = (int, float, str, bytes, bool, type(None))
_COMPUTES = {"BINARY_OP", "COMPARE_OP", "UNARY_NEGATIVE", "FORMAT_SIMPLE", "BUILD_SET"}
_SHARED = {"LOAD_GLOBAL", "LOAD_DEREF", "LOAD_ATTR", "LOAD_SUPER_ATTR"}
_NAMES = {"locals", "vars", "dir", "eval", "exec"}  # show which variables have a value
_FRAMES = {"_getframe", "currentframe"}


def value(frame: FrameType, load: Any, before: Any) -> Any:
    """Returns the value that an instruction loads; `before` is the value loaded before it."""
    kind, name = load.opname, load.argval
    if kind == "LOAD_SUPER_ATTR":
        owner: Any = super(frame.f_locals["__class__"], before)
        found = inspect.getattr_static(owner.__thisclass__, name, _NOTHING)
        return getattr(owner, name) if isinstance(found, _PLAIN) else _NOTHING
    if kind == "LOAD_ATTR":
        return getattr(before, name) if _is_plain(before, name) else _NOTHING
    if kind.startswith(("LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF")):
        name = name[-1] if isinstance(name, tuple) else name
        given = vars(builtins).get(name, _NOTHING)
        return frame.f_locals.get(name, frame.f_globals.get(name, given))
    return name if kind.startswith(("LOAD_CONST", "LOAD_SMALL", "LOAD_COMMON")) else before


def values(frame: FrameType, instructions: list[Any], arguments: int) -> list[Any] | None:
    """Returns the values that instructions load before the arguments of the call.

    Returns:
        None if an instruction may run code of the program, or act differently the second time.
    """
    found: list[Any] = []
    given: list[tuple[bool, Any]] = []  # the arguments, and whether no other code can replace them
    last = _NOTHING
    for number, each in enumerate(instructions):
        if each.opname.startswith("LOAD_"):
            last = value(frame, each, last)
            if last is _NOTHING:
                return None
            if number < arguments:
                found.append(last)
                continue
            names = each.argval[:-1] if "_LOAD_FAST" in each.opname else ()
            given += [(True, frame.f_locals.get(name)) for name in names]
            given.append((each.opname not in _SHARED, last))
        elif not _is_exact(each, given):
            return None
    return found


def _is_exact(instruction: Any, given: list[tuple[bool, Any]]) -> bool:
    """Returns whether an instruction depends on its arguments alone, and has no other effect."""
    kind = instruction.opname
    if kind in ("DICT_MERGE", "LIST_EXTEND"):
        return given[-1][0] and type(given[-1][1]) in (tuple, dict)
    if kind in _COMPUTES or instruction.argrepr == "INTRINSIC_UNARY_POSITIVE":
        return all(is_own and type(each) in _FIXED for is_own, each in given)
    if kind == "BUILD_MAP" and instruction.arg:
        return all(type(each) in _FIXED for _, each in given)
    return True


def is_same(one: Any, other: Any) -> bool:
    """Returns whether two values are one object, or one method of an object."""
    return one is other or (type(one) in _METHODS and bool(one == other))


def may_catch(frame: FrameType, loads: list[Any]) -> bool:
    """Returns whether handlers that load these classes may catch more than errors."""
    last = None
    for each in loads:
        last = value(frame, each, last)
        is_class = isinstance(last, type) and issubclass(last, BaseException)
        if last is BaseException or not (is_class or isinstance(last, types.ModuleType)):
            return True
    return False


@functools.lru_cache(maxsize=256)
def told(code: CodeType) -> frozenset[str] | None:
    """Returns the variables of which a function can find out that they have no value.

    Returns:
        None for a function that may keep its frame.
    """
    if not _FRAMES.isdisjoint(code.co_names):
        return None
    if not _NAMES.isdisjoint(code.co_names):
        return frozenset(code.co_varnames)
    stored, found = set(code.co_varnames[: code.co_argcount]), set()
    for each in dis.get_instructions(code):
        names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
        if each.opname.startswith("STORE_FAST"):
            stored.update(names)
        elif each.opname == "LOAD_FAST_CHECK":
            found.add(each.argval)
        elif each.opname == "DELETE_FAST":
            found.update({each.argval} - stored)
            stored.discard(each.argval)
    return frozenset(found)


def _is_plain(owner: Any, name: str) -> bool:
    if isinstance(owner, types.ModuleType):
        return name in vars(owner)
    if isinstance(type(owner).__getattribute__, types.FunctionType):
        return False
    kind = inspect.getattr_static(owner, name, _NOTHING)
    return kind is not _NOTHING and (isinstance(kind, _PLAIN) or not hasattr(kind, "__get__"))
