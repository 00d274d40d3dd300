"""The limits of a sandbox: `ExecutionPolicy`, frozen and checked when it is made."""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from wasm_kernel.errors import Door, PolicyError

if TYPE_CHECKING:  # most policies have no network
    from wasm_kernel.network_rules import NetworkRule

MIB = 1024 * 1024
WASM_MEMORY_MAX = 4096 * MIB  # a 32-bit linear memory ends here
MAX_MOUNTS = 8  # the number of descriptors that the guest has set aside for them
MEMORY_MIN = 512 * MIB  # the booted guest with pandas and matplotlib fits, and little else
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*((?:[kmgt]i?)?b|[kmgt]|)", re.IGNORECASE)
_POWERS = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_MOUNT_KEYS = {"host": str, "guest": str, "writable": bool}
_PRESETS = "network.toml"
_NO_PRESETS = f"there is no {_PRESETS} in wasm-kernel of your folder for configuration (~/.config)"
RESERVED_MOUNTS = ("/app", "/dev", "/notebook", "/tmp", "/usr")  # noqa: S108 - the guest's paths


class RuntimeType(str, Enum):
    """The languages a sandbox can run."""

    PYTHON = "python"
    JAVASCRIPT = "javascript"

    @classmethod
    def checked(cls, runtime: RuntimeType | str) -> RuntimeType:
        """Returns a language by name.

        Raises:
            ValueError: No sandbox runs it; the text lists the languages.
        """
        try:
            return cls(runtime)
        except ValueError:
            known = ", ".join(repr(each.value) for each in cls)
            raise ValueError(f"this sandbox can't run {runtime!r}; it runs {known}") from None


class NetworkMode(str, Enum):
    """The sources of the answers to cells' requests."""

    LIVE = "live"
    RECORD = "record"
    REPLAY = "replay"


@dataclass(frozen=True)
class Mount:
    """A host folder that the guest sees under `guest`, read-only unless `writable`."""

    host: Path
    guest: str
    writable: bool = False

    def __str__(self) -> str:
        return f"{self.guest} ({'writable' if self.writable else 'read-only'})"

    @classmethod
    def parse(cls, given: Mount | str | Mapping[str, Any]) -> Mount:
        """Returns the mount that a text (`HOST:GUEST`, `HOST:GUEST:rw`) or a table describes.

        Raises:
            PolicyError: It describes none.
        """
        if isinstance(given, Mount):
            is_path = isinstance(given.host, str | Path) and str(given.host)  # or `check` refuses
            return replace(given, host=user_path(given.host)) if is_path else given
        return cls._of_text(given) if isinstance(given, str) else cls._of_table(given)

    @classmethod
    def _of_text(cls, text: str) -> Mount:
        writable = text.endswith(":rw")
        host, colon, guest = text.removesuffix(":rw" if writable else ":ro").rpartition(":")
        if not (colon and host and guest):
            raise PolicyError("mounts", f"takes HOST:GUEST or HOST:GUEST:rw, not {text!r}")
        return cls(user_path(host), guest, writable)

    @classmethod
    def _of_table(cls, table: Any) -> Mount:
        if not isinstance(table, Mapping) or not {"host", "guest"} <= table.keys():
            raise PolicyError(
                "mounts", f"takes HOST:GUEST, or a table of host and guest, not {table}"
            )
        for key, value in table.items():
            if key not in _MOUNT_KEYS:
                raise PolicyError("mounts", f"has an unknown key {key!r}{_hint(key, _MOUNT_KEYS)}")
            if not isinstance(value, _MOUNT_KEYS[key]) or value == "":
                raise PolicyError("mounts", f"has a {key} that is {value!r}")
        return cls(user_path(table["host"]), table["guest"], table.get("writable", False))

    def check(self) -> None:
        """Checks the mount.

        Raises:
            PolicyError: The guest's path is not plain or is the guest's own, or the host's folder
                does not exist.
        """
        parts = self.guest.split("/") if isinstance(self.guest, str) else ()
        if len(parts) < 2 or parts[0] or any(p in ("", ".", "..") for p in parts[1:]):
            raise PolicyError("mounts", f"needs an absolute, plain guest path, not {self.guest!r}")
        if "/" + parts[1] in RESERVED_MOUNTS:
            raise PolicyError("mounts", f"can't cover the guest's own {'/' + parts[1]}")
        if not (isinstance(self.host, str | Path) and str(self.host)):
            raise PolicyError("mounts", f"needs a host path for {self.guest}, not {self.host!r}")
        if not isinstance(self.writable, bool):
            raise PolicyError("mounts", f"has a wrong writable for {self.guest}: {self.writable!r}")
        if not os.path.isdir(self.host):  # noqa: PTH112 - a `Path`'s raises for a long name
            raise PolicyError("mounts", f"names a host folder for {self.guest} that is not there")


