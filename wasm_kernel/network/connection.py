"""`Connection`: one connection of a cell, whose requests are judged and made anew."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import Any

import h11
import httpcore

from wasm_kernel.errors import describe
from wasm_kernel.network.exchanges import Exchanges, RecordedAnswer, RequestDigest
from wasm_kernel.network.judge import Judge
from wasm_kernel.network.request import (
    BadRequest,
    Headers,
    RequestHead,
    RequestReader,
    answer_headers,
)
from wasm_kernel.network.secrets import RequestSecrets, has_placeholder
from wasm_kernel.network.upstream import Upstream
from wasm_kernel.network_rules import NetworkRule

PIECE_BYTES = 1024 * 1024
"""The most bytes of one piece, to or from a cell."""
SESSION_BYTES = 8 * PIECE_BYTES
"""The bytes of answers that wait in a session, beside one part for each connection."""

_PARSED_BYTES = 64 * 1024  # bytes parsed at a time: small chunks must not keep others waiting
_END_SECONDS = 1.0  # for a request that is ended
_PARTS_MOST = 4  # parts of a request's body that wait to be sent
_WITHOUT_BODY = (204, 304)
_LONG = "a request and its answer may have {most:,} bytes (request_bytes of the network's rule)"
_SLOW = "a request and its answer may take {seconds:g} seconds (seconds of the network's rule)"
_GONE = "the connection is closed"
_DIFFERS = "the name for the secure connection is not the one that was connected to"

Log = Callable[..., None]


class Connection:
    """A connection from a cell to one host. Only the loop's thread uses it.

    `log` gets the facts of each request that has ended; `waiting_in_session` returns the bytes of
    answers that wait on all connections. `used` is when it was last used. Without an `upstream`,
    answers are recorded ones.
    """

    def __init__(
        self,
        host: str,
        port: int,
        upstream: Upstream | None,
        *,
        judge: Judge,
        exchanges: Exchanges,
        log: Log,
        waiting_in_session: Callable[[], int],
    ) -> None:
        self._host, self._port = host, port
        self._upstream, self._judge = upstream, judge
        self._exchanges, self._log = exchanges, log
        self._waiting_in_session = waiting_in_session
        self._scheme = "http"
        self._reader = RequestReader()
        self._exchange: _Exchange | None = None
        self._out, self._received = bytearray(), 0
        self._changed, self._sending = asyncio.Condition(), asyncio.Lock()
        self._problem: BaseException | None = None
        self._is_closed = False
        self.used = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """True if no request is under way."""
        return self._exchange is None

    @property
    def waiting(self) -> int:
        """The bytes of an answer that wait for the client."""
        return len(self._out)

    async def secure(self, name: str) -> None:
        """Makes the connection a secure one, for the name that the client gives."""
        async with self._sending:
            self._check()
            if self._scheme == "https" or not self._reader.is_new:
                raise BadRequest("the connection is in use already")
            if name.lower().rstrip(".") not in ("", self._host):
                raise BadRequest(_DIFFERS)
            try:
                place = f"{self._host}:{self._port} https"
                await self._exchanges.connect(place, self._begin_tls)
            except Exception as why:
                problem = why if isinstance(why, OSError) else ConnectionResetError(_GONE)
                await self._fail(problem)
                raise problem from None
            self._scheme = "https"

    async def _begin_tls(self) -> None:
        if self._upstream is not None:
            await self._upstream.secure()

    async def send(self, received: int, data: bytes) -> None:
        """Takes bytes of the client; waits while earlier ones are on their way.

        Refuses a client whose number of `received` bytes is wrong: its memory was restored.
        """
        async with self._sending:
            await self._send(received, data)

    async def _send(self, received: int, data: bytes) -> None:
        self._check()
        if self._exchange is None and received != self._received + len(self._out):
            raise ConnectionResetError(_GONE)
        try:
            if self._exchange is None:
                head = self._reader.head(data, self._scheme, self._host, self._port)
                if head is None:
                    return
                await self._begin(head)
                data = b""
            exchange = self._exchange
            if exchange is None:
                raise ConnectionResetError(_GONE)
            for start in range(0, max(1, len(data)), _PARSED_BYTES):
                part, is_whole = self._reader.body(data[start : start + _PARSED_BYTES])
                if part:
                    await self._hand_on(exchange, part)
                if is_whole:
                    await self._hand_on(exchange, None)
        except (BadRequest, PermissionError) as problem:
            await self._fail(problem)
            raise

    async def _hand_on(self, exchange: _Exchange, part: bytes | None) -> None:
        """Gives a part of the body to the request, unless that has ended before its body."""
        if not exchange.parts.full():
            exchange.parts.put_nowait(part)
            return
        putting = asyncio.ensure_future(exchange.parts.put(part))
        ends = {putting, exchange.task}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            putting.cancel()
        if exchange.task.done():
            self._check()

    async def receive(self, received: int, most: int, seconds: float) -> dict[str, Any]:
        """Returns bytes for the client as `data`, and whether the connection has `ended`.

        It is `idle` if nothing more comes before the next request. No bytes come back if none came
        within `seconds`. `received` counts the bytes that the client
        has from earlier calls: an interrupted call loses none.
        """
        drop = received - self._received
        if not 0 <= drop <= len(self._out):
            raise BadRequest("bytes that were not sent can't have been received")
        async with self._changed:
            del self._out[:drop]
            self._received = received
            self._changed.notify_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(
                    lambda: self._out or self._is_closed or self._problem is not None
                )
        if not self._out and self._problem is not None:
            raise self._problem.with_traceback(None)  # it is raised many times
        self.used = time.monotonic()
        data = bytes(memoryview(self._out)[:most])
        is_answered = self._exchange is None or self._exchange.is_answered
        idle = is_answered and not self._is_closed and len(data) == len(self._out)
        return {"data": data, "ended": self._is_closed and not self._out, "idle": idle}

    async def close(self) -> None:
        """Ends the request that is under way, and closes the connection. Safe to call twice."""
        self._is_closed = True
        self._out.clear()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.task.cancel()
        await self._close_upstream()
        if exchange is not None:
            await asyncio.wait({exchange.task}, timeout=_END_SECONDS)  # it records the bytes so far
        async with self._changed:
            self._changed.notify_all()

    async def _close_upstream(self) -> None:
        if self._upstream is not None:
            with contextlib.suppress(Exception):
                await self._upstream.close()

    def _check(self) -> None:
        self.used = time.monotonic()
        if self._problem is not None:
            raise self._problem.with_traceback(None)  # it is raised many times
        if self._is_closed and self._out:
            raise BrokenPipeError("the answer has come before the end of the request")
        if self._is_closed:
            raise ConnectionResetError(_GONE)

    async def _begin(self, head: RequestHead) -> None:
        rule = self._judge.request(self._scheme, self._host, self._port, head.method, head.target)
        if self._reader.waits_for_go:
            await self._put(h11.InformationalResponse(status_code=100, headers=[]))
        url = f"{self._scheme}://{self._host}:{self._port}{head.target}"
        exchange = _Exchange(head, rule, url, self._exchanges.cells()[0])
        exchange.task = asyncio.create_task(self._run(exchange))
        self._exchange = exchange

    async def _run(self, exchange: _Exchange) -> None:
        """Makes a request anew, and passes its answer on."""
        try:
            async with asyncio.timeout(exchange.rule.seconds):
                await self._pass_on(exchange)
            self._exchange = None
            self._is_closed = not self._reader.end()
            async with self._changed:
                self._changed.notify_all()
        except TimeoutError:
            await self._fail_in(exchange, TimeoutError(_SLOW.format(seconds=exchange.rule.seconds)))
        except (OSError, httpcore.ProtocolError, httpcore.NetworkError, h11.ProtocolError) as why:
            said = exchange.secrets.hidden(describe(why).encode()).decode()
            problem = why if isinstance(why, OSError) else ConnectionError(said)
            await self._fail_in(exchange, problem)
        except Exception as why:
            await self._fail(ConnectionError(f"the request failed: {type(why).__name__}"))
        finally:
            self._log(
                method=exchange.head.method,
                host=self._host,
                path=exchange.head.target.partition("?")[0][:1000],
                status=exchange.status,
                size=exchange.size,
                duration=time.monotonic() - exchange.began,
                placeholder=(self._upstream and has_placeholder(exchange.headers)) or None,
                replayed=self._upstream is None or None,
            )

    async def _answer(self, exchange: _Exchange) -> httpcore.Response | RecordedAnswer:
        """Returns the answer to a request, which is made anew, or was recorded."""
        head = exchange.head
        if self._upstream is None:
            async for _ in self._content(exchange):
                pass
            return await self._exchanges.answer(exchange.digest)
        exchange.headers, target = await exchange.secrets.fill(head.headers, head.target)
        url = httpcore.URL(scheme=self._scheme, host=self._host, port=self._port, target=target)
        content = self._content(exchange)
        request = httpcore.Request(head.method, url, headers=exchange.headers, content=content)
        return await self._upstream.request(request, partial(self._spend, exchange))

    async def _pass_on(self, exchange: _Exchange) -> None:
        response = await self._answer(exchange)
        try:
            exchange.status = response.status
            has_body = exchange.head.method != "HEAD" and response.status not in _WITHOUT_BODY
            headers = answer_headers(response.headers, has_body=has_body)
            headers = exchange.secrets.hide_in(headers)
            reason = exchange.secrets.hidden(response.extensions.get("reason_phrase", b""))
            head = h11.Response(status_code=response.status, headers=headers, reason=reason)
            await self._put(head)
            parts = self._parts(exchange, response)
            if self._exchanges.records:
                parts = self._record_answer(exchange, (response.status, reason, headers), parts)
            async with contextlib.aclosing(parts):
                async for part in parts:
                    await self._put(h11.Data(data=part))
            await self._put(h11.EndOfMessage())
            exchange.is_answered = self._reader.can_go_on
        finally:
            await response.aclose()

    async def _parts(
        self, exchange: _Exchange, response: httpcore.Response | RecordedAnswer
    ) -> AsyncGenerator[bytes]:
        """Yields the body of an answer, without the values of secrets."""
        async for part in response.aiter_stream():
            self._count(exchange, len(part))
            yield exchange.secrets.hide(part)
        yield exchange.secrets.hide(b"", is_last=True)

    async def _record_answer(
        self, exchange: _Exchange, head: tuple[int, bytes, Headers], parts: AsyncGenerator[bytes]
    ) -> AsyncGenerator[bytes]:
        """Records an answer, and yields its body; records the first part if it ends early."""
        recording = self._exchanges.record(exchange.cell)
        is_whole = False
        try:
            async for part in parts:
                recording.add(part)
                yield part
            is_whole = True
        finally:
            recording.keep(exchange.digest, head, is_whole=is_whole)

    async def _content(self, exchange: _Exchange) -> AsyncIterator[bytes]:
        while (part := await exchange.parts.get()) is not None:
            self._count(exchange, len(part))
            exchange.digest.add(part)
            yield part
        exchange.digest.is_whole = True

    def _count(self, exchange: _Exchange, size: int) -> None:
        exchange.size += size
        if self._upstream is None:
            self._spend(exchange, size)

    def _spend(self, exchange: _Exchange, size: int) -> None:
        exchange.spent += size
        if exchange.spent > exchange.rule.request_bytes:
            raise PermissionError(_LONG.format(most=exchange.rule.request_bytes))
        self._judge.spend(exchange.rule, size, self._host)

    async def _put(self, event: h11.Event) -> None:
        """Adds a part of the answer to those for the client, once there is room."""
        async with self._changed:
            await self._changed.wait_for(self._has_room)
            self._out += self._reader.written(event)
            self._changed.notify_all()

    def _has_room(self) -> bool:
        is_less = self.waiting < PIECE_BYTES and self._waiting_in_session() < SESSION_BYTES
        return not self._out or is_less or self._is_closed

    async def _fail_in(self, exchange: _Exchange, problem: OSError) -> None:
        """Records that a request got no answer, and closes the connection."""
        if not exchange.status:
            self._exchanges.fail(exchange.digest, problem, exchange.cell)
        await self._fail(problem)

    async def _fail(self, problem: Exception) -> None:
        """Closes the connection; the client's next call gets the error."""
        self._problem = problem
        exchange, self._exchange = self._exchange, None
        self._is_closed = True
        if exchange is not None and exchange.task is not asyncio.current_task():
            exchange.task.cancel()
        await self._close_upstream()
        async with self._changed:
            self._changed.notify_all()


class _Exchange:
    """A request under way, and its answer."""

    task: asyncio.Task[None]

    def __init__(self, head: RequestHead, rule: NetworkRule, url: str, cell: int) -> None:
        self.head, self.rule, self.cell = head, rule, cell
        self.digest = RequestDigest(head.method, url, head.headers)
        self.headers: Headers = head.headers
        self.secrets = RequestSecrets(rule.secrets)
        self.parts: asyncio.Queue[bytes | None] = asyncio.Queue(_PARTS_MOST)
        self.status, self.size, self.spent = 0, 0, 0
        self.is_answered = False
        self.began = time.monotonic()
