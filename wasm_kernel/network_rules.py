"""`NetworkRule`: hosts that cells may send requests to, and what they may ask of them.

Only a policy with rules loads this file.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from wasm_kernel.errors import PolicyError

SCHEMES = {"http": 80, "https": 443}
"""The schemes of requests, with their ports."""

_MIB = 1024 * 1024
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")
_TOKEN = re.compile(r"[A-Za-z0-9_.~-]{1,100}")
_METHOD = re.compile(r"[A-Z]{1,20}")
_FORM = "takes https://HOST/PATH, HOST, !HOST, @PRESET, or a table with host, not {!r}"


@dataclass(frozen=True)
class Secret:
    """A value of the owner that cells use by a placeholder.

    Attributes:
        name: The variable in `os.environ` of cells that holds the placeholder. The value is that
            of the variable in the owner's environment, unless the secret has a file or a keyring.
        file: The absolute path of a file with the value.
        keyring: The value's place in the keyring of the system, as `SERVICE:USER`.
        headers: The names of headers in which the placeholder is replaced; none for all.
        query: The name of a parameter in the query in which it is also replaced.

    Raises:
        PolicyError: A value breaks its rule.
    """

    name: str
    file: str = ""
    keyring: str = ""
    headers: tuple[str, ...] = ()
    query: str = ""

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and _VARIABLE.fullmatch(self.name)):
            raise PolicyError("network", f"has the secret {self.name!r}, which is not a variable")
        if isinstance(self.headers, list | tuple):
            object.__setattr__(self, "headers", tuple(self.headers))
        for field, is_valid in _OF_SECRETS.items():
            if not is_valid(getattr(self, field)):
                raise PolicyError("network", f"has a {field} of {self.name} that is wrong")
        if self.file and self.keyring:
            raise PolicyError("network", f"has a file and a keyring for {self.name}")

    @classmethod
    def parse(cls, given: Secret | str | Mapping[str, Any]) -> Secret:
        """Returns the secret that a name or a table describes.

        Raises:
            PolicyError: It describes none.
        """
        if isinstance(given, Secret):
            return given
        table = given if isinstance(given, Mapping) else {"name": given}
        known = [each.name for each in fields(cls)]
        if unknown := [key for key in table if key not in known]:
            raise PolicyError("network", f"has a secret with {unknown[0]!r}; it takes {known}")
        return cls(**{"name": "", **table})

    def is_for(self, header: str) -> bool:
        """Returns whether the secret's placeholder is replaced in a header of this name."""
        return not self.headers or header.lower() in map(str.lower, self.headers)