def user_path(path: os.PathLike[str] | str) -> Path:
    """Returns a path that the user named; a `~` at its beginning stands for the home folder.

    Raises `ValueError` for an empty text, which is often a variable that is not set, and would mean
    the current folder.
    """
    if path == "":
        raise ValueError("a path is an empty text; name one, such as '.'")
    return Path(os.path.expanduser(path))  # noqa: PTH111 - a `Path`'s raises for an unknown user


class _Mounts:
    """The field `mounts`: set from mounts, texts and tables, read as a tuple of mounts."""

    def __get__(self, policy: object, kind: type) -> tuple[Mount, ...]:
        mounts: tuple[Mount, ...] = () if policy is None else vars(policy)["mounts"]
        return mounts

    def __set__(self, policy: object, given: Sequence[Mount | str]) -> None:
        if not isinstance(given, list | tuple):
            raise PolicyError("mounts", f"takes a list of mounts, not {given!r}")
        mounts = tuple(map(Mount.parse, given))
        if len(mounts) > MAX_MOUNTS:
            raise PolicyError("mounts", f"takes at most {MAX_MOUNTS} folders")
        for mount in mounts:
            mount.check()
        if len({mount.guest for mount in mounts}) != len(mounts):
            raise PolicyError("mounts", "names one guest path twice")
        vars(policy)["mounts"] = mounts


class _Network:
    """The field `network`: set from rules, texts and tables, read as a tuple of rules.

    Without rules nothing is loaded for it.
    """

    def __get__(self, policy: object, kind: type) -> tuple[NetworkRule, ...]:
        rules: tuple[NetworkRule, ...] = () if policy is None else vars(policy)["network"]
        return rules

    def __set__(self, policy: object, given: Sequence[NetworkRule | str]) -> None:
        if given in ([], ()):
            vars(policy)["network"] = ()
            return
        from wasm_kernel.network_rules import rules_of

        rules: list[Any] = []
        for each in given if isinstance(given, list | tuple) else rules_of(given):
            if isinstance(each, str) and each.startswith("@"):
                rules += _preset(each[1:])
            else:
                rules.append(each)
        vars(policy)["network"] = rules_of(rules)


