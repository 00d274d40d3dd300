"""The calls of E2B's API, and their table."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response

from wasm_kernel.frontends.e2b import commands, files, messages
from wasm_kernel.frontends.e2b.cells import CellStream
from wasm_kernel.frontends.e2b.messages import (
    ConnectedSandbox,
    ContextFacts,
    Entries,
    Nothing,
    OneEntry,
)
from wasm_kernel.frontends.e2b.sandbox import HOME, ClientSandbox, Context, SandboxRecord
from wasm_kernel.frontends.e2b.sandboxes import Sandboxes
from wasm_kernel.frontends.http.callers import Caller, MemoryLease
from wasm_kernel.frontends.http.limits import Refusal
from wasm_kernel.frontends.http.metrics import Metrics
from wasm_kernel.policy import MIB, ExecutionPolicy, RuntimeType

_LISTED_MOST = 1_000
_ALL, _ONE = ("/sandboxes", "/v2/sandboxes"), "/sandboxes/{sandbox_id}"
_CONNECT = (f"{_ONE}/connect", f"/v2{_ONE}/connect", f"{_ONE}/resume")
_FORKED = list[messages.ForkedSandbox]
_FILE_SERVICE, _PROCESSES = "/filesystem.Filesystem", "/process.Process"
_NO_WATCHING = "Folders can't be watched here. List them instead."
_NO_INPUT = "Commands have no input here, and a client can't connect to one that runs."
_BASH = "bash"  # such a cell is a script of the sandbox's shell, which keeps no variables
_NO_SNAPSHOTS = "Snapshots and templates can't be made here. A fork copies a sandbox."
_NO_NETWORK = "The network of sandboxes is set by the server's policy here."


class Plane(Enum):
    """The part of the API that a call belongs to, which decides how it is authorized.

    Calls of `CONTROL` carry an API key; those of `CODE`, `FILES` and `RPC` are for a sandbox, and
    carry its access token. Any client may make calls of `OPEN`.
    """

    CONTROL = "sandboxes"
    CODE = "code"
    FILES = "files"
    RPC = "file service"
    OPEN = "open"


@dataclass(frozen=True)
class Operation:
    """A call of the API: `act` makes its answer.

    `body` is the type of the body, None if it has none; `answer` that of the answer.
    """

    method: str
    path: str
    plane: Plane
    act: Callable[[ApiCall], Awaitable[Any]]
    summary: str
    body: Any = None
    answer: Any = None
    status: int = 200


TABLE: list[Operation] = []
"""The calls, in order: the first one that a request matches serves it."""
_Act = Callable[["ApiCall"], Awaitable[Any]]


def _serves(
    plane: Plane, method: str, *paths: str, body: Any = None, answer: Any = None, status: int = 200
) -> Callable[[_Act], _Act]:
    """Adds a function to the table, with its docstring as the summary."""

    def add(act: _Act) -> _Act:
        rest = plane, act, act.__doc__ or "", body, answer, status
        TABLE.extend(Operation(method, path, *rest) for path in paths)
        return act

    return add


@dataclass
class ApiCall:
    """One call, and who makes it: `caller` for sandboxes, or the client of a `sandbox`."""

    operation: Operation
    params: Mapping[str, Any]
    query: Mapping[str, str]
    headers: Headers
    sandboxes: Sandboxes
    body: Any = None
    caller: Caller = field(init=False)
    sandbox: ClientSandbox = field(init=False)
    lease: MemoryLease = field(init=False)
    metrics: Metrics = field(init=False)

    async def named(self) -> ClientSandbox:
        """Returns the sandbox that the path names; raises `Refusal`."""
        return await self.sandboxes.of(self.caller, self.params["sandbox_id"])

    async def work(self, work: Callable[..., Any], *args: Any) -> Any:
        """Runs `work` on the sandbox's files, on a thread."""
        run = partial(work, self.sandbox.main, *args)
        return await self.sandboxes.host.work(self.sandbox.kept.caller, run)


# -- sandboxes


