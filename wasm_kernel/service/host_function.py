"""`HostFunction`: a function of a program that cells of its sandboxes can call.

Arguments and results are plain data (`plain_data.py`). An argument is converted to its parameter's
annotation before the function sees it.
"""

from __future__ import annotations

import builtins
import inspect
import keyword
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from wasm_kernel.execution.functions import CALL_BYTES, OfferedFunction, Parameter
from wasm_kernel.execution.interfaces import check_type
from wasm_kernel.policy import MIB
from wasm_kernel.service import plain_data
from wasm_kernel.service.arrow_tables import NotPlainError, table_of

Function = Callable[..., Any]
_KINDS = inspect.Parameter
_SIMPLE = (bool, int, float, str, bytes)  # no table can become one of these
_NAME = (
    "a function of the host needs a name that is a Python identifier, not {name!r}; give one: "
    "HostFunction(function, name=...)"
)
_UNREAD = "the annotation of {name}'s parameter {parameter} can't be read, so it can't be checked"
_BUILTIN = "would hide Python's own; give another: HostFunction(function, name=...)"


@dataclass(frozen=True)
class HostFunction:
    """A function for cells, with its limits.

    Attributes:
        function: The function: plain, `async`, a generator or an `async` generator. Its docstring
            and its signature are shown to cells; its annotations are types of plain data.
        name: Its name in cells; by default its own.
        seconds: How long a call, or an item of a stream, may take. After that the cell gets a
            `TimeoutError`. An `async` function is cancelled; another one goes on, unheard.
        most_bytes: The most bytes of a call's arguments, and of its result, as JSON; at most some
            16 MiB.
        calls_a_cell: How many calls and items of streams one cell may have.
        calls_a_minute: How many calls a session may make in a minute.
        recorded: Whether its calls are recorded and replayed, if `network_mode` says so.

    Raises:
        TypeError: it is not callable, an annotation is not a type of plain data, or its name or a
            limit is of another type.
        ValueError: the name can't be used, or a limit is not above 0 or too high.
    """

    function: Function
    name: str = ""
    seconds: float = 60.0
    most_bytes: int = 8 * MIB
    calls_a_cell: int = 10_000
    calls_a_minute: int = 10_000
    recorded: bool = True

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"a function of the host is callable, not {self.function!r}")
        if not self.name:
            object.__setattr__(self, "name", getattr(self.function, "__name__", ""))
        check_type("the name of a function of the host", self.name, str)
        _check_name(self.name)
        check_type(f"recorded of {self.name}", self.recorded, bool)
        for limit in ("seconds", "most_bytes", "calls_a_cell", "calls_a_minute"):
            value, kind = getattr(self, limit), float | int if limit == "seconds" else int
            check_type(f"{limit} of {self.name}", value, kind)
            if not value > 0:
                raise ValueError(f"{limit} of {self.name} is above 0, not {value!r}")
        if self.most_bytes > CALL_BYTES:
            raise ValueError(f"most_bytes of {self.name} is at most {CALL_BYTES:,}")


def _check_name(name: str) -> None:
    if not (name.isidentifier() and name.isascii()) or keyword.iskeyword(name):
        raise ValueError(_NAME.format(name=name))
    if hasattr(builtins, name):
        raise ValueError(f"a function named {name!r} {_BUILTIN}")