def _preset(name: str) -> list[Any]:
    """Returns the rules of a name in the user's file of presets."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(home) if home.startswith("/") else Path("~/.config").expanduser()
    file = folder / "wasm-kernel" / _PRESETS
    if not file.exists():
        raise PolicyError("network", f"has @{name}, but {_NO_PRESETS}")
    presets = read_toml(file)
    found = presets.get(name)
    if not isinstance(found, list):
        known = ", ".join(presets) or "it has none"
        raise PolicyError(
            "network", f"has @{name}, but {_PRESETS} has no list of that name ({known})"
        )
    return found


_BOUNDS = {
    "fuel_budget": (1, 2**62),
    "memory_bytes": (MEMORY_MIN, WASM_MEMORY_MAX),
    "open_files": (16, 65_536),
    "history_cells": (1, 10_000),
    "history_bytes": (64 * MIB, None),
}
"""The least and the most of whole numbers; the least of others is 0."""


@dataclass(frozen=True)
class ExecutionPolicy:
    """The limits of one sandbox; each holds for every single cell unless it says otherwise.

    Attributes:
        fuel_budget: Fuel a cell may burn (roughly one unit a wasm instruction). None or 0 for no
            limit: code is not metered then, a third faster or more, and relies on `cell_timeout`
            alone.
        memory_bytes: The most the guest's memory may grow to, in bytes, for the whole session.
        cell_timeout: Wall-clock seconds a cell may take; None or 0 for no limit. Time spent
            waiting for the user's `input()` does not count.
        grace_seconds: Seconds an interrupted cell has to notice it before it is stopped. One that
            catches the interrupt and goes on is stopped by the next one.
        query_seconds: Seconds that a completion or an inspection may take.
        stdout_bytes: Bytes of standard output a cell may write; the rest is cut with a notice.
        stderr_bytes: The same for standard error.
        display_bytes: Bytes of rich output (displays, results, errors) a cell may send, or the
            bytes that it takes in the host's memory if they are more: a text takes one, two or
            four bytes per character, as its widest one needs, and a value of JSON takes 30 to 250.
            A cell's output takes in the host at most the sum of this, four times `stdout_bytes`
            and `stderr_bytes`, and 512 MiB while a single output is read, checked and sent (by
            default 896 MiB). This memory is freed after the cell.
        display_count: How many rich outputs a cell may send.
        output_bytes: Bytes that a single rich output may have.
        session_output_bytes: Bytes of text and rich output that a session may show in all, as long
            as its kernel lives.
        text_file_bytes: If above 0, text that a cell writes beyond `stdout_bytes` or `stderr_bytes`
            is not lost: the whole text, up to this many bytes of each stream, goes to a file in
            `/app`.
        comm_seconds: Seconds that a widget's callback may take; it is then interrupted.
        comm_count: How many messages a cell, or a callback, may send to widgets in the page.
        comm_bytes: Bytes of such messages.
        open_files: Files the guest may have open at once.
        workspace_bytes: The most that the files in `/app` and `/tmp` together may hold, in bytes.
            A sparse file counts with its full length, one with several names counts once, the
            memory history and mounts do not count. Beyond it the guest's own calls fail with "No
            space left on device". All forks of a session that cells and agents make, and forks of
            those, may take this, `history_bytes` and `files_history_bytes` on disk together, and
            `workspace_files` files; one fork is always made.
        workspace_files: How many files, folders and links may lie in `/app` and `/tmp` together.
        history_cells: How many cells can be undone; older ones are folded together.
        history_bytes: The most the history may take on disk, in bytes; above, fewer cells can be
            undone. Named states count, and no state gets a name if they would take more. The newest
            state is always kept.
        files_history_bytes: The most that earlier versions of changed files may take on disk, in
            bytes, so that `%undo --files` brings them back; the oldest go first, and 0 keeps none.
            Files that were deleted while a cell had them open may take as much again.
        file_copy_bytes: The largest file, in bytes, that is copied before a cell changes it in
            place, if the file system can't clone it.
        mounts: Further host folders that the guest sees, each a `Mount` or a text such as
            `HOST:GUEST` or `HOST:GUEST:rw`.
        network: Hosts that cells may send HTTP requests to, and the limits of these requests. Each
            is a `NetworkRule`, or a text: `https://api.example.org/data`, or `!example.org` for a
            host that is refused whatever other rules say, or `@NAME` for a list in the user's own
            file of presets. By default there are none, and no network. It needs the packages of
            `wasm-kernel[network]`.
        network_mode: The source of the answers to requests, and to calls of the program's own
            functions. live: their hosts, and the functions. record: the same, and the session
            keeps requests and answers, without secrets, and calls with their results. replay: what
            the session has kept; others are refused, none reaches the network, and no function is
            called.
        network_record_bytes: The most that the requests, calls and answers that a session keeps
            may take on disk, in bytes. An answer beyond it is refused.
        env: Environment variables of the guest.
        deterministic: Whether sessions that run the same cells compute the same: all of them get
            the same random numbers, folders are listed in order, and the clock begins with the
            year 2000, moves by a millisecond at each reading, and skips sleeps without waiting.
        door: The interface that the sandbox is used through, which decides the advice in its
            texts. It is not a limit, and no file or trait sets it.
    """

    fuel_budget: int | None = None
    memory_bytes: int = 2048 * MIB
    cell_timeout: float | None = 3600.0
    grace_seconds: float = 2.0
    query_seconds: float = 1.0
    stdout_bytes: int = 16 * MIB
    stderr_bytes: int = 16 * MIB
    display_bytes: int = 256 * MIB
    display_count: int = 20_000
    output_bytes: int = 48 * MIB
    session_output_bytes: int = 16_384 * MIB
    text_file_bytes: int = 0
    comm_seconds: float = 60.0
    comm_count: int = 200_000
    comm_bytes: int = 256 * MIB
    open_files: int = 256
    workspace_bytes: int = 2048 * MIB
    workspace_files: int = 16_000
    history_cells: int = 20
    history_bytes: int = 4096 * MIB
    files_history_bytes: int = 512 * MIB
    file_copy_bytes: int = 64 * MIB
    mounts: _Mounts = _Mounts()
    network: _Network = _Network()
    network_mode: str = NetworkMode.LIVE.value
    network_record_bytes: int = 512 * MIB
    env: Mapping[str, str] = field(default_factory=dict)
    deterministic: bool = False
    door: Door = Door.PROGRAM

    def __post_init__(self) -> None:
        for name in OPTIONAL_FIELDS:
            if getattr(self, name) == 0 and not isinstance(getattr(self, name), bool):
                object.__setattr__(self, name, None)
        for name, kind in _NUMBERS.items():
            if getattr(self, name) is None and name in OPTIONAL_FIELDS:
                continue
            if "float" in kind:
                self._seconds(name)
            else:
                self._whole(name, *_BOUNDS.get(name, (0, None)))
        check_env(self.env)
        modes = [mode.value for mode in NetworkMode]
        if self.network_mode not in modes:
            raise PolicyError("network_mode", f"is {' or '.join(modes)}, not {self.network_mode!r}")
        if not isinstance(self.deterministic, bool):
            raise PolicyError("deterministic", f"is true or false, not {self.deterministic!r}")
        object.__setattr__(self, "env", MappingProxyType(dict(self.env)))

    @classmethod
    def from_values(cls, values: Mapping[str, Any], folder: Path | None = None) -> ExecutionPolicy:
        """Returns the policy that plain values describe, as they come from a file or from traits.

        A value of 0 stands for None. A mount may also be a table of `host`, `guest` and `writable`.

        Args:
            values: The values by field; a field that is left out has its default.
            folder: The folder that hosts of mounts are relative to; by default the current one.

        Raises:
            PolicyError: A field is unknown, or a value breaks its rule.
        """
        for name in values:
            if name not in POLICY_FIELDS:
                raise PolicyError(name, f"is not a limit{_hint(name, POLICY_FIELDS)}")
        made = dict(values)
        if folder is not None and isinstance(made.get("mounts"), list):
            mounts = map(Mount.parse, made["mounts"])
            made["mounts"] = [replace(each, host=folder / each.host) for each in mounts]
        return cls(**made)

    @classmethod
    def from_toml(cls, path: Path | str) -> ExecutionPolicy:
        """Returns the policy in a TOML file.

        Each field is a key of its name; a field that is left out has its default. `env` is a table;
        `mounts` is a list of texts (`"HOST:GUEST:rw"`) or of tables with `host`, `guest` and
        `writable`, and a relative host is seen from the file's own folder. `network` is a list of
        texts or of tables with the attributes of `NetworkRule`.

        Raises:
            PolicyError: The file can't be read, a key is unknown, or a value breaks its rule; the
                error names the file and the key.
        """
        path = user_path(path)
        values = read_toml(path)
        try:
            return cls.from_values(values, path.parent)
        except PolicyError as problem:
            where = f"{path.name}{_line_of(problem.field, path)}"
            raise PolicyError(problem.field, problem.rule, where=where) from None

    def _whole(self, name: str, least: int, most: int | None) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise PolicyError(name, f"must be a whole number, not {value!r}")
        if value < least or (most is not None and value > most):
            bound = f"at least {least:,}" if most is None else f"from {least:,} to {most:,}"
            raise PolicyError(name, f"must be {bound}, not {value:,}")

    def _seconds(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise PolicyError(name, f"must be a number of seconds, not {value!r}")
        if not (math.isfinite(value) and value > 0):
            raise PolicyError(name, f"must be a finite number of seconds above 0, not {value!r}")

    def at(self, door: Door) -> ExecutionPolicy:
        """Returns the same limits for a sandbox that is used through `door`."""
        return replace(self, door=door)

    @property
    def guest_env(self) -> dict[str, str]:
        """The environment variables of the guest, with placeholders of the network's secrets."""
        found = dict(self.env)
        for rule in self.network:
            found |= rule.placeholders
        return found

    @property
    def uses_exchanges(self) -> bool:
        """True if cells have a network, or calls and requests are recorded or replayed."""
        return bool(self.network) or self.network_mode != NetworkMode.LIVE

    @property
    def reaches_out(self) -> bool:
        """True if requests of cells reach their hosts."""
        return bool(self.network) and self.network_mode != NetworkMode.REPLAY

    @property
    def metered(self) -> bool:
        """True if the guest's code counts fuel."""
        return self.fuel_budget is not None