def _connected(call: ApiCall, sandbox: ClientSandbox) -> ConnectedSandbox:
    template, token = sandbox.kept.asked.template_id, sandbox.kept.token
    api, _, domain = call.headers.get("host", "").partition(".")  # a client of E2B_DOMAIN
    found = {"domain": domain} if api == "api" else {}
    return ConnectedSandbox(sandbox.name, token, token, template_id=template, **found)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _described(
    name: str, kept: SandboxRecord, policy: ExecutionPolicy, *, token: str = ""
) -> messages.SandboxDetail:
    asked = kept.asked
    on_timeout = "pause" if asked.auto_pause else "kill"
    return messages.SandboxDetail(
        sandbox_id=name,
        template_id=asked.template_id,
        started_at=_time(kept.created),
        end_at=_time(kept.ends),
        state="paused" if kept.is_paused else "running",
        metadata=asked.metadata,
        memory_mb=policy.memory_bytes // MIB,
        disk_size_mb=policy.workspace_bytes // MIB,
        cpu_count=1,
        client_id="wasm-kernel",
        envd_version=messages.ENVD_VERSION,
        envd_access_token=token,
        lifecycle=messages.Lifecycle(asked.auto_resume.enabled, on_timeout),
    )


@_serves(
    Plane.CONTROL, "POST", *_ALL, body=messages.NewSandbox, answer=ConnectedSandbox, status=201
)
async def _create(call: ApiCall) -> ConnectedSandbox:
    """Makes a sandbox."""
    return _connected(call, await call.sandboxes.create(call.caller, call.body))


@_serves(Plane.CONTROL, "GET", *_ALL, answer=list[messages.SandboxDetail])
async def _list(call: ApiCall) -> Response | list[messages.SandboxDetail]:
    """Lists the key's sandboxes."""
    query, found = call.query, await call.sandboxes.listed(call.caller)
    wanted = [tuple(map(unquote, each)) for each in parse_qsl(query.get("metadata", ""))]
    states = query.get("state", "running,paused").split(",")
    rows = [
        (kept.created, row)
        for name, kept in found
        if (row := _described(name, kept, call.sandboxes.policy)).state in states
        and all(row.metadata.get(key) == value for key, value in wanted)
        and query.get("template", row.template_id) == row.template_id
        and kept.created >= _seconds(query.get("startedAfter", ""))
    ]
    rows.sort(key=lambda pair: pair[0], reverse=query.get("order") != "asc")
    first, most = _number(query, "nextToken", 0), min(_number(query, "limit", 100), _LISTED_MOST)
    page = [row for _, row in rows[first : first + most]]
    more = {"x-next-token": str(first + most)} if len(rows) > first + most else {}
    content = msgspec.json.encode(page)
    return Response(content, headers=more, media_type="application/json")


def _number(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, "")[:10]
    return int(text) if text.isdecimal() else default


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp() if text else 0.0
    except (ValueError, OverflowError):
        raise Refusal(400, "", f"{text[:50]!r} is no time.") from None


@_serves(Plane.CONTROL, "GET", _ONE, answer=messages.SandboxDetail)
async def _get(call: ApiCall) -> messages.SandboxDetail:
    """Describes a sandbox."""
    sandbox = await call.named()
    return _described(sandbox.name, sandbox.kept, sandbox.policy, token=sandbox.kept.token)


@_serves(Plane.CONTROL, "DELETE", _ONE)
async def _kill(call: ApiCall) -> None:
    """Deletes a sandbox."""
    await call.sandboxes.kill(await call.named())


@_serves(
    Plane.CONTROL,
    "POST",
    *_CONNECT,
    body=messages.ConnectSandbox,
    answer=ConnectedSandbox,
    status=201,
)
async def _connect(call: ApiCall) -> ConnectedSandbox:
    """Lets a sandbox go on, and wakes it if it is paused."""
    sandbox, seconds = await call.named(), call.body.timeout
    await call.sandboxes.check_seconds(seconds)
    if sandbox.kept.is_paused and not call.body.memory:
        await sandbox.main.reset()
    if sandbox.kept.is_paused or seconds > sandbox.seconds_left:  # its time only grows
        await call.sandboxes.end_in(sandbox, seconds)
    return _connected(call, sandbox)


@_serves(Plane.CONTROL, "POST", f"{_ONE}/timeout", body=messages.Timeout)
async def _set_timeout(call: ApiCall) -> None:
    """Sets when a sandbox ends."""
    sandbox, seconds = await call.named(), call.body.timeout
    await call.sandboxes.check_seconds(seconds)
    if sandbox.kept.is_paused:
        raise Refusal(409, "", "This sandbox is paused; connect to it first.")
    await call.sandboxes.end_in(sandbox, seconds)


