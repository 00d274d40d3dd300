"""The functions of the host: cells call them, and the program that owns the sandbox runs them.

They are names among the builtins, so that a cell may use such a name for something else. A call
sends its arguments as plain data (PROTOCOL.md), and waits for the host's answer.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import dataclasses
import datetime
import decimal
import enum
import inspect
import math
import pathlib
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from wasm_kernel_agent.event_loop import serve_calls
from wasm_kernel_agent.host import FrameChannel, flush

_NETWORK = "wasm_kernel_network_"  # begins the names of functions for sockets
_MARK = "$"  # the key of an object that stands for a value which JSON has not
_EXACT_MOST = 2**53  # a larger number would lose digits in JavaScript
_TEXTS = (decimal.Decimal, uuid.UUID, pathlib.PurePath)
_TIMES = (datetime.date, datetime.time)

Json = Any


class HostFunctionError(RuntimeError):
    """The host did not run a function; the text says why."""


class OfferedFunctions:
    """The functions that the host offers to this memory's cells."""

    def __init__(self, channel: FrameChannel) -> None:
        self._channel = channel
        self._facts: list[dict[str, Any]] = []
        self._made: dict[str, Any] = {}
        self._awaited = _AwaitedCalls(channel)
        serve_calls(self._awaited)

    def offer(self, facts: list[dict[str, Any]]) -> None:
        """Makes functions from the host's description of each, in place of those made before.

        A function stays the same object as long as its description does.
        """
        if facts == self._facts:
            return
        there = vars(builtins)
        for name, function in self._made.items():
            if there.get(name) is function:
                del there[name]
        known = [*self._facts]
        self._facts = facts
        facts = self._take_network(facts)
        self._made = {
            each["name"]: self._made[each["name"]] if each in known else self._function(each)
            for each in facts
        }
        there.update(self._made)

    def _take_network(self, facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Gives sockets their functions; returns the descriptions of the functions for cells."""
        own = [each for each in facts if each["name"].startswith(_NETWORK)]
        if own:
            from wasm_kernel_agent import network_sockets

            network_sockets.install(
                {
                    each["name"].removeprefix(_NETWORK): NetworkCall(
                        self._channel, self._awaited, each["name"], _signature(each)
                    )
                    for each in own
                }
            )
        return [each for each in facts if each not in own]

    def _function(self, facts: dict[str, Any]) -> Callable[..., Any]:
        name, signature = facts["name"], _signature(facts)
        make = _MAKERS[bool(facts.get("is_async")), bool(facts.get("is_stream"))]
        function: Any = make(_FunctionCall(self._channel, self._awaited, name, signature))
        function.__name__ = function.__qualname__ = name
        function.__doc__ = facts.get("doc") or None
        function.__module__ = "host"
        function.__signature__ = signature
        made: Callable[..., Any] = function
        return made


class _AwaitedCalls:
    """The calls that tasks await; the event loop looks for the finished ones while it waits."""

    def __init__(self, channel: FrameChannel) -> None:
        self._channel = channel
        self._futures: dict[int, asyncio.Future[dict[str, Any]]] = {}

    @property
    def is_open(self) -> bool:
        """True if a task awaits a call."""
        return bool(self._futures)

    async def answer_of(self, number: int) -> dict[str, Any]:
        """Returns the answer to a call that the host has begun."""
        future = self.future_of(number)
        try:
            return await future
        finally:
            future.cancel()

    def future_of(self, number: int) -> asyncio.Future[dict[str, Any]]:
        """Returns the future answer to a call, for callbacks; a cancelled one is dropped."""
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._futures[number] = future

        def ended(_: object) -> None:
            self._futures.pop(number, None)
            if future.cancelled():
                with contextlib.suppress(Exception):
                    self._channel.send({"op": "drop", "number": number})

        future.add_done_callback(ended)
        return future

    def wait(self, seconds: float) -> None:
        """Waits for a call to finish, up to `seconds`, and hands the answers on.

        Raises:
            KeyboardInterrupt: The cell was interrupted.
        """
        __tracebackhide__ = True
        answer = self._channel.send({"op": "finished", "seconds": seconds})
        if answer.get("interrupted"):
            raise KeyboardInterrupt
        finished: list[Any] = answer.get("finished") or []
        if not (finished or answer.get("left")):  # an earlier cell began them
            lost = {"refused": "a call ends with its cell, at the latest"}
            finished = [(number, {**lost}) for number in self._futures]
        for number, found in finished:
            found["raw"] = answer.get("raw", b"")
            future = self._futures.get(number)
            if future is not None and not future.done():
                future.set_result(found)


class _FunctionCall:
    """Calls one function, and gets the items of its streams."""

    def __init__(
        self, channel: FrameChannel, awaited: _AwaitedCalls, name: str, signature: inspect.Signature
    ) -> None:
        self._channel = channel
        self._awaited = awaited
        self._name = name
        self._signature = signature
        self._errors: dict[tuple[str, str], type[Exception]] = {}

    def frame(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Returns the frame of a call."""
        __tracebackhide__ = True
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as problem:
            raise TypeError(f"{self._name}() {problem}") from None
        raw = bytearray()
        sent = {"args": encoded([*args], raw), "kwargs": {**kwargs}}
        for name, value in kwargs.items():
            sent["kwargs"][name] = encoded(value, raw)
        return {"op": "call", "function": self._name, **sent, "raw": raw}

    def item(self, stream: int) -> dict[str, Any]:
        """Returns the frame that asks for a stream's next item."""
        return {"op": "item", "function": self._name, "stream": stream}

    def stop(self, stream: int) -> None:
        """Ends a stream at the host, which also ends all streams after each cell."""
        with contextlib.suppress(Exception):
            self._channel.send({"op": "drop", "number": stream})

    def send(self, frame: dict[str, Any]) -> dict[str, Any]:
        """Sends a frame, and returns the answer; raises the host's error."""
        __tracebackhide__ = True
        flush()
        return self._checked(self._channel.send(frame))

    async def later(self, frame: dict[str, Any]) -> dict[str, Any]:
        """Does the work of `send` while other tasks run."""
        __tracebackhide__ = True
        begun = self.send({**frame, "later": True})
        return self._checked(await self._awaited.answer_of(begun["call"]))

    def _checked(self, answer: dict[str, Any]) -> dict[str, Any]:
        __tracebackhide__ = True
        if answer.get("interrupted"):
            raise KeyboardInterrupt
        if "refused" in answer:
            raise HostFunctionError(f"{self._name}: {answer['refused']}")
        if "raised" in answer:
            raise self._error(answer["raised"])
        return answer

    def _error(self, raised: dict[str, str]) -> Exception:
        """Returns the host's error, of the same class if that is a builtin one, or of a class of
        that name below the nearest builtin one.
        """
        kind = getattr(builtins, raised["base"], None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            kind = Exception
        name = raised["type"]
        if name != kind.__name__:
            made = self._errors.get((name, kind.__name__))
            if made is None:
                made = type(name, (kind,), {"__module__": "host"})
                self._errors[name, kind.__name__] = made
            kind = made
        try:
            return kind(raised["text"])
        except TypeError:  # the class takes other arguments, as UnicodeDecodeError does
            return RuntimeError(f"{name}: {raised['text']}")


class NetworkCall(_FunctionCall):
    """Calls a function of the host for a socket."""

    def now(self, *args: Any) -> Any:
        """Returns the host's value; raises its error."""
        __tracebackhide__ = True
        return value_of(self._checked(self._channel.send(self.frame(args, {}))))

    def begin(self, *args: Any) -> asyncio.Future[dict[str, Any]]:
        """Begins a call for the running loop; the future's answer is for `ended`."""
        begun = self._checked(self._channel.send({**self.frame(args, {}), "later": True}))
        return self._awaited.future_of(begun["call"])

    def ended(self, future: asyncio.Future[dict[str, Any]]) -> Any:
        """Returns the value of a call that was begun; raises its error."""
        return value_of(self._checked(future.result()))


def _plain(call: _FunctionCall) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return value_of(call.send(call.frame(args, kwargs)))

    return function


def _awaited(call: _FunctionCall) -> Callable[..., Any]:
    async def function(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return value_of(await call.later(call.frame(args, kwargs)))

    return function


def _stream(call: _FunctionCall) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Iterator[Any]:
        __tracebackhide__ = True
        number = call.send(call.frame(args, kwargs))["stream"]
        is_over = False
        try:
            while "value" in (answer := call.send(call.item(number))):
                yield value_of(answer)
            is_over = True
        finally:
            if not is_over:
                call.stop(number)

    return function


def _awaited_stream(call: _FunctionCall) -> Callable[..., Any]:
    async def function(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        __tracebackhide__ = True
        number = call.send(call.frame(args, kwargs))["stream"]
        is_over = False
        try:
            while "value" in (answer := await call.later(call.item(number))):
                yield value_of(answer)
            is_over = True
        finally:
            if not is_over:
                call.stop(number)

    return function


_MAKERS = {
    (False, False): _plain,
    (True, False): _awaited,
    (False, True): _stream,
    (True, True): _awaited_stream,
}


class _HostValue:
    """A default value or an annotation of the host's, of which only the text is known."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _signature(facts: dict[str, Any]) -> inspect.Signature:
    parameters = [
        inspect.Parameter(
            each["name"],
            inspect._ParameterKind(each["kind"]),
            default=_HostValue(each["default"]) if "default" in each else inspect.Parameter.empty,
            annotation=_HostValue(each["type"]) if each.get("type") else inspect.Parameter.empty,
        )
        for each in facts["parameters"]
    ]
    returns = facts.get("returns")
    shown = _HostValue(returns) if returns else inspect.Signature.empty
    return inspect.Signature(parameters, return_annotation=shown)


# -- plain data


def encoded(value: Any, raw: bytearray) -> Json:
    """Returns a value as the JSON that the host reads; adds its bytes to `raw`.

    Raises:
        TypeError: It is not plain data.
        UnicodeEncodeError: A text holds a lone surrogate.
    """
    if type(value) is str:
        value.encode()  # raises if no message can carry it
    if value is None or type(value) in (bool, str):
        return value
    if type(value) in (int, float):
        return _number(value)
    if isinstance(value, dict):
        return _object(value, raw)
    if isinstance(value, list | tuple | set | frozenset):
        return [encoded(each, raw) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        start = len(raw)
        raw += value
        return {_MARK: "bytes", "value": [start, len(raw) - start]}
    return _converted(value, raw)


def _number(value: float) -> Json:
    kind = "int" if isinstance(value, int) else "float"
    is_exact = abs(value) <= _EXACT_MOST if kind == "int" else math.isfinite(value)
    return value if is_exact else {_MARK: kind, "value": str(value)}


def _object(value: dict[Any, Any], raw: bytearray) -> Json:
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"the keys of a dict for the host are texts, not {type(key).__name__}")
    plain = {encoded(str(key), raw): encoded(each, raw) for key, each in value.items()}
    return plain if _MARK not in plain else {_MARK: "object", "value": list(plain.items())}


def _converted(value: Any, raw: bytearray) -> Json:
    if isinstance(value, enum.Enum):
        return encoded(value.value, raw)
    if isinstance(value, bool | int | float | str):  # an instance of a subclass
        base = next(kind for kind in (bool, int, float, str) if isinstance(value, kind))
        return encoded(base(value), raw)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return _object({each.name: getattr(value, each.name) for each in fields}, raw)
    pandas = sys.modules.get("pandas")  # a cell with a frame has imported it
    if pandas is not None and isinstance(value, pandas.DataFrame):
        from wasm_kernel_agent.codecs import host_tables

        return {_MARK: "table", "value": host_tables.described(value, raw)}
    return _simple(value, raw)


def _simple(value: Any, raw: bytearray) -> Json:
    if isinstance(value, _TIMES):
        return value.isoformat()
    if isinstance(value, _TEXTS):
        return str(value)
    if hasattr(value, "dtype") and getattr(value, "shape", None) == ():  # a number of numpy's type
        plain = value.item()  # a longdouble is its own item
        if type(plain) is not type(value):
            return encoded(plain, raw)
    advice = ". For an array, give array.tolist()" if hasattr(value, "tolist") else ""
    raise TypeError(
        "the host takes plain data: None, numbers, texts, bytes, lists, dicts, dataclasses and "
        f"DataFrames; not {type(value).__name__}{advice}"
    )


def value_of(answer: dict[str, Any]) -> Any:
    """Returns the value of an answer of the host."""
    return _decoded(answer["value"], answer.get("raw", b""))


def _decoded(value: Json, raw: bytes) -> Any:
    if isinstance(value, list):
        return [_decoded(each, raw) for each in value]
    if not isinstance(value, dict):
        return value
    if _MARK not in value:
        return {key: _decoded(each, raw) for key, each in value.items()}
    kind, content = value[_MARK], value["value"]
    if kind == "object":
        return {key: _decoded(each, raw) for key, each in content}
    if kind in ("bytes", "table"):
        data = raw[content[0] : sum(content)]
        return data if kind == "bytes" else _table(data)
    return int(content) if kind == "int" else float(content)


def _table(data: bytes) -> Any:
    from wasm_kernel_agent.codecs import host_tables

    return host_tables.frame_of(data)