POLICY_FIELDS = tuple(f.name for f in fields(ExecutionPolicy) if f.name != "door")
_KINDS = {f.name: str(f.type) for f in fields(ExecutionPolicy)}
OPTIONAL_FIELDS = frozenset(name for name, kind in _KINDS.items() if "None" in kind)
_NUMBERS = {name: kind for name, kind in _KINDS.items() if kind.startswith(("int", "float"))}


def check_env(env: Mapping[str, str]) -> None:
    """Raises `PolicyError` unless a guest can have these environment variables."""
    if not isinstance(env, Mapping):
        raise PolicyError("env", f"takes names with their values, not {env!r}")
    for key, value in env.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise PolicyError("env", "takes names and values that are text")
        if not key or "=" in key or "\0" in key + value:
            raise PolicyError("env", f"can't hold the variable {key!r}")


def is_limit(name: str, value: object) -> bool:
    """Returns whether a value can be a limit: above 0, finite, and whole if not in seconds."""
    kinds = int | float if name.endswith("seconds") else int
    return isinstance(value, kinds) and not isinstance(value, bool) and 0 < value < math.inf


def check_limit(name: str, value: object, otherwise: str = "") -> None:
    """Raises `PolicyError` if a value can't be a limit; `otherwise` names other allowed values."""
    if not is_limit(name, value):
        number = "finite number of seconds" if name.endswith("seconds") else "whole number"
        raise PolicyError(name, f"must be a {number} above 0{otherwise}, not {value!r}")