@_serves(Plane.CONTROL, "POST", f"{_ONE}/pause", body=messages.Pause)
async def _pause(call: ApiCall) -> None:
    """Puts a sandbox to sleep."""
    await call.sandboxes.pause(await call.named(), memory=call.body.memory)


@_serves(
    Plane.CONTROL, "POST", f"{_ONE}/fork", body=messages.SandboxFork, answer=_FORKED, status=201
)
async def _fork(call: ApiCall) -> list[messages.ForkedSandbox]:
    """Copies a sandbox."""
    asked = call.body
    made = await call.sandboxes.fork(await call.named(), asked.timeout, asked.count)
    return [messages.ForkedSandbox(_connected(call, each)) for each in made]


@_serves(Plane.CONTROL, "GET", f"{_ONE}/metrics", answer=list[messages.Metric])
async def _metrics(call: ApiCall) -> list[messages.Metric]:
    """Tells the resources that a sandbox uses now, if that is between ?start= and ?end=."""
    sandbox, now = await call.named(), time.time()
    if not _number(call.query, "start", 0) <= now <= _number(call.query, "end", 10**10):
        return []
    service = (await call.sandboxes.service()).sync
    info = await call.sandboxes.host.work(sandbox.kept.caller, partial(service.info, sandbox.name))
    policy = sandbox.policy
    used = 100 * info.cpu_seconds / max(now - sandbox.kept.created, 1e-3)
    metric = messages.Metric(
        timestamp=_time(now),
        timestamp_unix=int(now),
        cpu_count=1,
        cpu_used_pct=round(used, 2),
        mem_used=info.guest_bytes,
        mem_total=policy.memory_bytes,
        mem_cache=0,
        disk_used=info.disk_bytes or 0,
        disk_total=policy.workspace_bytes,
    )
    return [metric]


# -- code


@_serves(Plane.CODE, "POST", "/execute", body=messages.ExecutionRequest)
async def _execute(call: ApiCall) -> CellStream:
    """Runs a cell; the answer is lines of JSON."""
    asked: messages.ExecutionRequest = call.body
    language, code, env = asked.language, asked.code, asked.env_vars
    if asked.context_id is None and language is not None and language.lower() == _BASH:
        language, code = None, f"%%{_BASH}\n{code}"
    found = await call.sandboxes.context(call.sandbox, asked.context_id, language)
    return CellStream(call.sandbox, found, code, call.lease, call.metrics, env=env)


def _facts(context: Context) -> ContextFacts:
    return ContextFacts(context.name, context.language.value, context.folder)


@_serves(Plane.CODE, "GET", "/contexts", answer=list[ContextFacts])
async def _contexts(call: ApiCall) -> list[ContextFacts]:
    """Lists contexts, also the default one of JavaScript, which its first cell makes."""
    found = [_facts(each) for each in call.sandbox.contexts.values()]
    language = RuntimeType.JAVASCRIPT
    if language not in call.sandbox.kept.defaults:
        found.insert(1, ContextFacts(language.value, language.value, HOME))
    return found


@_serves(Plane.CODE, "POST", "/contexts", body=messages.NewContext, answer=ContextFacts)
async def _new_context(call: ApiCall) -> ContextFacts:
    """Makes a context."""
    asked: messages.NewContext = call.body
    folder = files.guest_path(asked.cwd or HOME)
    return _facts(await call.sandboxes.new_context(call.sandbox, asked.language, folder))


async def _context(call: ApiCall) -> Context:
    return await call.sandboxes.context(call.sandbox, call.params["context_id"], None)


@_serves(Plane.CODE, "DELETE", "/contexts/{context_id}")
async def _remove_context(call: ApiCall) -> None:
    """Removes a context."""
    await call.sandboxes.remove_context(call.sandbox, await _context(call))


@_serves(Plane.CODE, "POST", "/contexts/{context_id}/restart")
async def _restart_context(call: ApiCall) -> None:
    """Discards a context's variables."""
    context = await _context(call)
    await context.session.reset()
    await context.enter_folder()


# -- files


@_serves(Plane.FILES, "GET", "/health")
async def _health(_: ApiCall) -> None:
    """Succeeds if the sandbox runs."""


