"""The table of E2B's API: what each call does."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar, get_type_hints
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.responses import Response

from wasm_kernel.frontends.e2b import commands, files, messages, openapi
from wasm_kernel.frontends.e2b.calls import ApiCall, Operation, Plane
from wasm_kernel.frontends.e2b.cells import CellStream
from wasm_kernel.frontends.e2b.sandbox import HOME, ClientSandbox, CodeContext, SandboxRecord
from wasm_kernel.frontends.http.limits import Refusal
from wasm_kernel.policy import MIB, ExecutionPolicy, RuntimeType
from wasm_kernel.service.async_session import AsyncSession

_LISTED_MOST = 1_000
_ALL, _ONE = ("/sandboxes", "/v2/sandboxes"), "/sandboxes/{sandboxID}"
_LIST_QUERY = ("metadata", "state", "order", "startedAfter", "template", "nextToken", "limit")
_CONNECT = (f"{_ONE}/connect", f"/v2{_ONE}/connect", f"{_ONE}/resume")
_FILE_SERVICE, _PROCESSES = "/filesystem.Filesystem", "/process.Process"
_NO_WATCHING = "Folders can't be watched here. List them instead."
_NO_TERMINAL = "Commands have no terminal and no input here. Write the input into the script."
_NO_INPUT = "Commands have no input here, and a client can't connect to one that runs."
_BASH = "bash"  # such a cell is a script of the sandbox's shell, which keeps no variables
_NO_SNAPSHOTS = "Snapshots and templates can't be made here. A fork copies a sandbox."
_NO_NETWORK = "The network of sandboxes is set by the server's policy here."


TABLE: list[Operation] = []
"""The calls, in order: the first one that a request matches serves it."""
_Act = TypeVar("_Act", bound=Callable[..., Any])


def _serves(
    plane: Plane,
    method: str,
    *paths: str,
    answer: Any = None,
    status: int = 200,
    query: tuple[str, ...] = (),
) -> Callable[[_Act], _Act]:
    """Adds a function to the table: its docstring is the summary.

    Its annotations are the types of the body and of the answer, unless that is a `Response`.
    """

    def add(act: _Act) -> _Act:
        _, *bodies = hints = get_type_hints(act)
        found = hints["return"] if answer is None else answer
        body = hints[bodies[0]] if bodies[0] != "return" else None
        is_plain = isinstance(found, type) and issubclass(found, Response | None)
        rest = plane, act, act.__doc__ or "", body, None if is_plain else found, status, query
        TABLE.extend(Operation(method, path, *rest) for path in paths)
        return act

    return add


# -- sandboxes


def _connected(call: ApiCall, sandbox: ClientSandbox) -> messages.Sandbox:
    template, token = sandbox.kept.asked.template_id, sandbox.kept.token
    api, _, domain = call.headers.get("host", "").partition(".")  # a client of E2B_DOMAIN
    found = {"domain": domain} if api == "api" else {}
    return messages.Sandbox(sandbox.name, token, token, template_id=template, **found)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _described(name: str, kept: SandboxRecord, policy: ExecutionPolicy) -> messages.ListedSandbox:
    return messages.ListedSandbox(
        sandbox_id=name,
        template_id=kept.asked.template_id,
        started_at=_time(kept.created),
        end_at=_time(kept.ends),
        state="paused" if kept.is_paused else "running",
        metadata=kept.asked.metadata,
        memory_mb=policy.memory_bytes // MIB,
        disk_size_mb=policy.workspace_bytes // MIB,
        cpu_count=1,
    )


@_serves(Plane.CONTROL, "POST", *_ALL, status=201)
async def _create(call: ApiCall, asked: messages.NewSandbox) -> messages.Sandbox:
    """Makes a sandbox."""
    return _connected(call, await call.sandboxes.create(call.caller, asked))


@_serves(Plane.CONTROL, "GET", *_ALL, answer=list[messages.ListedSandbox], query=_LIST_QUERY)
async def _list(call: ApiCall) -> Response:
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
        raise Refusal(400, f"{text[:50]!r} is not a time.") from None


@_serves(Plane.CONTROL, "GET", _ONE)
async def _get(call: ApiCall) -> messages.SandboxDetail:
    """Describes a sandbox."""
    sandbox = await call.named()
    asked, token = sandbox.kept.asked, sandbox.kept.token
    on_timeout = "pause" if asked.auto_pause else "kill"
    lifecycle = messages.SandboxLifecycle(asked.auto_resume.enabled, on_timeout)
    listed = _described(sandbox.name, sandbox.kept, sandbox.policy)
    facts = msgspec.structs.asdict(listed)
    return messages.SandboxDetail(**facts, envd_access_token=token, lifecycle=lifecycle)


@_serves(Plane.CONTROL, "DELETE", _ONE)
async def _kill(call: ApiCall) -> None:
    """Deletes a sandbox."""
    await call.sandboxes.kill(await call.named())


@_serves(Plane.CONTROL, "POST", *_CONNECT, status=201)
async def _connect(call: ApiCall, asked: messages.ConnectSandbox) -> messages.Sandbox:
    """Lets a sandbox go on, and wakes it if it is paused."""
    sandbox = await call.named()
    await call.sandboxes.check_seconds(asked.timeout)
    if sandbox.kept.is_paused and not asked.memory:
        await sandbox.main.reset()
    if sandbox.kept.is_paused or asked.timeout > sandbox.seconds_left:  # its time only grows
        await call.sandboxes.end_in(sandbox, asked.timeout)
    return _connected(call, sandbox)


@_serves(Plane.CONTROL, "POST", f"{_ONE}/timeout")
async def _set_timeout(call: ApiCall, asked: messages.SandboxTimeoutRequest) -> None:
    """Sets when a sandbox ends."""
    sandbox = await call.named()
    await call.sandboxes.check_seconds(asked.timeout)
    if sandbox.kept.is_paused:
        raise Refusal(409, "This sandbox is paused; connect to it first.")
    await call.sandboxes.end_in(sandbox, asked.timeout)


@_serves(Plane.CONTROL, "POST", f"{_ONE}/pause")
async def _pause(call: ApiCall, asked: messages.SandboxPauseRequest) -> None:
    """Puts a sandbox to sleep."""
    await call.sandboxes.pause(await call.named(), memory=asked.memory)


@_serves(Plane.CONTROL, "POST", f"{_ONE}/fork", status=201)
async def _fork(
    call: ApiCall, asked: messages.SandboxForkRequest
) -> list[messages.SandboxForkResult]:
    """Copies a sandbox."""
    made = await call.sandboxes.fork(await call.named(), asked.timeout, asked.count)
    return [messages.SandboxForkResult(_connected(call, each)) for each in made]


@_serves(Plane.CONTROL, "GET", f"{_ONE}/metrics", query=("start", "end"))
async def _metrics(call: ApiCall) -> list[messages.SandboxMetric]:
    """Tells the resources that a sandbox uses now, if that is between ?start= and ?end=."""
    sandbox, now = await call.named(), time.time()
    end = _number(call.query, "end", 10**10) + 1  # clients cut off the fraction
    if not _number(call.query, "start", 0) <= now <= end:
        return []
    service = (await call.sandboxes.service()).sync
    info = await call.sandboxes.host.work(sandbox.kept.caller, service.info, sandbox.name)
    policy = sandbox.policy
    used = 100 * info.cpu_seconds / max(now - sandbox.kept.created, 1e-3)
    metric = messages.SandboxMetric(
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


@_serves(Plane.CODE, "POST", "/execute")
async def _execute(call: ApiCall, asked: messages.ExecutionRequest) -> CellStream:
    """Runs a cell; the answer is lines of JSON."""
    language, code, env = asked.language, asked.code, asked.env_vars
    if asked.context_id is None and language is not None and language.lower() == _BASH:
        language, code = None, f"%%{_BASH}\n{code}"
    found = await call.sandboxes.context(call.sandbox, asked.context_id, language)
    return CellStream(call, found, code, env=env)


def _facts(context: CodeContext) -> messages.Context:
    return messages.Context(context.name, context.language.value, context.folder)


@_serves(Plane.CODE, "GET", "/contexts")
async def _contexts(call: ApiCall) -> list[messages.Context]:
    """Lists contexts, also the default one of JavaScript, which its first cell makes."""
    found = [_facts(each) for each in call.sandbox.contexts.values()]
    language = RuntimeType.JAVASCRIPT
    if language not in call.sandbox.kept.defaults:
        found.insert(1, messages.Context(language.value, language.value, HOME))
    return found


@_serves(Plane.CODE, "POST", "/contexts")
async def _new_context(call: ApiCall, asked: messages.CreateContext) -> messages.Context:
    """Makes a context."""
    folder = files.guest_path(asked.cwd or HOME)
    return _facts(await call.sandboxes.new_context(call.sandbox, asked.language, folder))


async def _context(call: ApiCall) -> CodeContext:
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


@_serves(Plane.FILES, "GET", "/files", query=("path",))
async def _read(call: ApiCall) -> Response:
    """Downloads the file of ?path=."""
    data = await call.work(files.read, call.query.get("path", ""))
    return Response(data, media_type="application/octet-stream")


@_serves(Plane.FILES, "POST", "/files", query=("path",))
async def _write(call: ApiCall, content: bytearray) -> list[messages.WriteInfo]:
    """Uploads files."""
    parts = await files.uploaded(call.headers, call.query.get("path"), content)
    paths = [await call.work(files.write, path, data) for path, data in parts]
    return [messages.WriteInfo(path.rpartition("/")[2], path) for path in paths]


def _serve_files(name: str, work: Callable[[AsyncSession, Any], Any]) -> None:
    """Adds a call of the file service, which `work` does on a session's files."""
    asked, answer = (get_type_hints(work)[each] for each in ("asked", "return"))

    async def act(call: ApiCall, body: Any) -> Response:
        made = await call.work(lambda session: msgspec.json.encode(work(session, body)))
        return Response(made, media_type="application/json")

    path, summary = f"{_FILE_SERVICE}/{name}", (work.__doc__ or "").partition(";")[0]
    TABLE.append(Operation("POST", path, Plane.RPC, act, summary, asked, answer))