@dataclass(frozen=True)
class NetworkRule:
    """A host that cells may send HTTP requests to, or may not.

    Attributes:
        host: Its name, or `*.example.org` for all names below one, or an address.
        deny: Whether requests that the rule matches are refused, whatever other rules say.
        schemes: `https`, `http`, or both; none for `https`, or for both if the rule denies.
        ports: Its ports; none for those of the schemes, 443 and 80, or for all if the rule denies.
        methods: The methods of requests, such as `GET`; none for all.
        paths: The beginnings of paths; none for all. `/data` also stands for `/data/a`, and not
            for `/database`.
        addresses: Addresses and networks, such as `10.0.0.0/8`, that the name may lead to although
            they are not public. An address as the host stands for itself, and `localhost` for
            this machine.
        secrets: Values of the sandbox's owner, each a `Secret`, a table of its attributes, or the
            name of a variable in the owner's environment. Cells see a placeholder in `os.environ`;
            in the headers of requests under this rule it is replaced by the value. Only rules for
            `https` alone may have some.
        request_bytes: The bytes of one request and its answer together.
        session_bytes: The bytes of all requests of a session.
        requests_a_minute: The requests of a session in a minute.
        seconds: How long a request and its answer may take.

    Raises:
        PolicyError: A value breaks its rule.
    """

    host: str
    deny: bool = False
    schemes: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    methods: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    secrets: tuple[Secret, ...] = ()
    request_bytes: int = 1024 * _MIB
    session_bytes: int = 16 * 1024 * _MIB
    requests_a_minute: int = 600
    seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in ("schemes", "ports", "methods", "paths", "addresses", "secrets"):
            given = getattr(self, name)
            if not isinstance(given, list | tuple):
                raise PolicyError("network", f"has {name} that are not a list, but {given!r}")
            object.__setattr__(self, name, tuple(given))
        object.__setattr__(self, "secrets", tuple(map(Secret.parse, self.secrets)))
        if not isinstance(self.deny, bool):
            raise PolicyError("network", f"has a deny that is not true or false, but {self.deny!r}")
        object.__setattr__(self, "host", _host_of_rule(self.host))
        for name, is_valid in _CHECKS.items():
            if wrong := [each for each in getattr(self, name) if not is_valid(each)]:
                raise PolicyError("network", f"has {wrong[0]!r} among the {name} of {self.host}")
        if not self.schemes:
            object.__setattr__(self, "schemes", tuple(SCHEMES) if self.deny else ("https",))
        if self.secrets and (self.deny or self.schemes != ("https",)):
            raise PolicyError("network", f"has secrets for {self.host}, but not for https alone")
        for name in ("request_bytes", "session_bytes", "requests_a_minute", "seconds"):
            value = getattr(self, name)
            kinds = int | float if name == "seconds" else int
            if not isinstance(value, kinds) or isinstance(value, bool) or not 0 < value < math.inf:
                raise PolicyError("network", f"has {name} of {self.host} that are {value!r}")

    def __str__(self) -> str:
        ports = "".join(f":{port}" for port in self.ports)
        ways = ", ".join(f"{each}://{self.host}{ports}" for each in self.schemes)
        limits = " ".join([*self.methods, *self.paths])
        return f"{'never ' if self.deny else ''}{ways}{f' ({limits})' if limits else ''}"

    @classmethod
    def parse(cls, given: NetworkRule | str | Mapping[str, Any]) -> NetworkRule:
        """Returns the rule that a text or a table describes.

        Raises:
            PolicyError: It describes none.
        """
        if isinstance(given, NetworkRule):
            return given
        if isinstance(given, str):
            return cls._of_text(given)
        if not isinstance(given, Mapping) or "host" not in given:
            raise PolicyError("network", _FORM.format(given))
        known = [each.name for each in fields(cls)]
        for key in given:
            if key not in known:
                raise PolicyError("network", f"has an unknown key {key!r}; it has {known}")
        return cls(**given)

    @classmethod
    def _of_text(cls, text: str) -> NetworkRule:
        rest = text.removeprefix("!")
        try:
            parts = urlsplit(rest if "://" in rest else f"https://{rest}")
            port = parts.port
        except ValueError:
            raise PolicyError("network", _FORM.format(text)) from None
        is_odd = parts.netloc.endswith(":") or "//" in parts.path  # as in htp:/a.org, http//a.org
        is_odd = is_odd or not parts.hostname or parts.scheme not in SCHEMES
        if parts.query or parts.fragment or "@" in parts.netloc or is_odd:
            raise PolicyError("network", _FORM.format(text))
        return cls(
            parts.hostname or "",
            deny=rest != text,
            schemes=(parts.scheme,) if "://" in rest else (),
            ports=() if port is None else (port,),
            paths=(parts.path,) if parts.path.strip("/") else (),
        )

    @property
    def placeholders(self) -> dict[str, str]:
        """The variables of the guest that stand for secrets."""
        return {each.name: placeholder(each.name) for each in self.secrets}

    @property
    def table(self) -> dict[str, Any]:
        """The rule as plain values, which `parse` takes."""
        return asdict(self)

    def names(self, host: str, port: int) -> bool:
        """Returns whether requests of some kind to a host and port fall under the rule."""
        return self._is_of(host) and any(self._has(port, each) for each in self.schemes)

    def covers(self, scheme: str, host: str, port: int) -> bool:
        """Returns whether requests of a scheme to a host and port fall under the rule."""
        return scheme in self.schemes and self._is_of(host) and self._has(port, scheme)

    def matches(self, method: str, path: str) -> bool:
        """Returns whether a request of a method for a path, to its host, falls under the rule."""
        if self.deny:  # some servers take both spellings of letters
            path, paths = path.lower(), tuple(each.lower() for each in self.paths)
        else:
            paths = self.paths
        has_method = not self.methods or method in self.methods
        return has_method and (not paths or any(_is_below(path, each) for each in paths))

    def leads_to(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
        """Returns whether the rule names an address that is not public."""
        if self.host == "localhost" and address.is_loopback:
            return True
        named = [*self.addresses, *([self.host] if is_address(self.host) else [])]
        return any(address in ipaddress.ip_network(each, strict=False) for each in named)

    def _is_of(self, host: str) -> bool:
        if self.host.startswith("*."):
            return host.endswith(self.host[1:])
        return host == self.host

    def _has(self, port: int, scheme: str) -> bool:
        return port in self.ports or (not self.ports and (self.deny or port == SCHEMES[scheme]))


def rules_of(given: Any) -> tuple[NetworkRule, ...]:
    """Returns the rules that a policy's `network` describes; raises `PolicyError`."""
    if not isinstance(given, list | tuple):
        raise PolicyError("network", f"takes a list of rules, not {given!r}")
    return tuple(map(NetworkRule.parse, given))


def plain_host(host: str) -> str:
    """Returns a host in the one spelling that rules are compared with; empty if it has none.

    A name is in lower case, ASCII, without a final dot. An address is as `ipaddress` writes it;
    spellings that only some libraries read as an address, such as `127.1`, are not hosts.
    """
    host = host.lower().removesuffix(".")
    if is_address(host):
        return str(ipaddress.ip_address(host))
    labels = host.split(".")
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)) or _NUMBER.fullmatch(labels[-1]):
        return ""
    return host


