"""`Upstream`: the real connection for one of a cell, to the address that was judged.

httpcore speaks HTTP. It takes a stream that is open already, so that the connection goes to a
judged address, while TLS and `Host` have the name. (urllib3 would need a thread for each transfer,
and an interrupt could not end one.)
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import urllib.parse
import urllib.request
from collections.abc import Callable
from functools import cache
from typing import Any

import httpcore

from wasm_kernel.network.judge import Judge
from wasm_kernel.network_rules import is_address

CONNECT_SECONDS = 30.0
"""The most seconds for a connection, and for the beginning of TLS."""

_ADDRESSES_MOST = 4
_READ_BYTES = 256 * 1024  # at once: httpcore asks for less
_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_backend = httpcore.AnyIOBackend()


Spend = Callable[[int], object]


class _CountingBackend(httpcore.AsyncNetworkBackend):
    """Makes connections whose bytes are counted."""

    def __init__(self, spend: Spend) -> None:
        self._spend = spend

    async def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        return _CountedStream(await _backend.connect_tcp(*args, **kwargs), self._spend)


class _CountedStream(httpcore.AsyncNetworkStream):
    """A connection whose bytes are counted: those of heads and of chunks' sizes, too."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, spend: Spend) -> None:
        self._stream, self._spend = stream, spend

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(max(max_bytes, _READ_BYTES), timeout)
        self._spend(len(data))
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._spend(len(buffer))
        await self._stream.write(buffer, timeout)

    async def start_tls(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        return _CountedStream(await self._stream.start_tls(*args, **kwargs), self._spend)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class Upstream:
    """A connection to a host, directly or through the proxy of the environment.

    A connection that the host has closed after a request is opened again for the next request.
    """

    def __init__(self, host: str, port: int, judge: Judge) -> None:
        self._host, self._port, self._judge = host, port, judge
        self._proxy = _proxy_of(host, port)
        self._is_secure = False
        self._spend: Spend = lambda _: None  # no request has begun
        self._counting = _CountingBackend(self._count)
        self._stream: httpcore.AsyncNetworkStream | None = None
        self._http: Any = None

    @classmethod
    async def open(cls, host: str, port: int, judge: Judge) -> Upstream:
        """Connects to a host that the judge allows, by name and then by address.

        Raises `NetworkRefused`, or an `OSError` as a socket does. A proxy finds the address itself.
        """
        made = cls(host, port, judge)
        await made._connect()
        return made

    async def _connect(self) -> None:
        host, port = self._host, self._port
        if self._proxy:
            if is_address(host):
                self._judge.addresses(host, port, [host])
            return
        found = [host] if is_address(host) else await _addresses(host, port)
        problem: Exception | None = None
        for address in self._judge.addresses(host, port, found)[:_ADDRESSES_MOST]:
            try:
                self._stream = await self._counting.connect_tcp(address, port, CONNECT_SECONDS)
            except (httpcore.NetworkError, httpcore.TimeoutException) as failure:
                problem = failure
            else:
                return
        raise _as_os_error(problem)

    async def secure(self) -> None:
        """Begins TLS, and checks the host's certificate; raises `ssl.SSLError`."""
        self._is_secure = True
        if self._stream is None:
            return  # httpcore does it in the proxy's tunnel
        context = _tls_context()
        try:
            self._stream = await self._stream.start_tls(context, self._host, CONNECT_SECONDS)
        except (httpcore.NetworkError, httpcore.TimeoutException) as failure:
            raise _as_os_error(failure) from None

    async def request(self, request: httpcore.Request, spend: Spend) -> httpcore.Response:
        """Sends a request; returns the answer, whose body streams.

        `spend` gets the numbers of all bytes that are sent and received.
        """
        self._spend = spend
        http = self._http
        is_stale = http is not None and (http.is_closed() or http.has_expired())
        if self._stream is not None and is_stale:
            await self.close()
            await self._connect()
            if self._is_secure:
                await self.secure()
        try:
            connection = self._connection(request)
            response: httpcore.Response = await connection.handle_async_request(request)
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProxyError) as failure:
            raise _as_os_error(failure) from None
        return response

    def _count(self, size: int) -> None:
        self._spend(size)

    def _connection(self, request: httpcore.Request) -> Any:
        if self._http is None and self._stream is not None:
            origin = request.url.origin
            self._http = httpcore.AsyncHTTP11Connection(origin, self._stream)
        elif self._http is None:
            context = _tls_context()
            parts = urllib.parse.urlsplit(self._proxy)
            address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
            words = [urllib.parse.unquote(each or "") for each in (parts.username, parts.password)]
            self._http = httpcore.AsyncHTTPProxy(
                address,
                proxy_auth=(words[0], words[1]) if parts.username else None,
                ssl_context=context,
                proxy_ssl_context=context if parts.scheme == "https" else None,
                max_connections=1,
                network_backend=self._counting,
            )
        return self._http

    async def close(self) -> None:
        """Closes the connection."""
        for each in (self._http, self._stream):
            if each is not None:
                await each.aclose()
        self._http = None


async def _addresses(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_SECONDS):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _proxy_of(host: str, port: int) -> str:
    """Returns the address of the owner's proxy for a host; empty if there is none."""
    if urllib.request.proxy_bypass(f"{host}:{port}") or urllib.request.proxy_bypass(host):
        return ""
    proxies = urllib.request.getproxies()
    return proxies.get("https" if port != 80 else "http", "")


@cache
def _tls_context() -> ssl.SSLContext:
    """Returns the settings of TLS: the system's certificates, and the user's own bundle."""
    context = ssl.create_default_context()
    for name in _BUNDLES:
        if bundle := os.environ.get(name):
            is_folder = os.path.isdir(bundle)  # noqa: PTH112 - a path as others give it
            context.load_verify_locations(**{"capath" if is_folder else "cafile": bundle})
            break
    context.set_alpn_protocols(["http/1.1"])
    return context


def _as_os_error(problem: Exception | None) -> Exception:
    """Returns the system's own error for one of httpcore's."""
    at: BaseException | None = problem
    while at is not None:
        if isinstance(at, OSError) and (at.errno or type(at) is not OSError):  # not anyio's own
            return at
        at = at.__cause__ or at.__context__
    kind = TimeoutError if isinstance(problem, httpcore.TimeoutException) else ConnectionError
    return kind(str(problem) or "the connection failed")