_serve_files("ListDir", files.list_folder)
_serve_files("Stat", files.describe)
_serve_files("MakeDir", files.make_folder)
_serve_files("Move", files.move)
_serve_files("Remove", files.remove)


# -- commands, and refused calls


@_serves(Plane.RPC, "POST", f"{_PROCESSES}/Start")
async def _start(call: ApiCall, content: bytearray) -> Response:
    """Runs a command; the answer is a stream of Connect."""
    asked = commands.start_of(content)
    if asked.pty is not None or asked.stdin:
        return Response(commands.refusing(_NO_TERMINAL), media_type=commands.STREAM)
    told = call.headers.get("connect-timeout-ms", "")[:10]  # may be left out
    seconds = int(told) / 1000 if told.isdecimal() else None
    return commands.CommandStream(call, asked, seconds)


@_serves(Plane.RPC, "POST", f"{_PROCESSES}/List")
async def _running(call: ApiCall, _: messages.Nothing) -> dict[str, Any]:
    """Lists the running commands, by their numbers alone."""
    return {"processes": [{"pid": number} for number in call.sandbox.commands]}


@_serves(Plane.RPC, "POST", f"{_PROCESSES}/SendSignal")
async def _signal(call: ApiCall, asked: messages.SendSignalRequest) -> messages.Nothing:
    """Ends a command."""
    stop = call.sandbox.commands.get(asked.process.pid)
    if stop is None:
        raise Refusal(404, "There is no such command.")
    stop()
    return messages.Nothing()


@_serves(Plane.RPC, "POST", f"{_FILE_SERVICE}/{{call}}", f"{_PROCESSES}/{{call}}")
async def _unimplemented(call: ApiCall) -> Response:
    """Refuses to watch folders, and to connect to commands."""
    words = _NO_WATCHING if call.operation.path.startswith(_FILE_SERVICE) else _NO_INPUT
    if not call.headers.get("content-type", "").startswith(commands.STREAM):
        raise Refusal(501, words)
    return Response(commands.refusing(words), media_type=commands.STREAM)


@_serves(Plane.OPEN, "GET", "/openapi.json")
async def _describe(_: ApiCall) -> dict[str, Any]:
    """Describes this API."""
    return _description()


@functools.cache  # anyone may ask for it, and it takes milliseconds
def _description() -> dict[str, Any]:
    return openapi.document(TABLE)


@_serves(Plane.CONTROL, "POST", f"{_ONE}/snapshots")
@_serves(Plane.CONTROL, "PUT", f"{_ONE}/network")
async def _refused(call: ApiCall) -> None:
    """Refuses snapshots and networks."""
    raise Refusal(400, _NO_NETWORK if call.operation.method == "PUT" else _NO_SNAPSHOTS)
