"""Small stand-ins for well-known services, for the tests of their clients."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from tests.network.servers import Handler

_ARFF = b"@RELATION t\n@ATTRIBUTE x NUMERIC\n@ATTRIBUTE y {a,b}\n@DATA\n1,a\n2,b\n3,a\n"
_OPENML = {
    "/api/v1/json/data/7": {
        "data_set_description": {
            "id": "7",
            "name": "t",
            "version": "1",
            "description": "A table.",
            "format": "ARFF",
            "status": "active",
            "file_id": "9",
            "url": "https://api.openml.org/data/v1/download/9",
            "default_target_attribute": "y",
            "md5_checksum": hashlib.md5(_ARFF, usedforsecurity=False).hexdigest(),
        }
    },
    "/api/v1/json/data/features/7": {
        "data_features": {
            "feature": [
                {
                    "index": str(index),
                    "name": name,
                    "data_type": kind,
                    "is_target": target,
                    "is_ignore": "false",
                    "number_of_missing_values": "0",
                    "is_row_identifier": "false",
                }
                for index, (name, kind, target) in enumerate(
                    [("x", "numeric", "false"), ("y", "nominal", "true")]
                )
            ]
        }
    },
    "/api/v1/json/data/qualities/7": {
        "data_qualities": {"quality": [{"name": "NumberOfInstances", "value": "3"}]}
    },
}
_SEABORN = "/mwaskom/seaborn-data/master/"
_LISTED = (
    '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    "<Name>b</Name><KeyCount>{count}</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false"
    "</IsTruncated>{keys}</ListBucketResult>"
)
_MISSING = "<Error><Code>NoSuchKey</Code><Message>There is no such key.</Message></Error>"


class Services(Handler):
    """OpenML, seaborn's data, an S3 server, OpenAI and Anthropic, as far as clients need them."""

    objects: dict[str, bytes] = {}

    def do_GET(self) -> None:  # noqa: N802
        path = self.path.partition("?")[0]
        if path in _OPENML:
            return self.send(json.dumps(_OPENML[path]).encode())
        if path.startswith("/data/v1/download/9"):
            return self.send(gzip.compress(_ARFF), Content_Encoding="gzip")
        if path == f"{_SEABORN}dataset_names.txt":
            return self.send(b"birds\n")
        if path == f"{_SEABORN}birds.csv":
            return self.send(b"name,eggs\nowl,3\ncoot,7\n")
        if path == "/table.html":
            return self.send(b"<table><tr><th>a</th></tr><tr><td>3</td></tr></table>")
        if path == "/table.json":
            return self.send(b'[{"a": 3}]')
        if path.startswith("/b/") or path == "/b":
            return self._s3_get(path)
        return super().do_GET()

    def do_HEAD(self) -> None:  # noqa: N802
        data = self.objects.get(self.path.partition("?")[0])
        self.send_response(404 if data is None else 200)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()

    def do_PUT(self) -> None:  # noqa: N802
        data = b"".join(self._body())
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            data = _without_chunks(data)
        self.objects[self.path.partition("?")[0]] = data
        tag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        self.send(b"", ETag=f'"{tag}"')

    def do_POST(self) -> None:  # noqa: N802
        body = b"".join(self._body())
        asked: Any = json.loads(body) if self.path.startswith("/v1/") else {}
        if self.path == "/v1/chat/completions":
            self._stream(_openai(asked)) if asked.get("stream") else self._json(_completion())
        elif self.path == "/v1/messages":
            self._stream(_anthropic()) if asked.get("stream") else self._json(_message())
        else:
            self.send(str(len(body)).encode())

    def _s3_get(self, path: str) -> None:
        if "list-type=2" in self.path:
            names = [each.removeprefix("/b/") for each in self.objects]
            keys = "".join(f"<Contents><Key>{n}</Key><Size>1</Size></Contents>" for n in names)
            return self.send(_LISTED.format(count=len(names), keys=keys).encode())
        data = self.objects.get(path)
        if data is None:
            return self.send(_MISSING.encode(), 404, Content_Type="application/xml")
        return self.send(data)

    def _json(self, value: Any) -> None:
        self.send(json.dumps(value).encode(), Content_Type="application/json")

    def _stream(self, lines: Iterator[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines:
            data = f"{line}\n\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")


def _without_chunks(data: bytes) -> bytes:
    """Returns the content of a body in Amazon's own chunks, without their trailer."""
    found = b""
    while True:
        head, _, data = data.partition(b"\r\n")
        size = int(head.partition(b";")[0], 16)
        if not size:
            return found
        found, data = found + data[:size], data[size + 2 :]


def _completion(**more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "Good day"}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    return {**head, "choices": [choice], **more}


def _openai(asked: Any) -> Iterator[str]:
    texts = ['{"eggs"', ": [3, ", "7]}"] if "response_format" in asked else ["Good ", "day"]
    for text in [*texts, None]:
        delta: dict[str, str] = {} if text is None else {"role": "assistant", "content": text}
        choice = {"index": 0, "delta": delta, "finish_reason": None if text else "stop"}
        yield "data: " + json.dumps(_completion(object="chat.completion.chunk", choices=[choice]))
    yield "data: [DONE]"


def _message(**more: Any) -> dict[str, Any]:
    head: dict[str, Any] = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_sequence": None,
    }
    head |= {"usage": {"input_tokens": 1, "output_tokens": 1}, "stop_reason": "end_turn"}
    return {**head, "content": [{"type": "text", "text": "Good day"}], **more}


def _anthropic() -> Iterator[str]:
    yield _event("message_start", message=_message(content=[], stop_reason=None))
    block: dict[str, Any] = {"type": "text", "text": ""}
    yield _event("content_block_start", index=0, content_block=block)
    for text in ("Good ", "day"):
        delta = {"type": "text_delta", "text": text}
        yield _event("content_block_delta", index=0, delta=delta)
    yield _event("content_block_stop", index=0)
    block = {"type": "tool_use", "id": "t", "name": "count", "input": {}}
    yield _event("content_block_start", index=1, content_block=block)
    for text in ('{"eggs": [3', ", 7]}"):
        delta = {"type": "input_json_delta", "partial_json": text}
        yield _event("content_block_delta", index=1, delta=delta)
    yield _event("content_block_stop", index=1)
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    yield _event("message_delta", delta=ending, usage={"output_tokens": 2})
    yield _event("message_stop")


def _event(name: str, **fields: Any) -> str:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}"
