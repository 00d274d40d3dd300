"""The function of `jiter` in plain Python: JSON whose end has not come yet.

The clients of OpenAI and Anthropic need `jiter`, which is compiled, for streamed answers.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, Literal

_TOKEN = re.compile(
    r"""
    \s*(?:
    (?P<mark>[{}\[\]:,])
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<cut>"(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*?)
        (?:\\u[dD][89abAB][0-9a-fA-F]{2})?(?:\\(?:u[0-9a-fA-F]{0,3})?)?$  # half a character
    | (?P<other>[^\s{}\[\]:,"]+)
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSERS = {"{": "}", "[": "]"}


def from_json(
    json_data: bytes,
    /,
    *,
    partial_mode: bool | Literal["off", "on", "trailing-strings"] = False,
    **_: object,
) -> Any:
    """Returns the value of JSON.

    With `partial_mode`, the text may end early: a value that is not whole is left out; the mode
    `trailing-strings` keeps the beginning of a string. jiter's other arguments have no effect.

    Raises:
        ValueError: It is not JSON.
    """
    if partial_mode in (False, "off"):
        return json.loads(json_data)
    text = codecs.getincrementaldecoder("utf-8")().decode(json_data)  # without half a character
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(_closed(text, keeps_strings=partial_mode == "trailing-strings"))


def _closed(text: str, *, keeps_strings: bool) -> str:
    """Returns the beginning of a text that is whole, with brackets that close it."""
    open_brackets, is_key = "", False
    whole = text
    for found in _TOKEN.finditer(text):
        end = found.end()
        match found.lastgroup, found[0].strip():
            case "mark", "{" | "[" as mark:
                open_brackets, is_key = _CLOSERS[mark] + open_brackets, mark == "{"
            case "mark", "}" | "]":
                open_brackets, is_key = open_brackets[1:], False
            case "mark", mark:
                is_key = mark == "," and open_brackets[:1] == "}"
                continue
            case "cut", _ if keeps_strings and not is_key:
                return f'{text[: found.end("cut")]}"{open_brackets}'
            case "cut", _:
                return whole
            case "other", word if end == len(text) and not _is_whole(word):
                return whole
        if not is_key or found.lastgroup == "mark":
            whole = text[:end] + open_brackets
    return whole


def _is_whole(word: str) -> bool:
    try:
        json.loads(word)
    except ValueError:
        return False
    return True