def size_of(text: str, *, plain: int = 1) -> int:
    """Returns the bytes that a text such as `512M` or `1.5 GiB` means.

    A number without a unit counts units of `plain` bytes. Raises `ValueError` for other texts.
    """
    if (found := _SIZE.fullmatch(text.strip())) is None:
        raise ValueError(f"{text!r} is not a size such as 512M")
    unit = found[2][:1].lower()
    return int(float(found[1]) * (1024 ** _POWERS[unit] if unit else plain))


def field_meanings() -> dict[str, str]:
    """Returns the meaning of each field of a policy, from the class's own docstring."""
    text = inspect.cleandoc(ExecutionPolicy.__doc__ or "")
    found = re.findall(r"^ {4}(\w+): (.+?)(?=^ {4}\w+: |\Z)", text, re.MULTILINE | re.DOTALL)
    return {name: " ".join(words.split()) for name, words in found}


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the values in a TOML file, unchecked. Raises `PolicyError` if it can't be read."""
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise PolicyError(path.name, f"can't be read ({problem.strerror})") from None
    except UnicodeDecodeError:
        raise PolicyError(path.name, "is not text in UTF-8") from None
    except (ValueError, RecursionError) as problem:
        raise PolicyError(path.name, f"is not a TOML file ({problem})") from None


def _line_of(key: str, path: Path) -> str:
    """Returns the line of a key in a TOML file, as ", line 3"; empty if it is not found."""
    pattern = re.compile(rf"""\[*\s*["']?{re.escape(key)}["']?\s*[=\].]""")
    lines = path.read_text(encoding="utf-8").splitlines()
    found = (number for number, line in enumerate(lines, 1) if pattern.match(line.strip()))
    return "".join(f", line {number}" for number in islice(found, 1))


def _hint(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
