"""`AgentSandbox`: a sandbox for the code of a framework's agent, with the agent's tools."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import json
import keyword
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from wasm_kernel import HostFunction, Sandbox, SandboxResult, create_sandbox
from wasm_kernel.integrations.guest_commands import GuestCommands

Tool = Callable[..., Any]
REQUIRED = inspect.Parameter.empty

_START = "before the first command"
_VARIABLES = "_wasm_kernel_variables"
_SET = f"""
def _wasm_kernel_set():
    import json
    found = {{}}
    for name, kind, value in {_VARIABLES}():
        found.setdefault(name, (kind, []))[1].append(value)
    for name, (kind, each) in found.items():
        value = each[0] if kind == "value" else "".join(each)
        globals()[name] = json.loads(value) if kind == "json" else value
_wasm_kernel_set()
del _wasm_kernel_set
"""
_PIECE = 1_000_000  # characters of a text that one call passes
_AS_GLOBALS = (
    "import builtins as _b; globals().update({{n: getattr(_b, n) for n in {names!r}}}); del _b"
)


_calling: contextvars.ContextVar[object] = contextvars.ContextVar("_calling", default=None)
"""The sandbox of the tool that runs."""


class AgentSandbox:
    """A sandbox whose cells call an agent's tools. Any thread may use it; close it.

    Args:
        sandbox: The sandbox, which its maker closes; by default one of its own, in a folder that is
            deleted with it.
        options: The options of `create_sandbox` for a sandbox of its own, such as `policy`.
    """

    def __init__(self, sandbox: Sandbox | None, options: Mapping[str, Any]) -> None:
        self._owns = sandbox is None
        with contextlib.ExitStack() as ending:
            if sandbox is None:
                if "workspace" not in options:
                    folder = tempfile.mkdtemp(prefix="wasm-kernel-agent-")
                    ending.callback(shutil.rmtree, folder, ignore_errors=True)
                    # within it, as private state may lie beside a workspace
                    options = {**options, "workspace": Path(folder, "workspace")}
                sandbox = create_sandbox(**options)
                ending.callback(sandbox.close)
            self.sandbox = sandbox
            self._ending = ending.pop_all()
        self._variables: Mapping[str, Any] = {}
        self._answers: list[Any] = []
        self._context = contextvars.copy_context()
        self._lock = threading.RLock()
        self.offer({})

    def offer(self, tools: Mapping[str, HostFunction]) -> None:
        """Makes these tools globals of cells."""
        own = HostFunction(self._pieces, name=_VARIABLES, recorded=False)
        self.sandbox.offer_functions([own, *tools.values()])
        if tools:
            self.run_own(_AS_GLOBALS.format(names=[*tools]))

    def tool(
        self, name: str, call: Tool, like: inspect.Signature, *, doc: str = ""
    ) -> HostFunction:
        """Returns a tool for `offer`, with the parameters of `like`, each of any type.

        It gets its arguments by name, as frameworks call tools. It runs in the context of the
        thread that calls `run`, as frameworks keep settings there. It may be `async`.
        """

        def called(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = _by_name(like.bind(*args, **kwargs))
            context = self._context.copy()
            context.run(_calling.set, self)
            value = context.run(call, *args, **kwargs)
            return context.run(asyncio.run, value) if inspect.iscoroutine(value) else value

        untyped = [
            each.replace(annotation=inspect.Parameter.empty) for each in like.parameters.values()
        ]
        vars(called)["__signature__"] = inspect.Signature(untyped)
        called.__doc__ = doc or inspect.getdoc(call)
        return HostFunction(called, name=name, seconds=600.0)

    def answer_tool(
        self, name: str, call: Tool, like: inspect.Signature, *, doc: str = ""
    ) -> HostFunction:
        """Returns a tool whose value is the answer of the cell, which it ends."""

        def answered(*args: Any, **kwargs: Any) -> None:
            value = call(*args, **kwargs)
            if not self._answers:  # a cell may go on, and give gigabytes of them
                self._answers.append(value)
            raise RuntimeError("this cell has given its final answer")

        return replace(self.tool(name, answered, like, doc=doc), recorded=False)

    def set_variables(self, variables: Mapping[str, Any]) -> None:
        """Sets variables of cells from plain data; lists and dicts may be large, as texts may.

        Raises:
            TypeError: a value is not plain data.
            ValueError: a name is not a Python identifier.
        """
        for name in variables:
            if not str(name).isidentifier() or keyword.iskeyword(name):
                raise ValueError(f"a variable can't be named {name!r} in Python")
        with self._turn():
            self._variables = variables
            try:
                result = self.run_own(_SET)
            finally:
                self._variables = {}
        if result.error is not None:
            raise TypeError(f"a variable can't be passed to the sandbox: {result.error.evalue}")

    def _pieces(self) -> Iterator[tuple[str, str, Any]]:
        """Yields the names, kinds and values of the variables, long ones as text in pieces."""
        for name, value in self._variables.items():
            kind, sent = _sent(value)
            if kind == "value":
                yield name, kind, sent
            else:
                for at in range(0, len(sent) or 1, _PIECE):
                    yield name, kind, sent[at : at + _PIECE]

    def run(self, code: str) -> SandboxResult:
        """Runs a cell. Raises `RuntimeError` in a tool that a cell of this sandbox waits for."""
        with self._turn():
            return self.sandbox.execute(code)

    def run_for_answer(self, code: str) -> tuple[SandboxResult, list[Any]]:
        """Runs a cell; returns its answer, too, if it gives one. Raises as `run`."""
        with self._turn():
            self._answers = []
            return self.sandbox.execute(code), self._answers

    async def arun(self, code: str) -> SandboxResult:
        """Runs a cell, and awaits it; cancelling it interrupts the cell. Raises as `run`.

        Callers that offer tools await one before they begin another.
        """
        self._check_caller()
        self._context = contextvars.copy_context()
        return await self.sandbox.aexecute(code)

    def _check_caller(self) -> None:
        if _calling.get() is self:
            raise RuntimeError("a tool can't run code in the sandbox whose code has called it")

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Waits for the cells of other threads; tools then run in this thread's context."""
        self._check_caller()
        with self._lock:
            self._context = contextvars.copy_context()
            yield

    def run_own(self, code: str) -> SandboxResult:
        """Runs a cell of the integration's own, which leaves no output and no line of history."""
        with self._turn():
            return self.sandbox.execute(code, silent=True, store_history=False)

    def commands(self) -> GuestCommands:
        """Returns the commands and files of the sandbox, in place of the agent's tools.

        In a sandbox of its own each command finds the interpreter as it is now.
        """
        if not self._owns:
            return GuestCommands(self.sandbox)
        self.sandbox.checkpoint(_START)
        return GuestCommands(self.sandbox, _START)

    def close(self) -> None:
        """Closes a sandbox of its own, and deletes its folder. Safe to call twice."""
        self._ending.close()


