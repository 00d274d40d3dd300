"""Files for the shell's scripts: `ls`, `stat`, `touch` and `du`."""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wasm_kernel_agent.shell_basics import described_time
from wasm_kernel_agent.shell_options import Misuse, number_of, options_of
from wasm_kernel_agent.shell_text import version_of

_USER = "user"
_HALF_YEAR = 182 * 86400
_BLOCK = 4096

# -- ls

_LS = """
all a almost-all A classify F directory d human-readable h inode i size s reverse r recursive R
no-group G numeric-uid-gid n group-directories-first D time-style W sort O format M color K
hide-control-chars q literal N file-type p full-time E quoting-style '
"""
_SORTS = {"time": "t", "size": "S", "extension": "X", "version": "v", "none": "U", "name": ""}
_FORMATS = {"long": "l", "verbose": "l", "single-column": "1", "commas": "m"}
_STYLES = {"long-iso": "%Y-%m-%d %H:%M", "iso": "%m-%d %H:%M", "full-iso": "%Y-%m-%d %H:%M:%S %z"}
_Entry = tuple[str, os.stat_result]
_ORDERS: dict[str, Callable[[_Entry], Any]] = {
    "t": lambda each: -each[1].st_mtime_ns,
    "S": lambda each: -each[1].st_size,
    "X": lambda each: Path(each[0]).suffix,
    "v": lambda each: version_of(each[0]),
}


def list_files(words: list[str]) -> int:
    """Lists files and folders, one on a line."""
    words = ["--color=no" if word == "--color" else word for word in words]
    values, names = options_of(words, "1aAdDFGghilmnNopqrRsStUvXW:O:M:K:E':", _LS)
    letters = {*values, "l" * bool(values.keys() & {"g", "n", "o", "E"})}
    letters |= {_SORTS.get(values.get("O", "name"), "?")}
    letters |= {_FORMATS.get(values.get("M", "single-column"), "?")}
    if "?" in letters:
        raise Misuse(f"the option {'--sort' if 'O' in values else '--format'} has an unknown value")
    status, found = 0, []
    for name in names or ["."]:
        try:
            path = Path(name)
            found.append((name, path.stat() if _follows(name, letters) else path.lstat()))
        except OSError as problem:
            sys.stderr.write(f"ls: cannot access '{name}': {problem.strerror}\n")
            status = 2
    is_folder = {name: "d" not in letters and stat.S_ISDIR(one.st_mode) for name, one in found}
    found = _sorted(found, letters)
    _show([each for each in found if not is_folder[each[0]]], letters, values, Path())
    named = len(names) > 1 or "R" in letters
    is_first = all(is_folder.values())
    for name, _ in found:
        if is_folder[name]:
            for title, inside in _folders(name, letters):
                if named:
                    print(f"{'' if is_first else chr(10)}{title}:")
                _show(inside, letters, values, Path(title), in_folder=True)
                is_first = False
    return status


def _follows(name: str, letters: set[str]) -> bool:
    """Returns whether a link that a command names stands for its target."""
    return not {"l", "d", "F"} & letters and Path(name).exists()


def _folders(name: str, letters: set[str]) -> Iterator[tuple[str, list[_Entry]]]:
    inside = [each for each in Path(name).iterdir() if {"a", "A"} & letters or each.name[0] != "."]
    found = [(each.name, each.lstat()) for each in inside]
    if "a" in letters:
        found += [(each, Path(name, each).stat()) for each in (".", "..")]
    found = _sorted(found, letters)
    yield name, found
    if "R" in letters:
        for each, one in found:
            if stat.S_ISDIR(one.st_mode) and each not in (".", ".."):
                yield from _folders(f"{name.rstrip('/')}/{each}", letters)


def _sorted(found: list[_Entry], letters: set[str]) -> list[_Entry]:
    if "U" not in letters:
        found = sorted(found)
        for letter in sorted(_ORDERS.keys() & letters):
            found.sort(key=_ORDERS[letter])
        found = found[::-1] if "r" in letters else found
    if "D" in letters:
        found = sorted(found, key=lambda each: not stat.S_ISDIR(each[1].st_mode))
    return found