class BoundFunction:
    """A function of the host with its signature, which checks the arguments of calls.

    An event is logged for each call if it is `logged`.
    """

    def __init__(self, host: HostFunction, *, logged: bool = True) -> None:
        self.limits = host
        self.logged = logged
        self.function = host.function
        self._signature = inspect.signature(host.function)
        called = _called(host.function)
        try:
            hints = typing.get_type_hints(called, include_extras=True)
        except (NameError, AttributeError, SyntaxError) as problem:
            raise TypeError(f"an annotation of {host.name}: {problem}") from None
        self._types: dict[str, Any] = {}
        self._arrow: set[str] = set()  # parameters that take tables of pyarrow
        for name, each in self._signature.parameters.items():
            if each.annotation is _KINDS.empty:
                continue
            try:
                self._types[name] = hints[name]
                if plain_data.check_type(hints[name]):
                    self._arrow.add(name)
            except KeyError:
                raise TypeError(_UNREAD.format(name=host.name, parameter=name)) from None
            except (TypeError, RuntimeError) as problem:
                raise TypeError(f"an annotation of {host.name}: {problem}") from None
        is_async_stream = inspect.isasyncgenfunction(called)
        self.is_async = inspect.iscoroutinefunction(called) or is_async_stream
        self.is_stream = inspect.isgeneratorfunction(called) or is_async_stream

    @property
    def offered(self) -> OfferedFunction:
        """The function as cells see it."""
        return OfferedFunction(
            self.limits.name,
            inspect.getdoc(self.function) or "",
            tuple(map(_shown, self._signature.parameters.values())),
            _annotation(self._signature.return_annotation),
            self.is_async,
            self.is_stream,
            self.limits.calls_a_cell,
        )

    @property
    def described(self) -> str:
        """A line for a model: how cells call the function, and its docstring's first line."""
        called = f"{self.limits.name}{self._signature}"
        if self.is_stream:
            called = f"{'async ' if self.is_async else ''}for item in {called}"
        elif self.is_async:
            called = f"await {called}"
        return f"{called}: {inspect.getdoc(self.function) or ''}".partition("\n")[0].rstrip(": ")

    def arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], raw: bytes
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of a guest's call, converted to the annotations' types.

        The call has `raw` bytes. Raises `TypeError` or `ValueError`, with a text for the cell, if
        they do not fit the function.
        """
        bound = self._signature.bind(*args, **kwargs)
        data = plain_data.GuestData(raw)
        for name, value in bound.arguments.items():
            try:
                bound.arguments[name] = self._converted(name, value, data)
            except (TypeError, ValueError) as problem:
                is_type = isinstance(problem, TypeError | msgspec.ValidationError)
                kind_of_error = TypeError if is_type else ValueError
                raise kind_of_error(f"{self.limits.name}(), {name}: {problem}") from None
        return bound.args, bound.kwargs

    def _converted(self, name: str, value: Any, data: plain_data.GuestData) -> Any:
        kind = self._types.get(name, Any)
        table = partial(table_of, as_arrow=name in self._arrow)
        if kind in _SIMPLE:
            table = partial(_no_table, kind)

        def one(sent: Any) -> Any:
            return plain_data.converted(data.decoded(sent, table), kind)

        match self._signature.parameters[name].kind:
            case _KINDS.VAR_POSITIONAL:
                return tuple(map(one, value))
            case _KINDS.VAR_KEYWORD:
                return {key: one(each) for key, each in value.items()}
        return one(value)


def bound_by_name(functions: Iterable[Function | HostFunction]) -> dict[str, BoundFunction]:
    """Returns the functions by their names in cells; raises as `Functions`."""
    found: dict[str, BoundFunction] = {}
    for each in functions:
        host = each if isinstance(each, HostFunction) else HostFunction(each)
        if host.name in found:
            raise ValueError(f"two functions of the host are named {host.name!r}")
        found[host.name] = BoundFunction(host)
    return found


def _called(function: Any) -> Any:
    """Returns the function that a call runs: the one with the annotations, and maybe `async`."""
    while isinstance(function, partial):
        function = function.func
    if inspect.isroutine(function):
        return function
    return function.__init__ if isinstance(function, type) else type(function).__call__  # type: ignore[misc]


def _no_table(kind: type, *_: object) -> Any:
    raise NotPlainError(f"Expected `{kind.__name__}`, got `DataFrame`")


def _shown(parameter: inspect.Parameter) -> Parameter:
    default = None if parameter.default is _KINDS.empty else repr(parameter.default)
    return Parameter(
        parameter.name, int(parameter.kind), _annotation(parameter.annotation), default
    )


def _annotation(annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
