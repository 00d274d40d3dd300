"""Secrets: values of the owner's environment that cells use by placeholders and never see.

A placeholder in a header of a request is replaced by the value, if the rule of the request names
the secret. In answers the value is replaced by asterisks, as far as it stands there as it is.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Sequence

from wasm_kernel.network.judge import Refused
from wasm_kernel.network_rules import placeholder

_VALUE_MOST = 4096
_BASIC = b"basic "
_BEGINNING = placeholder("").removesuffix(".").encode("ascii")
_UNSET = "the secret {name} is not set in the environment of this sandbox's owner"
_ODD = "the secret {name} can't stand in a header: it is empty, too long, or not plain text"

Headers = list[tuple[bytes, bytes]]


class RequestSecrets:
    """The secrets of one request, by the names in its rule."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._values: list[bytes] = []
        self._held = b""

    def fill(self, headers: Headers) -> Headers:
        """Returns headers with the values of secrets in place of placeholders.

        Raises `Refused` if the owner's environment lacks a secret. With a secret, the answer is
        asked for as it is, since a value can't be found in a compressed one.
        """
        filled = [(name, self._filled(value)) for name, value in headers]
        if not self._values:
            return headers
        return [each for each in filled if each[0].lower() != b"accept-encoding"]

    def _filled(self, value: bytes) -> bytes:
        if value[: len(_BASIC)].lower() == _BASIC:
            try:
                plain = base64.b64decode(value[len(_BASIC) :], validate=True)
            except binascii.Error:
                return value
            return value[: len(_BASIC)] + base64.b64encode(self._replaced(plain))
        return self._replaced(value)

    def _replaced(self, value: bytes) -> bytes:
        for name in self._names:
            mark = placeholder(name).encode("ascii")
            if mark in value:
                secret = _value(name)
                if secret not in self._values:
                    self._values.append(secret)
                value = value.replace(mark, secret)
        return value

    def hide_in(self, headers: Headers) -> Headers:
        """Returns the headers of an answer without the values of secrets."""
        return [
            (name, value if name.lower() == b"content-length" else self.hidden(value))
            for name, value in headers
        ]

    def hide(self, data: bytes, *, is_last: bool = False) -> bytes:
        """Returns the next part of an answer's body without the values of secrets.

        The end of a part is held back as long as a value may begin in it.
        """
        if not self._values:
            return data
        data = self.hidden(self._held + data)
        keep = 0 if is_last else max(_overlap(data, value) for value in self._values)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def hidden(self, data: bytes) -> bytes:
        """Returns bytes with asterisks in place of the values of secrets."""
        for value in self._values:
            data = data.replace(value, b"*" * len(value))  # of the same length as it was
        return data


def has_placeholder(headers: Headers) -> bool:
    """Returns whether a placeholder stays one: the rule of the request does not have its secret."""
    return any(_BEGINNING in value for _, value in headers)


def _value(name: str) -> bytes:
    given = os.environ.get(name)
    if given is None:
        raise Refused(_UNSET.format(name=name))
    value = given.strip()
    is_plain = value.isascii() and value.isprintable()
    if not (is_plain and 0 < len(value) <= _VALUE_MOST):
        raise Refused(_ODD.format(name=name))
    return value.encode("ascii")


def _overlap(data: bytes, value: bytes) -> int:
    """Returns how many of the last bytes may be the beginning of a value."""
    start = max(0, len(data) - len(value) + 1)
    while (start := data.find(value[:1], start)) >= 0:
        if value.startswith(data[start:]):
            return len(data) - start
        start += 1
    return 0
