"""GeoJSON, which JupyterLab's extension draws on a map.

The renderer puts each feature's properties into a table of HTML as they are. The map below comes
from a server that the front end's extension names; one that the output's metadata names is not
passed on, so a cell can have nothing fetched from an address of its own.
"""

from __future__ import annotations

from html import escape
from typing import Any

from wasm_kernel.outputs.patience import patiently
from wasm_kernel.outputs.removals import Refused
from wasm_kernel.outputs.words import words

_TYPES = words("""
    Feature FeatureCollection GeometryCollection Point MultiPoint LineString MultiLineString
    Polygon MultiPolygon
    """)
_PARTS = ("geometry", "geometries", "features")
_MOST = 100_000  # numbers, texts and lists in all
_PART_CHARACTERS = 100  # of a text that counts as one


def geojson(content: Any) -> dict[str, Any]:
    """An object of GeoJSON whose texts are texts, wherever HTML is made of them.

    Only the members that RFC 7946 defines are kept.

    Raises:
        Refused: it is none, or too large for a page to draw.
    """
    if _size(content) > _MOST:
        raise Refused("a GeoJSON map of too many parts")
    return _object(content)


def _object(content: Any) -> dict[str, Any]:
    kind = content.get("type") if isinstance(content, dict) else None
    if not isinstance(kind, str) or kind not in _TYPES:
        raise Refused("a GeoJSON map that is none")
    kept: dict[str, Any] = {"type": kind}
    for name in ("coordinates", "bbox"):
        if name in content:
            kept[name] = _numbers(content[name])
    for name in _PARTS:
        part = content.get(name)
        if isinstance(part, list):
            kept[name] = [_object(one) for one in part]
        elif name in content:
            kept[name] = None if part is None else _object(part)
    for name in ("properties", "id"):
        if name in content:
            kept[name] = _harmless(content[name])
    return kept


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if type(value) not in (int, float):
        raise Refused("a GeoJSON map with places that are no numbers")
    return value


def _harmless(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    if isinstance(value, list):
        return [_harmless(item) for item in value]
    if isinstance(value, dict):
        return {escape(key): _harmless(item) for key, item in value.items()}
    return value


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(_size(item) for item in patiently(value.values()))
    if isinstance(value, str):
        return 1 + len(value) // _PART_CHARACTERS
    return 1 + (sum(_size(item) for item in patiently(value)) if isinstance(value, list) else 0)
