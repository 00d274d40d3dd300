"""A policy as people write it down: in a TOML file, in traits, on a command line.

Each field of `ExecutionPolicy` is a key of its name. These forms have no None: 0 says the same. A
mount is the text `HOST:GUEST[:rw]`, or in TOML a table of `host`, `guest` and `writable`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wasm_kernel.errors import PolicyError
from wasm_kernel.policy import POLICY_FIELDS, ExecutionPolicy, Mount

_MOUNT = {"host": str, "guest": str, "writable": bool}


def policy_of(values: Mapping[str, Any], folder: Path | None = None) -> ExecutionPolicy:
    """The policy that plain values describe.

    Args:
        values: The values by field; what is left out has its default.
        folder: The folder that hosts of mounts are relative to, the current one by default.

    Raises:
        PolicyError: a field is unknown, or a value breaks its rule.
    """
    for name in values:
        if name not in POLICY_FIELDS:
            raise PolicyError(name, f"is no limit{_meant(name, POLICY_FIELDS)}")
    made = dict(values)
    if "mounts" in made:
        made["mounts"] = _mounts(made["mounts"], folder or Path())
    return ExecutionPolicy(**made)


def read(path: Path) -> dict[str, Any]:
    """The values in a TOML file, as they are written there.

    Raises:
        PolicyError: it can't be read, or is no TOML.
    """
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise PolicyError(path.name, f"can't be read ({problem.strerror})") from None
    except (ValueError, RecursionError) as problem:
        raise PolicyError(path.name, f"is no TOML file ({problem})") from None


def policy_in(path: Path) -> ExecutionPolicy:
    """The policy in a TOML file; see `ExecutionPolicy.from_toml`."""
    values = read(path)
    try:
        return policy_of(values, path.parent)
    except PolicyError as problem:
        raise PolicyError(problem.field, problem.rule, where=path.name) from None


def _mounts(given: Any, folder: Path) -> tuple[Mount, ...]:
    if not isinstance(given, list | tuple):
        raise PolicyError("mounts", f"takes a list, not {given!r}")
    return tuple(_mount(one, folder) for one in given)


def _mount(given: Any, folder: Path) -> Mount:
    if isinstance(given, Mount):
        return given
    mount = Mount.parse(given) if isinstance(given, str) else _tabled(given)
    return Mount(folder / mount.host.expanduser(), mount.guest, mount.writable)


def _tabled(given: Any) -> Mount:
    if not isinstance(given, Mapping) or not {"host", "guest"} <= given.keys():
        raise PolicyError("mounts", f"takes HOST:GUEST, or a table of host and guest, not {given}")
    for key, value in given.items():
        if key not in _MOUNT:
            raise PolicyError("mounts", f"has an unknown key {key!r}{_meant(key, tuple(_MOUNT))}")
        if not isinstance(value, _MOUNT[key]):
            raise PolicyError("mounts", f"has a {key} that is {value!r}")
    return Mount(Path(given["host"]), given["guest"], given.get("writable", False))


def _meant(name: str, known: tuple[str, ...]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
