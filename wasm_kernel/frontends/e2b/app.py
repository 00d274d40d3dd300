"""`SandboxApi`: the application that serves E2B's API.

A request passes the limits of its client before anything reads it. Its `Operation` says which
client it needs, how its body is read, and the form of its errors.
"""

from __future__ import annotations

import errno
import re
from collections import Counter
from typing import Any

import msgspec
from mcp.server.transport_security import TransportSecurityMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match, Route
from starlette.types import Message, Receive, Scope, Send

from wasm_kernel.errors import LimitReached, SandboxClosed, SessionInUse, WasmKernelError
from wasm_kernel.frontends.e2b import messages
from wasm_kernel.frontends.e2b.calls import ApiCall, Operation, Plane
from wasm_kernel.frontends.e2b.cells import CellStream
from wasm_kernel.frontends.e2b.files import FILE_BYTES, too_large
from wasm_kernel.frontends.e2b.operations import TABLE
from wasm_kernel.frontends.e2b.sandboxes import GONE, Sandboxes
from wasm_kernel.frontends.http.callers import (
    ENDING,
    Caller,
    MemoryLease,
    client_name,
    key_name,
)
from wasm_kernel.frontends.http.limits import SMALL_BYTES, ClientLimits, Refusal, read_body
from wasm_kernel.frontends.http.serving import Address
from wasm_kernel.linux.channel import marks_in
from wasm_kernel.policy import MIB
from wasm_kernel.result import readable

REQUESTS = 500
"""The most requests of one client that are open at once: it may never read the answers."""
_JSON_BYTES, _JSON_VALUES = 16 * MIB, 10_000
_PORT_OF_SANDBOX = re.compile(r"\d+-([^.]+)\.")
_TOKENS = ("x-access-token", "e2b-traffic-access-token")
_CODES = {400: "invalid_argument", 401: "unauthenticated", 404: "not_found"}
_CODES |= {409: "already_exists", 501: "unimplemented", 502: "unavailable", 503: "unavailable"}
_CODES |= dict.fromkeys((413, 429, 507), "resource_exhausted")
"""The codes of Connect, the protocol of the file service, by status."""
_OF_LIMITS = {"sessions": 429, "owner_sessions": 429, "queue": 429, "disk_bytes": 507}
_OF_LIMITS |= {"workspace_bytes": 507, "workspace_files": 507}
_OF_ERRNO = {errno.ENOENT: 404, errno.EEXIST: 409, errno.ENOSPC: 507, errno.EDQUOT: 507}
_OF_ERRNO |= {errno.EFBIG: 413}
_NO_CALL = "There is no such call here: {method} {path}. /openapi.json lists those that there are."
_UNREAD = "Too many large answers at once. Read those that have begun."
_NO_KEY = "The API key is not one of this server's tokens."


class SandboxApi:
    """The application; `address` is the server's."""

    def __init__(self, sandboxes: Sandboxes, address: Address, clients: ClientLimits) -> None:
        self._sandboxes = sandboxes
        self._clients = clients
        self._open: Counter[str] = Counter()
        is_open = clients.tokens is None  # web pages that rebind names are refused then
        self._security = TransportSecurityMiddleware(address.security if is_open else None)
        # the routes only find the call of a path; `_serve` serves it
        self._routes = [(Route(each.path, each.act, methods=[each.method]), each) for each in TABLE]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves a request."""
        request, has_begun, operation = Request(scope, receive), False, None

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            if (refused := await self._security.validate_request(request)) is not None:
                await refused(scope, receive, send)
                return
            operation, params = self._operation(scope)
            await self._serve(operation, params, request, watched)
        except Exception as problem:
            refusal = _refusal_of(problem)
            if has_begun or refusal is None:
                raise
            if refusal.limit:
                self._clients.metrics.refused(refusal.limit)
            plane = operation.plane if operation is not None else Plane.CONTROL
            await _refusal_response(plane, refusal)(scope, receive, send)

    def _operation(self, scope: Scope) -> tuple[Operation, dict[str, Any]]:
        for route, operation in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                return operation, found["path_params"]
        words = _NO_CALL.format(method=scope["method"], path=scope["path"][:100])
        raise Refusal(404, words)

    async def _serve(
        self, operation: Operation, params: dict[str, Any], request: Request, send: Send
    ) -> None:
        call = ApiCall(operation, params, request.query_params, request.headers, self._sandboxes)
        client = client_name("", request.scope)
        try:
            if operation.plane is Plane.CONTROL:
                call.caller = self._caller(request)
                client = self._client(call.caller)
            elif operation.plane is not Plane.OPEN:
                # clients without the header send requests to PORT-ID.DOMAIN
                named = _PORT_OF_SANDBOX.match(request.headers.get("host", ""))
                name = request.headers.get("e2b-sandbox-id") or (named[1] if named else "")
                tokens = [request.headers.get(each, "") for each in _TOKENS]
                call.sandbox = await self._sandboxes.running(name, tokens)
                client = self._client(call.sandbox.kept.caller)
        finally:
            self._clients.count(client)
        if self._open[client] >= REQUESTS:
            words = f"{REQUESTS} requests of one client may be open at once. Read their answers."
            raise Refusal(429, words, "open_requests")
        call.lease = lease = self._clients.lease(client)
        call.metrics = self._clients.metrics
        self._open[client] += 1
        try:
            await self._act(call, request, send)
        finally:
            lease.end()
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    async def _act(self, call: ApiCall, request: Request, send: Send) -> None:
        """Serves a call that its client's limits allow."""
        operation = call.operation
        try:
            body = () if operation.body is None else (await _body(operation, call.lease, request),)
            response = _response(operation, await operation.act(call, *body))
            if not call.lease.reserve(len(response.body)):  # its client may never read it
                raise Refusal(503, _UNREAD, "reply_bytes")
            await response(request.scope, request.receive, send)
            if isinstance(response, CellStream) and response.is_elsewhere:
                await self._sandboxes.leave(call.sandbox)
        except (WasmKernelError, OSError) as problem:
            if operation.plane in (Plane.CONTROL, Plane.OPEN):
                raise
            name, words = call.sandbox.name, str(problem)
            if call.sandbox.is_gone:
                raise Refusal(502, f"{GONE.format(name=name)}: {words}") from None
            if isinstance(problem, SandboxClosed) and words != ENDING:  # a context was removed
                raise Refusal(404, words) from None
            if isinstance(problem, SessionInUse):  # another server knows newer facts
                await self._sandboxes.leave(call.sandbox)
            raise

    def _client(self, caller: Caller) -> str:
        """Returns the name that limits count by; a key that nothing checks is not a name."""
        return caller.owner if self._clients.tokens is None else caller.credential

    def _caller(self, request: Request) -> Caller:
        """Returns the client that makes a call about sandboxes; raises `Refusal`."""
        key = request.headers.get("x-api-key", "")
        key = key or request.headers.get("authorization", "").partition(" ")[2]
        if self._clients.tokens is None:  # any key is good, and has its own sandboxes
            return Caller("", key_name(key), client_name("", request.scope))
        caller = self._clients.tokens.caller_of(key)
        if caller is None:
            raise Refusal(401, _NO_KEY)
        return caller


