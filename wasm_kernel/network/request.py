"""`RequestReader`: the bytes of a cell's HTTP client, as checked requests.

h11 parses them. Requests that two programs could read in two ways are refused before that: folded
lines, bare line ends, two lengths, and targets that name another host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import h11

from wasm_kernel.network_rules import SCHEMES, plain_host

HEAD_BYTES = 64 * 1024
"""The most bytes that the head of a request may have."""

_HEADERS_MOST = 200
_HOP = {b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"expect", b"host"}
_HOP |= {b"proxy-authorization", b"proxy-connection", b"proxy-authenticate"}
_FRAMING = {b"content-length", b"transfer-encoding"}
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_LENGTH = re.compile(rb"\n(?:content-length|transfer-encoding)\s*:", re.IGNORECASE)

Headers = list[tuple[bytes, bytes]]


class BadRequest(ConnectionError):
    """The client's bytes are not a request that can be passed on; the text says why."""


@dataclass(frozen=True)
class RequestHead:
    """The head of a request that is sent on, with headers in the client's order."""

    method: str
    target: str
    headers: Headers


class RequestReader:
    """Reads the requests of one connection, and writes the answers for it."""

    def __init__(self) -> None:
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self._head = bytearray()
        self.is_new = True  # no byte has come yet

    @property
    def waits_for_go(self) -> bool:
        """True if the client sends the body only once it is told to go on."""
        return self._parser.they_are_waiting_for_100_continue

    def head(self, data: bytes, scheme: str, host: str, port: int) -> RequestHead | None:
        """Takes bytes; returns the request's head once it is complete.

        Raises `BadRequest`.
        """
        self.is_new = False
        start = max(0, len(self._head) - 3)
        self._head += data
        end = self._head.find(b"\r\n\r\n", start)
        if end < 0:
            if len(self._head) > HEAD_BYTES:
                raise BadRequest("the head of a request is too long, or not one of HTTP")
            return None
        if end > HEAD_BYTES:
            raise BadRequest("the head of a request is too long")
        raw, whole = bytes(self._head[:end]), bytes(self._head)
        self._head.clear()
        is_plain = raw.count(b"\n") == raw.count(b"\r") == raw.count(b"\r\n")
        if not is_plain or b"\n " in raw or b"\n\t" in raw or _CONTROL.search(raw):
            raise BadRequest("a request's head has control characters, or lines unlike HTTP's")
        if len(_LENGTH.findall(raw)) > 1:
            raise BadRequest("a request says its length twice")
        self._parser.receive_data(whole)
        event = self._next()
        if not isinstance(event, h11.Request):
            raise BadRequest("a request was expected")
        return _checked(event, scheme, host, port)

    def body(self, data: bytes) -> tuple[bytes, bool]:
        """Takes further bytes; returns the next part of the body, and whether it is complete.

        Raises `BadRequest`.
        """
        if data:
            try:
                self._parser.receive_data(data)
            except RuntimeError:  # after its end
                raise BadRequest("a request was sent before the answer to the last one") from None
        parts: list[bytes] = []
        while True:
            match self._next():
                case h11.Data() as event:
                    parts.append(bytes(event.data))
                case h11.EndOfMessage():
                    if self._parser.trailing_data[0]:
                        raise BadRequest("a request was sent before the answer to the last one")
                    return b"".join(parts), True
                case _:
                    return b"".join(parts), False

    @property
    def can_go_on(self) -> bool:
        """Returns whether another request may come after the answer to this one."""
        return self._parser.their_state is h11.DONE

    def end(self) -> bool:
        """Gets ready for the next request; call it when the answer is written.

        Returns False if that is impossible, as the answer came before the end of the request.
        """
        if not self.can_go_on:
            return False
        self._parser.start_next_cycle()
        return True

    def written(self, event: h11.Event) -> bytes:
        """Returns a part of the answer as bytes."""
        return self._parser.send(event) or b""

    def _next(self) -> object:
        try:
            return self._parser.next_event()
        except h11.RemoteProtocolError as problem:
            raise BadRequest(f"this is not a request of HTTP/1.1: {problem}") from None


def answer_headers(headers: Headers, *, has_body: bool) -> Headers:
    """Returns the headers of an answer for the client; the body is chunked if it has no length."""
    kept = [each for each in headers if each[0].lower() not in _HOP | {b"transfer-encoding"}]
    lengths = [each for each in kept if each[0].lower() == b"content-length"]
    return kept if lengths or not has_body else [*kept, (b"Transfer-Encoding", b"chunked")]


def _checked(event: h11.Request, scheme: str, host: str, port: int) -> RequestHead:
    method, target = event.method.decode("ascii"), event.target.decode("ascii")
    names = [name for name, _ in event.headers]
    if method == "CONNECT" or not target.startswith("/"):
        raise BadRequest("a request names a path of its host; proxies' requests are refused")
    if len(names) > _HEADERS_MOST:
        raise BadRequest("a request has too many headers")
    if event.http_version not in (b"1.0", b"1.1"):
        raise BadRequest("only HTTP/1.1 is passed on")
    for name, value in event.headers:
        if name == b"host" and not _is_of(value, scheme, host, port):
            raise BadRequest("the Host of a request is not the one that it was sent to")
    listed = b",".join(value for name, value in event.headers if name == b"connection")
    dropped = _HOP | ({each.strip().lower() for each in listed.split(b",")} - _FRAMING)
    kept = [(raw, value) for raw, value in event.headers.raw_items() if raw.lower() not in dropped]
    return RequestHead(method, target, [(b"Host", host_header(scheme, host, port)), *kept])


def host_header(scheme: str, host: str, port: int) -> bytes:
    """Returns the value of the header `Host`."""
    name = f"[{host}]" if ":" in host else host
    return (name if port == SCHEMES[scheme] else f"{name}:{port}").encode("ascii")


def _is_of(value: bytes, scheme: str, host: str, port: int) -> bool:
    name, colon, number = value.decode("latin-1").rpartition(":")
    if not colon or number.endswith("]"):
        name, number = value.decode("latin-1"), str(SCHEMES[scheme])
    is_port = number.isascii() and number.isdigit() and len(number) < 6 and int(number) == port
    return is_port and plain_host(name.removeprefix("[").removesuffix("]")) == host
