"""The description of the API, as OpenAPI has it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from wasm_kernel import __version__
from wasm_kernel.frontends.e2b.calls import Operation
from wasm_kernel.frontends.e2b.messages import Error

_PARAMETER = re.compile(r"{(\w+)}")
_BINARY = {"type": "string", "format": "binary"}
_SECURITY: dict[str, list[Any]] = {"sandboxes": [{"key": []}], "open": []}
_SCHEMES = {
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "sandbox": {"type": "apiKey", "in": "header", "name": "E2b-Sandbox-Id"},
    "token": {"type": "apiKey", "in": "header", "name": "X-Access-Token"},
}


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Returns the description of some calls."""
    found = (each for call in operations for each in (call.body, call.answer, Error))
    types = [each for each in found if _is_json(each)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = dict(zip(map(str, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for call in operations:
        paths.setdefault(call.path, {})[call.method.lower()] = _described(call, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "wasm-kernel: E2B's API", "version": __version__},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SCHEMES},
    }


_REF = "#/components/schemas/{name}"


def _is_json(kind: Any) -> bool:
    return kind is not None and kind is not bytearray


def _described(call: Operation, by_type: dict[str, Any]) -> dict[str, Any]:
    def content(kind: Any) -> dict[str, Any]:
        if not _is_json(kind):
            return {"application/octet-stream": {"schema": _BINARY}}
        return {"application/json": {"schema": by_type[str(kind)]}}

    status = str(call.status if call.answer is not None else "2XX")
    answer: dict[str, Any] = {"description": "Done."}
    if call.answer is not None:
        answer["content"] = content(call.answer)
    refused = {"description": "Refused, in words.", "content": content(Error)}
    found: dict[str, Any] = {
        "summary": call.summary,
        "tags": [call.plane.value],
        "security": _SECURITY.get(call.plane.value, [{"sandbox": [], "token": []}]),
        "responses": {status: answer, "default": refused},
    }
    if call.body is not None:
        found["requestBody"] = {"required": True, "content": content(call.body)}
    places = dict.fromkeys(_PARAMETER.findall(call.path), "path")
    places |= dict.fromkeys(call.query, "query")
    found["parameters"] = [
        {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}
        for name, place in places.items()
    ]
    return found