async def _body(operation: Operation, lease: MemoryLease, request: Request) -> Any:
    """Returns the body of a request as its operation takes it; raises `Refusal`."""
    is_upload = operation.plane is Plane.FILES
    most = FILE_BYTES + SMALL_BYTES if is_upload else _JSON_BYTES
    if operation.plane is Plane.CONTROL:
        most = SMALL_BYTES  # a sandbox keeps its metadata
    words = f"A request like this may have {readable(most)}."
    large = too_large() if is_upload else Refusal(413, words, "request_bytes")
    content = await read_body(lease, request, large, most, to_the_end=True)
    if not is_upload and marks_in(content, _JSON_VALUES) > _JSON_VALUES:
        words = f"A request may hold {_JSON_VALUES:,} values of JSON."
        raise Refusal(413, words, "request_values")
    if operation.body is bytearray:
        return content
    return msgspec.json.decode(content or b"{}", type=operation.body)


def _response(operation: Operation, answer: Any) -> Response:
    if isinstance(answer, Response):
        return answer
    if answer is None:
        return Response(status_code=204)
    content = msgspec.json.encode(answer)
    # for a load balancer, which can't read the body
    named = {"e2b-sandbox-id": answer.sandbox_id} if isinstance(answer, messages.Sandbox) else {}
    return Response(content, operation.status, named, media_type="application/json")


def _refusal_of(problem: Exception) -> Refusal | None:
    """Returns the refusal for an error; None for an error of this program."""
    status, limit, words = 0, "", str(problem)
    match problem:
        case Refusal():
            return problem
        case LimitReached():
            status, limit = _OF_LIMITS.get(problem.limit, 503), problem.limit
        case SandboxClosed():
            status = 503 if words == ENDING else 502
        case SessionInUse():
            status = 503
        case msgspec.DecodeError() | UnicodeError() | RecursionError():
            status, words = 400, f"The request can't be read: {problem}"
        case WasmKernelError():
            status = 400 if isinstance(problem, ValueError) else 500
        case OSError():
            status, words = _OF_ERRNO.get(problem.errno or 0, 400), problem.strerror or words
    return Refusal(status, words, limit) if status else None


def _refusal_response(plane: Plane, refusal: Refusal) -> Response:
    """Returns a refusal as an answer in the form that the clients of a plane read."""
    status, words, headers = refusal.status, str(refusal), dict(refusal.headers)
    if refusal.limit and refusal.limit != "requests":
        headers["should-retry"] = "false"  # nothing ends by itself; words help sooner
    if plane is Plane.CODE:
        return PlainTextResponse(words, status, headers)
    code = _CODES.get(status, "internal") if plane is Plane.RPC else status
    content = msgspec.json.encode(messages.Error(code, words))
    return Response(content, status, headers, media_type="application/json")
