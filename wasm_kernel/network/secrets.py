"""Secrets: values of the owner that cells use by placeholders and never see.

A placeholder in a header of a request is replaced by the value, if the rule of the request names
the secret. In answers under that rule the value is replaced by asterisks, if it stands there
in the form in which it was sent.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from wasm_kernel.network.judge import NetworkRefused
from wasm_kernel.network.request import Headers
from wasm_kernel.network_rules import Secret, placeholder

_VALUE_MOST = 4096
_BASIC = b"basic "
_BEGINNING = placeholder("").removesuffix(".").encode("ascii")
_UNSET = "the secret {name} is not set in the environment of this sandbox's owner"
_UNREAD = "the secret {name} of this sandbox's owner can't be read ({why})"
_NOT_KEPT = "the secret {name} is not in the keyring of this sandbox's owner"
_ODD = "the secret {name} can't stand in a request: it is empty, too long, or not plain text"


class RequestSecrets:
    """The secrets of one request, which its rule names."""

    def __init__(self, secrets: Sequence[Secret]) -> None:
        self._secrets = secrets
        self._known: dict[str, bytes] = {}
        self._problems: dict[str, NetworkRefused] = {}
        self._values: list[bytes] = []  # as they may stand in an answer, the longest first
        self._held = b""

    async def fill(self, headers: Headers, target: str) -> tuple[Headers, str]:
        """Returns headers and a target with the values of secrets in place of placeholders.

        Raises `NetworkRefused` if a value can't be had. The headers ask for an uncompressed answer,
        since a value can't be found in a compressed one.
        """
        if not self._secrets:
            return headers, target
        await asyncio.to_thread(self._load)
        filled = [(name, self._filled(name, value)) for name, value in headers]
        target = self._fill_target(target)
        self._values.sort(key=len, reverse=True)
        return [each for each in filled if each[0].lower() != b"accept-encoding"], target

    def _load(self) -> None:
        """Reads all values: an answer may repeat one of an earlier request."""
        for each in self._secrets:
            try:
                value = self._known[each.name] = _value(each)
            except NetworkRefused as problem:
                self._problems[each.name] = problem
            else:
                text = value.decode("ascii")
                shown = {text, quote(text, safe=""), json.dumps(text)[1:-1], repr(value)[2:-1]}
                self._values += [each.encode("ascii") for each in shown]

    def _filled(self, name: bytes, value: bytes) -> bytes:
        if value[: len(_BASIC)].lower() != _BASIC:
            return self._replaced(name, value)
        try:
            plain = base64.b64decode(value[len(_BASIC) :], validate=True)
        except binascii.Error:
            return value
        token = base64.b64encode(self._replaced(name, plain))
        if token != value[len(_BASIC) :]:
            self._values.append(token)  # an answer may repeat the header
        return value[: len(_BASIC)] + token

    def _replaced(self, name: bytes, value: bytes) -> bytes:
        for each in self._secrets:
            mark = placeholder(each.name).encode("ascii")
            if mark in value and each.is_for(name.decode("latin-1")):
                value = value.replace(mark, self._value_of(each))
        return value

    def _fill_target(self, target: str) -> str:
        """Fills the parameters of a query that secrets are for."""
        path, mark, query = target.partition("?")
        parts = query.split("&")
        for each in self._secrets:
            for number, part in enumerate(parts):
                if each.query and part == f"{each.query}={placeholder(each.name)}":
                    parts[number] = f"{each.query}={quote(self._value_of(each), safe='')}"
        return f"{path}{mark}{'&'.join(parts)}"

    def _value_of(self, secret: Secret) -> bytes:
        if secret.name in self._problems:
            raise self._problems[secret.name]
        return self._known[secret.name]

    def hide_in(self, headers: Headers) -> Headers:
        """Returns the headers of an answer without the values of secrets."""
        return [
            (self.hidden(name), value if name.lower() == b"content-length" else self.hidden(value))
            for name, value in headers
        ]

    def hide(self, data: bytes, *, is_last: bool = False) -> bytes:
        """Returns the next part of an answer's body without the values of secrets.

        The end of a part's last line is held back, whatever it is: a value has no line break, and
        a cell must not find out by echoes which bytes begin one.
        """
        if not self._values:
            return data
        data = self.hidden(self._held + data)
        line = len(data) - (data.rfind(b"\n") + 1)
        keep = 0 if is_last else min(line, max(map(len, self._values)) - 1)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def hidden(self, data: bytes) -> bytes:
        """Returns bytes with asterisks in place of the values of secrets."""
        for value in self._values:
            data = data.replace(value, b"*" * len(value))  # asterisks of the same length
        return data


def has_placeholder(headers: Headers) -> bool:
    """Returns whether a placeholder is not replaced, as the request's rule lacks its secret."""
    return any(_BEGINNING in value for _, value in headers)


def _value(secret: Secret) -> bytes:
    """Returns the value of a secret; raises `NetworkRefused`."""
    if secret.file:
        given = _of_file(secret)
    elif secret.keyring:
        given = _of_keyring(secret)
    elif secret.name in os.environ:
        given = os.environ[secret.name]
    else:
        raise NetworkRefused(_UNSET.format(name=secret.name))
    value = given.strip()
    is_plain = value.isascii() and value.isprintable()
    if not (is_plain and 0 < len(value) <= _VALUE_MOST):
        raise NetworkRefused(_ODD.format(name=secret.name))
    return value.encode("ascii")


def _of_file(secret: Secret) -> str:
    try:
        with Path(secret.file).expanduser().open(encoding="utf-8") as file:
            return file.read(2 * _VALUE_MOST)
    except (OSError, ValueError) as problem:
        why = getattr(problem, "strerror", None) or "it is not text"
        raise NetworkRefused(_UNREAD.format(name=secret.name, why=why)) from None


def _of_keyring(secret: Secret) -> str:
    import keyring

    service, _, user = secret.keyring.rpartition(":")
    try:
        found = keyring.get_password(service, user)
    except Exception as problem:  # the error of any backend
        why = type(problem).__name__
        raise NetworkRefused(_UNREAD.format(name=secret.name, why=why)) from None
    if found is None:
        raise NetworkRefused(_NOT_KEPT.format(name=secret.name))
    return str(found)