def _show(
    found: list[_Entry],
    letters: set[str],
    values: dict[str, str],
    folder: Path,
    *,
    in_folder: bool = False,
) -> None:
    rows = [_row(name, one, letters, values, folder) for name, one in found]
    if in_folder and {"l", "s"} & letters:
        print("total", _size(sum(_blocks(one) for _, one in found), letters, 1024))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if cell[:1].isalpha() else cell.rjust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        lines.append(" ".join([*cells[:-1], row[-1]]))
    print(", ".join(lines) if "m" in letters else "\n".join(lines), end="\n" if lines else "")


def _row(
    name: str, one: os.stat_result, letters: set[str], values: dict[str, str], folder: Path
) -> list[str]:
    mark = _mark(one, letters) if "F" in letters or "p" in letters else ""
    row = [str(one.st_ino)] * ("i" in letters)
    row += [_size(_blocks(one), letters, 1024)] * ("s" in letters)
    if "l" in letters:
        owner = str(one.st_uid) if "n" in letters else _USER
        row += [stat.filemode(one.st_mode), str(one.st_nlink or 1)]
        row += [owner] * (2 - ("g" in letters) - bool({"o", "G"} & letters))
        row += [_size(one.st_size, letters, 1), _time(one.st_mtime, letters, values)]
        if stat.S_ISLNK(one.st_mode):
            return [*row, f"{name} -> {Path(folder, name).readlink()}"]
    return [*row, name + mark]


def _mark(one: os.stat_result, letters: set[str]) -> str:
    if stat.S_ISDIR(one.st_mode):
        return "/"
    return "@" if stat.S_ISLNK(one.st_mode) and "F" in letters else ""