def placeholder(secret: str) -> str:
    """Returns the text that stands for a secret in a cell."""
    return f"wasm-kernel-secret-{secret}."


def is_address(host: str) -> bool:
    """Returns whether a host is an address, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host


def _host_of_rule(host: Any) -> str:
    if not isinstance(host, str):
        raise PolicyError("network", f"has a host that is not text, but {host!r}")
    below = "*." if host.startswith("*.") else ""
    plain = plain_host(host.removeprefix("*."))
    if not plain or (below and is_address(plain)):
        raise PolicyError(
            "network",
            f"has the host {host!r}, which is not a name in ASCII (xn--… for others), address, or "
            "*.NAME",
        )
    return below + plain


def _is_below(path: str, beginning: str) -> bool:
    return path == beginning or path.startswith(beginning.removesuffix("/") + "/")


def _is_network(text: Any) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except (ValueError, TypeError):
        return False
    return isinstance(text, str)


def _is_text(text: Any) -> bool:
    return isinstance(text, str)


def _is_port(port: Any) -> bool:
    return isinstance(port, int) and not isinstance(port, bool) and 0 < port < 2**16


_CHECKS: Mapping[str, Any] = {
    "schemes": lambda each: each in SCHEMES,
    "ports": _is_port,
    "methods": lambda each: isinstance(each, str) and _METHOD.fullmatch(each),
    "paths": lambda each: isinstance(each, str) and each.startswith("/"),
    "addresses": _is_network,
}
_OF_SECRETS: Mapping[str, Any] = {
    "file": lambda text: _is_text(text) and (not text or text.startswith(("/", "~/"))),
    "keyring": lambda text: _is_text(text) and (not text or ":" in text[1:-1]),
    "headers": lambda names: (
        isinstance(names, tuple)
        and all(_is_text(each) and _TOKEN.fullmatch(each) for each in names)
    ),
    "query": lambda text: _is_text(text) and (not text or _TOKEN.fullmatch(text)),
}
