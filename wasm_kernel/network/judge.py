"""`Judge`: decides what cells may reach, by the owner's rules, and counts requests and bytes."""

from __future__ import annotations

import ipaddress
import time
from collections import deque
from dataclasses import dataclass
from urllib.parse import unquote

from wasm_kernel.errors import Door
from wasm_kernel.network_rules import NetworkRule, plain_host

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_MINUTE = 60.0
_NEVER = frozenset({"CONNECT", "TRACE"})
_NOT_PUBLIC = [
    ipaddress.ip_network(each)
    for each in (
        *("168.63.129.16/32", "192.88.99.0/24"),  # Azure's metadata, and relays of 6to4
        *("2002::/16", "2001::/32", "3ffe::/16", "3fff::/20"),  # 6to4, Teredo, tests, documentation
    )
]
_PUBLIC_V6 = ipaddress.ip_network("2000::/3")  # all public ones; others may hold an IPv4 one
_HOST = "{host} can't be reached on port {port}: no rule of this sandbox's network allows it"
_REQUEST = "{method} {scheme}://{host}{path} is not allowed by the rules of this sandbox's network"
_DENIED = "{host} is denied by a rule of this sandbox's network"
_SPELLING = "{host!r} is not a host: write a name, or an address in its plain form"
_FAST = "{host} may get {most:,} requests a minute from this session; wait, and try again"
_MUCH = "this session's requests to {host} have moved {most:,} bytes, which is the most"


class NetworkRefused(PermissionError):
    """A request that the rules do not allow; the text names the setting that would allow it."""


@dataclass
class _Spent:
    """The requests and bytes of a session under one rule."""

    times: deque[float]
    total: int = 0
    count: int = 0


class Judge:
    """Decides on connections and requests of one session. Only the loop's thread uses it.

    Recorded answers do not `count`: a rule then limits no number of requests and bytes.
    """

    def __init__(self, rules: tuple[NetworkRule, ...], door: Door, *, counts: bool = True) -> None:
        self._rules, self._counts = rules, counts
        self._setting = door.name_of("network")
        allowing = [rule for rule in rules if not rule.deny]
        self._spent = {rule: _Spent(deque(maxlen=rule.requests_a_minute)) for rule in allowing}

    def host(self, given: str, port: int) -> str:
        """Returns the plain spelling of a host that some rule allows; raises `NetworkRefused`."""
        host = plain_host(given)
        if not host:
            raise NetworkRefused(_SPELLING.format(host=given[:100]))
        for rule in self._rules:
            if rule.deny and not (rule.methods or rule.paths) and rule.names(host, port):
                raise self._refused(_DENIED.format(host=host))
        if not any(rule.names(host, port) for rule in self._spent):
            raise self._refused(_HOST.format(host=host, port=port))
        return host

    def addresses(self, host: str, port: int, found: list[str]) -> list[str]:
        """Returns the addresses of a host that may be connected to; raises `NetworkRefused`."""
        rules = [rule for rule in self._spent if rule.names(host, port)]
        allowed = [
            each
            for each in found
            if _is_public(address := ipaddress.ip_address(each.partition("%")[0]))
            or any(rule.leads_to(address) for rule in rules)
        ]
        if not allowed:
            raise self._refused(
                f"{host} leads to no public address, and no rule of this sandbox's network has its "
                "address among its addresses"
            )
        return allowed

    def request(self, scheme: str, host: str, port: int, method: str, target: str) -> NetworkRule:
        """Counts a request, and returns the rule that allows it; raises `NetworkRefused`."""
        path = plain_path(target)
        covering = [rule for rule in self._rules if rule.covers(scheme, host, port)]
        for rule in covering:
            # a path that is not clear may be any that the rule denies
            has_method = not rule.methods or method in rule.methods
            if rule.deny and (rule.matches(method, path) if path else has_method):
                raise self._refused(_DENIED.format(host=host))
        for rule in covering:
            if not rule.deny and method not in _NEVER and rule.matches(method, path):
                self._count(rule, host)
                return rule
        shown = path or target.partition("?")[0][:200]
        words = {"method": method, "scheme": scheme, "host": host, "path": shown}
        raise self._refused(_REQUEST.format(**words))

    @property
    def used(self) -> tuple[int, int]:
        """The number of requests that were allowed, and their bytes so far."""
        spent = self._spent.values()
        return sum(each.count for each in spent), sum(each.total for each in spent)

    def spend(self, rule: NetworkRule, size: int, host: str) -> None:
        """Counts bytes of a request or an answer; raises `NetworkRefused` if they are too many."""
        spent = self._spent[rule]
        spent.total += size
        if self._counts and spent.total > rule.session_bytes:
            raise self._refused(_MUCH.format(host=host, most=rule.session_bytes), "session_bytes")

    def _count(self, rule: NetworkRule, host: str) -> None:
        spent, now = self._spent[rule], time.monotonic()
        times, most = spent.times, rule.requests_a_minute
        if self._counts and len(times) == most and now - times[0] < _MINUTE:
            raise self._refused(_FAST.format(host=host, most=most), "requests_a_minute")
        times.append(now)
        spent.count += 1
        self.spend(rule, 0, host)

    def _refused(self, text: str, limit: str = "") -> NetworkRefused:
        """Returns the error, with the setting that its owner can change."""
        field = f"'s {limit}" if limit else ""
        return NetworkRefused(f"{text}. The setting is {self._setting}{field}.")


def plain_path(target: str) -> str:
    """Returns the path that a server sees in a request's target; empty if servers may differ."""
    raw = target.partition("?")[0]
    path = unquote(raw)
    is_twice = unquote(path) != path  # some servers decode a path once more
    is_clear = "%2f" not in raw.lower() and not {"\\", "#", ";", "?", "\ufffd"} & set(path)
    segments = path.split("/")[1:]
    is_cut = any(each.endswith((".", " ")) for each in segments)  # as some servers' files are
    if path.isprintable() and is_clear and not (is_twice or is_cut) and "" not in segments[:-1]:
        return path
    return ""


def _is_public(address: Address) -> bool:
    is_odd = address.is_multicast or address.is_reserved or address.is_unspecified
    is_odd = is_odd or (address.version == 6 and address not in _PUBLIC_V6)
    is_held = any(address in each for each in _NOT_PUBLIC)
    return address.is_global and not is_odd and not is_held