@_serves(Plane.FILES, "GET", "/files")
async def _read(call: ApiCall) -> Response:
    """Downloads the file of ?path=."""
    data = await call.work(files.read, call.query.get("path", ""))
    if not call.lease.reserve(len(data)):
        raise Refusal(503, "reply_bytes", "Too many large files at once.")
    return Response(data, media_type="application/octet-stream")


@_serves(Plane.FILES, "POST", "/files", body=bytearray, answer=list[messages.WriteInfo])
async def _write(call: ApiCall) -> list[messages.WriteInfo]:
    """Uploads files."""
    parts = await files.uploaded(call.headers, call.query.get("path"), call.body)
    paths = [await call.work(files.write, path, data) for path, data in parts]
    return [messages.WriteInfo(path.rpartition("/")[2], path) for path in paths]


@_serves(Plane.RPC, "POST", f"{_FILE_SERVICE}/ListDir", body=messages.ListFolder, answer=Entries)
async def _list_folder(call: ApiCall) -> Response:
    """Lists a folder."""

    def listed(session: Any) -> bytes:
        return msgspec.json.encode(
            Entries(files.list_folder(session, call.body.path, call.body.depth))
        )

    return Response(await call.work(listed), media_type="application/json")


@_serves(Plane.RPC, "POST", f"{_FILE_SERVICE}/Stat", body=messages.OnePath, answer=OneEntry)
async def _stat(call: ApiCall) -> OneEntry:
    """Describes a file or folder."""
    return OneEntry(await call.work(files.describe, call.body.path))


@_serves(Plane.RPC, "POST", f"{_FILE_SERVICE}/MakeDir", body=messages.OnePath, answer=OneEntry)
async def _make_folder(call: ApiCall) -> OneEntry:
    """Makes a folder."""
    return OneEntry(await call.work(files.make_folder, call.body.path))


@_serves(Plane.RPC, "POST", f"{_FILE_SERVICE}/Move", body=messages.Move, answer=OneEntry)
async def _move(call: ApiCall) -> OneEntry:
    """Renames a file or folder."""
    return OneEntry(await call.work(files.move, call.body.source, call.body.destination))


@_serves(Plane.RPC, "POST", f"{_FILE_SERVICE}/Remove", body=messages.OnePath, answer=Nothing)
async def _remove(call: ApiCall) -> Nothing:
    """Deletes a file or folder."""
    await call.work(files.remove, call.body.path)
    return Nothing()


# -- refused


@_serves(Plane.RPC, "POST", f"{_PROCESSES}/Start", body=bytearray)
async def _start(call: ApiCall) -> Response:
    """Runs a command; the answer is a stream of Connect."""
    asked = commands.start_of(call.body)
    if words := commands.check(asked):
        return Response(commands.refusing(words), media_type=commands.STREAM)
    return commands.CommandStream(call.sandbox, asked, call.lease, call.metrics)


@_serves(Plane.RPC, "POST", f"{_PROCESSES}/List", body=Nothing)
async def _running(call: ApiCall) -> dict[str, Any]:
    """Lists the running commands, by their numbers alone."""
    return {"processes": [{"pid": number} for number in call.sandbox.commands]}


@_serves(Plane.RPC, "POST", f"{_PROCESSES}/SendSignal", body=messages.Signal, answer=Nothing)
async def _signal(call: ApiCall) -> Nothing:
    """Ends a command."""
    found = call.sandbox.commands.get(call.body.process.pid)
    if found is None:
        raise Refusal(404, "", "There is no such command.")
    found.stop()
    return Nothing()


@_serves(Plane.RPC, "POST", f"{_FILE_SERVICE}/{{call}}", f"{_PROCESSES}/{{call}}")
async def _unimplemented(call: ApiCall) -> Response:
    """Refuses to watch folders, and to connect to commands."""
    words = _NO_WATCHING if call.operation.path.startswith(_FILE_SERVICE) else _NO_INPUT
    if not call.headers.get("content-type", "").startswith(commands.STREAM):
        raise Refusal(501, "", words)
    return Response(commands.refusing(words), media_type=commands.STREAM)


@_serves(Plane.CONTROL, "POST", f"{_ONE}/snapshots")
@_serves(Plane.CONTROL, "PUT", f"{_ONE}/network")
async def _refused(call: ApiCall) -> None:
    """Refuses snapshots and networks."""
    raise Refusal(400, "", _NO_NETWORK if call.operation.method == "PUT" else _NO_SNAPSHOTS)