class SandboxOwner:
    """An interface that has an `AgentSandbox`: use it as a `with` block, or close it."""

    _agent: AgentSandbox

    def close(self) -> None:
        """Closes a sandbox of its own, and deletes its folder. Safe to call twice."""
        self._agent.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sent(value: Any) -> tuple[str, Any]:
    """Returns how a variable is sent, and its value: long JSON as text."""
    if isinstance(value, str):
        return "text", value
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        text = json.dumps(value, allow_nan=False)
        if len(text) > _PIECE and json.loads(text) == value:
            return "json", text
    return "value", value


def signature_of(defaults: Mapping[str, Any]) -> inspect.Signature:
    """Returns the signature of parameters by their defaults; `REQUIRED` ones have none."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = sorted(defaults, key=lambda name: defaults[name] is not REQUIRED)
    return inspect.Signature(
        [inspect.Parameter(name, kind, default=defaults[name]) for name in names]
    )


def _by_name(bound: inspect.BoundArguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns arguments by name where the signature allows that, and others by position."""
    kinds = {name: each.kind for name, each in bound.signature.parameters.items()}
    if {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL} & {*kinds.values()}:
        return bound.args, bound.kwargs
    named = {**bound.arguments}
    for name, kind in kinds.items():
        if kind is inspect.Parameter.VAR_KEYWORD:
            named |= named.pop(name, {})
    return (), named