def _blocks(one: os.stat_result) -> int:
    return -(-one.st_size // _BLOCK) * _BLOCK


def _size(size: int, letters: set[str], unit: int) -> str:
    if "h" not in letters or size < 1024:
        return str(-(-size // unit)) if "h" not in letters else str(size)
    value, at = float(size), 0
    while value >= 1024:
        value, at = value / 1024, at + 1
    up = -(-value * 10 // 1) / 10
    return f"{up:.1f}{' KMGT'[at]}" if up < 10 else f"{int(-(-value // 1))}{' KMGT'[at]}"


def _time(moment: float, letters: set[str], values: dict[str, str]) -> str:
    style = values.get("W", "full-iso" if "E" in letters else "")
    is_recent = 0 <= time.time() - moment < _HALF_YEAR
    plain = "%b %e %H:%M" if is_recent else "%b %e  %Y"
    form = style[1:] if style.startswith("+") else _STYLES.get(style, plain)
    return time.strftime(form, time.gmtime(moment))


# -- stat

_KINDS = {stat.S_IFDIR: "directory", stat.S_IFLNK: "symbolic link", stat.S_IFREG: "regular file"}
_PLAIN = """  File: %N
  Size: %s\tBlocks: %b\tIO Block: %o\t%F
Device: %d\tInode: %i\tLinks: %h
Access: (0%a/%A)  Uid: ( %u/ %U)   Gid: ( %g/ %G)
Access: %x
Modify: %y
Change: %z
 Birth: %w
"""
_ESCAPES = {"n": "\n", "t": "\t", "0": "\0", "\\": "\\", '"': '"'}


def status_of(words: list[str]) -> int:
    """Prints the facts of files: `stat`."""
    values, names = options_of(words, "c:Lp:t", "format c printf p dereference L terse t")
    if not names:
        raise Misuse("missing operand")
    form = values.get("c", "") + "\n" if "c" in values else _PLAIN
    if "p" in values:
        escape = re.compile(r'\\([nt0\\"])')
        form = escape.sub(lambda found: _ESCAPES[found[1]], values["p"])
    status = 0
    for name in names:
        try:
            one = Path(name).stat() if "L" in values else Path(name).lstat()
        except OSError as problem:
            sys.stderr.write(f"stat: cannot statx '{name}': {problem.strerror}\n")
            status = 1
            continue
        sys.stdout.write(_filled(form, _known(name, one)))
    return status


def _filled(form: str, known: dict[str, str]) -> str:
    def one(found: re.Match[str]) -> str:
        if found[2] not in known:
            raise Misuse(f"the directive {found[0]} is not known here")
        width, text = found[1], known[found[2]]
        return text.ljust(int(width[1:])) if width[:1] == "-" else text.rjust(int(width or 0))

    return re.sub(r"%(-?\d*)(?:\.\d+)?([a-zA-Z%])", one, form)


def _known(name: str, one: os.stat_result) -> dict[str, str]:
    kind = _KINDS.get(stat.S_IFMT(one.st_mode), "file")
    empty = " empty" if kind == "regular file" and not one.st_size else ""
    target = f" -> '{Path(name).readlink()}'" if stat.S_ISLNK(one.st_mode) else ""
    known = {
        "n": name,
        "N": f"'{name}'{target}",
        "s": str(one.st_size),
        "F": kind.replace("regular file", f"regular{empty} file"),
        "a": f"{stat.S_IMODE(one.st_mode):o}",
        "A": stat.filemode(one.st_mode),
        "f": f"{one.st_mode:x}",
        "b": str(_blocks(one) // 512),
        "B": "512",
        "o": str(_BLOCK),
        "h": str(one.st_nlink or 1),
        "i": str(one.st_ino),
        "d": str(one.st_dev),
        "u": str(one.st_uid),
        "g": str(one.st_gid),
        **dict.fromkeys("UG", _USER),
        "w": "-",
        "W": "0",
        "%": "%",
    }
    moments = {"x": one.st_atime_ns, "y": one.st_mtime_ns, "z": one.st_ctime_ns}
    for letter, moment in moments.items():
        seconds, rest = divmod(moment, 10**9)
        text = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
        known |= {letter: f"{text}.{rest:09} +0000", letter.upper(): str(seconds)}
    return known


# -- touch

_STAMP = re.compile(r"((?:\d\d)?\d\d)?(\d\d)(\d\d)(\d\d)(\d\d)(?:\.(\d\d))?")


def touch(words: list[str]) -> None:
    """Sets the times of files, which are made if they are not there: `touch`."""
    values, names = options_of(words, "acmhfd:r:t:", "date d reference r no-create c")
    now = datetime.now(UTC)
    if "r" in values:
        moment = Path(values["r"]).stat().st_mtime
    elif "t" in values:
        moment = _stamped(values["t"], now)
    else:
        moment = described_time(values.get("d", "now"), now).timestamp()
    for path in map(Path, names):
        if "c" in values and not path.exists():
            continue
        path.touch()
        before = path.stat()
        accessed = before.st_atime if "m" in values and "a" not in values else moment
        modified = before.st_mtime if "a" in values and "m" not in values else moment
        os.utime(path, (accessed, modified))


def _stamped(text: str, now: datetime) -> float:
    found = _STAMP.fullmatch(text)
    if found is None:
        raise Misuse(f"invalid date format {text!r}")
    year, *rest, second = found.groups()
    whole = now.year if year is None else int(year) + (0 if len(year) == 4 else 2000)
    month, day, hour, minute = map(int, rest)
    return datetime(whole, month, day, hour, minute, int(second or 0), tzinfo=UTC).timestamp()


# -- du

_DU = """
all a bytes b apparent-size b total c max-depth d summarize s human-readable h
"""


def sizes(words: list[str]) -> None:
    """Prints how much space files and folders take: `du`."""
    values, names = options_of(words, "abcd:hksm", _DU)
    depth = 0 if "s" in values else number_of(values, "d")
    unit = 1 if "b" in values else 1024**2 if "m" in values else 1024
    letters = {*values} & {"h"}
    total = 0
    for name in names or ["."]:
        for level, path, size in _sizes(name.rstrip("/") or "/", 0, "b" in values):
            total += size if level == 0 else 0
            shown = level == 0 or Path(path).is_dir() or "a" in values
            if shown and (depth is None or level <= depth):
                print(f"{_size(size, letters, unit)}\t{path}")
    if "c" in values:
        print(f"{_size(total, letters, unit)}\ttotal")


def _sizes(name: str, level: int, is_exact: bool) -> Iterator[tuple[int, str, int]]:
    path = Path(name)
    one = path.lstat()
    size = one.st_size if is_exact else _blocks(one)
    if path.is_dir() and not path.is_symlink():
        for each in sorted(path.iterdir()):
            for found in _sizes(f"{name}/{each.name}", level + 1, is_exact):
                size += found[2] if found[0] == level + 1 else 0
                yield found
    yield level, name, size


PROGRAMS = {"ls": list_files, "stat": status_of, "touch": touch, "du": sizes}
"""All programs, by name."""
