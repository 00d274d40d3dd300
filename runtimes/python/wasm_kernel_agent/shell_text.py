"""Text for the shell's scripts: `sort`, `tr`, `diff`, `uniq` and `join`.

just-bash needs minutes for some megabytes of lines, and has no normal format of differences.
"""

from __future__ import annotations

import difflib
import itertools
import math
import os
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from wasm_kernel_agent.shell_options import (
    CLASSES,
    Misuse,
    lines_of,
    number_of,
    options_of,
    text_of,
    write,
)

# -- sort


class _Key(NamedTuple):
    """A part of a line by which `sort` sorts: fields and characters, counted from 1."""

    first: int = 1
    first_at: int = 1
    last: int = 0  # 0: the last of all
    last_at: int = 0  # 0: the last of the field
    flags: str = ""


_KEY = re.compile(r"(\d+)(?:\.(\d+))?([a-zA-Z]*)(?:,(\d+)(?:\.(\d+))?([a-zA-Z]*))?")
_NUMBER = re.compile(r"\s*(-?\d*\.?\d*)")
_SIZE = re.compile(r"\s*(-?\d*\.?\d*)([kKMGTPEZYRQ]?)")
_FLOAT = re.compile(
    r"\s*(([-+]?0x[\da-f]+\.?[\da-f]*(?:p[-+]?\d+)?)"
    r"|[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|inf|nan))",
    re.IGNORECASE,
)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]


def _key_of(text: str, plain: str) -> _Key:
    found = _KEY.fullmatch(text)
    if found is None or "0" in found.group(1, 2, 4):
        raise Misuse(f"invalid key: {text!r}")
    first, first_at, flags, last, last_at, more = found.groups()
    own = flags + (more or "")
    return _Key(int(first), int(first_at or 1), int(last or 0), int(last_at or 0), own or plain)


def _part(line: str, key: _Key, separator: str | None) -> str:
    if separator is None:
        fields = re.findall(r"\s*\S+", line)
    else:
        fields = [f"{field}{separator}" for field in line.split(separator)]
        fields[-1] = fields[-1].removesuffix(separator)
    chosen = fields[key.first - 1 : key.last or None]
    if key.last and len(chosen) == key.last - key.first + 1:
        end = chosen[-1] if separator is None else chosen[-1].removesuffix(separator)
        chosen[-1] = end[: key.last_at or None]
    text = "".join(chosen)
    return (text.lstrip() if "b" in key.flags else text)[key.first_at - 1 :]


def _number(pattern: re.Pattern[str], text: str) -> tuple[int, float | Fraction]:
    """Returns the sort key of a number: `-h` compares the letter of a size before the digits."""
    found = pattern.match(text)
    digits = found.group(1) if found else ""
    try:
        number = Fraction(digits) if len(digits) > sys.float_info.dig else float(digits)
    except ValueError:
        return 0, 0.0
    unit = found.group(2).upper() if found and number and pattern is _SIZE else ""
    order = " KMGTPEZYRQ".index(unit or " ")
    return -order if number < 0 else order, number


def _general(text: str) -> tuple[int, float]:
    """Returns the sort key of the number with which a text begins; other texts come first."""
    found = _FLOAT.match(text)
    number = 0.0
    if found:
        number = float.fromhex(found[2]) if found[2] else float(found[1])
    return (1, 0) if math.isnan(number) else (2 if found else 0, number)


def version_of(text: str) -> tuple[bool, bool, list[int], list[int]]:
    """Returns a value by which texts sort as versions: numbers by value, then endings."""
    stem = re.sub(r"(\.[A-Za-z~][A-Za-z0-9~]*)*$", "", text)
    return text != "", not text.startswith("."), _pieces_of(stem), _pieces_of(text)


def _pieces_of(version: str) -> list[int]:
    pieces: list[int] = []
    for word, digits in re.findall(r"(\D*)(\d*)", version):
        for letter in word:  # `~` comes even before the end, and letters before other signs
            plain = letter.isascii() and letter.isalpha()
            pieces.append(-2 if letter == "~" else ord(letter) + (0 if plain else 256))
        pieces += [0, int(digits)] if digits else [-1]
    return pieces


def _value_of(text: str, flags: str) -> Any:
    """Returns a value by which texts sort with the flags of a key."""
    if "n" in flags or "h" in flags:
        return _number(_SIZE if "h" in flags else _NUMBER, text)
    if "g" in flags:
        return _general(text)
    if "M" in flags:
        month = text.strip()[:3].lower()
        return _MONTHS.index(month) if month in _MONTHS else -1
    if "V" in flags:
        return version_of(text)
    if "d" in flags:
        text = re.sub(r"[^\w\s]|_", "", text)
    return text.upper() if "f" in flags else text


_SORT = """
ignore-leading-blanks b check c dictionary-order d ignore-case f general-numeric-sort g
human-numeric-sort h merge m month-sort M numeric-sort n random-sort R reverse r stable s unique u
version-sort V zero-terminated z key k field-separator t output o buffer-size S parallel T
"""


def sort(words: list[str]) -> int:
    """Sorts lines."""
    values, names = options_of(words, "bcCdfghmMnrRsuVzk:t:o:S:T:", _SORT)
    separator = values.get("t")
    separator = "\0" if separator == "\\0" else separator
    flags = "".join(letter for letter in values if letter in "bdfghMnrV")
    keys = [_key_of(text, flags) for text in values.get("k", "").split("\n") if text]
    keys = keys or [_Key(flags=flags)]
    end = "\0" if "z" in values else "\n"
    lines = lines_of(names, end)

    if "R" in values:
        random.Random().shuffle(lines)
    elif values.keys() & {"c", "C"}:
        arranged = partial(_arranged, keys=keys, separator=separator, values=values)
        return _check(lines, arranged, names, is_quiet="C" in values)
    else:
        lines = _arranged(lines, keys, separator, values)
    if "u" in values:
        makers = [_maker(key, separator) or str for key in keys]
        kept = {repr([make(line) for make in makers]): line for line in reversed(lines)}
        lines = [*reversed(kept.values())]
    write("".join(f"{line}{end}" for line in lines), values.get("o", ""))
    return 0


def _maker(key: _Key, separator: str | None) -> Callable[[str], Any] | None:
    """Returns the function that makes a line's value for a key; None if it is the line."""
    if key[:4] != _Key()[:4] or "b" in key.flags:
        return lambda line: _value_of(_part(line, key, separator), key.flags)
    return (lambda line: _value_of(line, key.flags)) if set(key.flags) - {"r"} else None


def _arranged(
    lines: list[str], keys: list[_Key], separator: str | None, values: dict[str, str]
) -> list[str]:
    if not values.keys() & {"s", "u"}:
        lines = sorted(lines, reverse="r" in values)
    for key in reversed(keys):
        lines = sorted(lines, key=_maker(key, separator), reverse="r" in key.flags)
    return lines


def _check(
    lines: list[str],
    arranged: Callable[[list[str]], list[str]],
    names: Sequence[str],
    *,
    is_quiet: bool,
) -> int:
    if lines == arranged(lines):
        return 0
    pairs = ([*pair] for pair in itertools.pairwise(lines))
    at = next((at for at, pair in enumerate(pairs, 2) if arranged(pair) != pair), 0)
    if not is_quiet:
        sys.stderr.write(f"sort: {[*names, '-'][0]}:{at}: disorder: {lines[at - 1]}\n")
    return 1


# -- tr

_TR = "complement c delete d squeeze-repeats s truncate-set1 t"
_LETTER = r"\\[0-7]{1,3}|\\[^]|[^]".replace("[^]", r"[\s\S]")
_SET = re.compile(rf"\[:(\w+):\]|\[({_LETTER})\*(\d*)\]|({_LETTER})-({_LETTER})|({_LETTER})")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def _letter(text: str) -> str:
    if len(text) == 1:
        return text
    rest = text[1:]
    return chr(int(rest, 8) & 0xFF) if rest[0] in "01234567" else _ESCAPES.get(rest, rest)


def _set_of(text: str, length: int = 0) -> str:
    """Returns the characters that a set names; a repeated one fills up to a length."""
    found = ""
    for match in _SET.finditer(text):
        name, repeated, count, first, last, single = match.groups()
        if name:
            if name not in CLASSES:
                raise Misuse(f"invalid character class {name!r}")
            found += CLASSES[name]
        elif repeated:
            found += _letter(repeated) * (min(int(count or 0), 10_000) or length - len(found))
        elif first:
            start, end = ord(_letter(first)), ord(_letter(last))
            if end < start:
                raise Misuse(f"range-endpoints of {match.group()!r} are in reverse order")
            found += "".join(map(chr, range(start, end + 1)))
        else:
            found += _letter(single)
    return found


def translate(words: list[str]) -> int:
    """Replaces, deletes or squeezes characters."""
    values, sets = options_of(words, "cCdst", _TR)
    if not 1 <= len(sets) <= 2 or (len(sets) == 1 and not values.keys() & {"d", "s"}):
        raise Misuse("missing operand" if len(sets) < 2 else "extra operand")
    text = text_of("-")
    first = _set_of(sets[0])
    second = _set_of(sets[1], len(first)) if len(sets) > 1 else ""
    if "t" in values:
        first = first[: len(second)]
    if values.keys() & {"c", "C"}:
        given = set(first)
        first = "".join(sorted(each for each in set(text) if each not in given))
    if "d" in values:
        text = text.translate(dict.fromkeys(map(ord, first)))
    elif second:
        filled = second[: len(first)] + second[-1] * (len(first) - len(second))
        text = text.translate(
            dict(zip(reversed([*map(ord, first)]), reversed(filled), strict=True))
        )
    if "s" in values:
        squeezed = re.escape(second or first)
        text = re.sub(f"([{squeezed}])\\1+", r"\1", text) if squeezed else text
    write(text)
    return 0


# -- diff


def diff(words: list[str]) -> int:
    """Compares files or folders."""
    words = [word for word in words if not word.startswith("--color")]
    values, names = options_of(words, "uqrsiwbNaU:", _DIFF)
    if len(names) != 2:
        raise Misuse("two files or folders are needed")
    first, second = names
    if Path(first).is_dir() and Path(second).is_dir():
        return max((_of_folders(first, second, values)), default=0)
    if Path(first).is_dir() or Path(second).is_dir():
        inside = Path(first if Path(second).is_dir() else second).name
        first, second = (f"{n}/{inside}" if Path(n).is_dir() else n for n in names)
    return _of_files(first, second, values)


_DIFF = """
brief q unified u recursive r new-file N report-identical-files s ignore-case i ignore-all-space w
ignore-space-change b text a
"""


def _of_folders(first: str, second: str, values: dict[str, str]) -> Iterator[int]:
    for name in sorted({*os.listdir(first), *os.listdir(second)}):  # noqa: PTH208
        one, other = Path(first, name), Path(second, name)
        if one.is_dir() and other.is_dir():
            if "r" in values:
                yield from _of_folders(f"{first}/{name}", f"{second}/{name}", values)
            else:
                print(f"Common subdirectories: {one} and {other}")
        elif "N" not in values and not (one.exists() and other.exists()):
            print(f"Only in {first if one.exists() else second}: {name}")
            yield 1
        else:
            yield _of_files(f"{first}/{name}", f"{second}/{name}", values, named=True)


def _of_files(first: str, second: str, values: dict[str, str], *, named: bool = False) -> int:
    one, other = (
        text_of(n) if n == "-" or "N" not in values or Path(n).exists() else ""
        for n in (first, second)
    )
    if one == other:
        if "s" in values:
            print(f"Files {first} and {second} are identical")
        return 0
    lines = [text.splitlines(keepends=True) for text in (one, other)]
    alike = [[_alike(line, values) for line in each] for each in lines]
    matcher = difflib.SequenceMatcher(None, alike[0], alike[1], autojunk=False)
    if "q" in values or "\0" in one or "\0" in other:
        kind = "Files" if "q" in values else "Binary files"
        print(f"{kind} {first} and {second} differ")
        return 1
    changes = [code for code in matcher.get_opcodes() if code[0] != "equal"]
    if not changes:
        return 0
    unified = number_of(values, "U") if "U" in values else 3 if "u" in values else None
    if named:
        print("diff", *(f"-{o}{v}" for o, v in values.items()), first, second)
    if unified is None:
        write("".join(_normal(changes, *lines)))
    else:
        heads = [f"{n}\t{_stamp(n)}" for n in (first, second)]
        write("".join(_unified(matcher, unified, heads, *lines)))
    return 1


def _alike(line: str, values: dict[str, str]) -> str:
    """Returns a line without the differences that the options ignore."""
    if "w" in values:
        line = "".join(line.split())
    elif "b" in values:
        line = re.sub(r"\s+", " ", line).rstrip()
    return line.lower() if "i" in values else line


def _stamp(name: str) -> str:
    moment = datetime.now(UTC)
    if name != "-" and Path(name).exists():
        moment = datetime.fromtimestamp(Path(name).stat().st_mtime, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f000 +0000")


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield (
            f"{mark}{line}"
            if line.endswith("\n")
            else (f"{mark}{line}\n\\ No newline at end of file\n")
        )


def _normal(changes: Sequence[Any], one: list[str], other: list[str]) -> Iterator[str]:
    for kind, a, b, c, d in changes:
        left, right = _span(a, b), _span(c, d)
        yield f"{left}{'acd'[['insert', 'replace', 'delete'].index(kind)]}{right}\n"
        yield from _marked("< ", one[a:b])
        if kind == "replace":
            yield "---\n"
        yield from _marked("> ", other[c:d])


def _span(start: int, end: int) -> str:
    """Returns the numbers of lines; that of the line before if there are none."""
    return f"{start + 1},{end}" if end - start > 1 else str(max(start + (end > start), 0))


def _unified(
    matcher: Any, context: int, heads: list[str], one: list[str], other: list[str]
) -> Iterator[str]:
    yield f"--- {heads[0]}\n+++ {heads[1]}\n"
    for group in matcher.get_grouped_opcodes(context):
        a, b, c, d = group[0][1], group[-1][2], group[0][3], group[-1][4]
        yield f"@@ -{_range(a, b)} +{_range(c, d)} @@\n"
        for kind, i, j, k, m in group:
            if kind == "equal":
                yield from _marked(" ", one[i:j])
            else:
                yield from _marked("-", one[i:j])
                yield from _marked("+", other[k:m])


def _range(start: int, end: int) -> str:
    length = end - start
    return str(start + 1) if length == 1 else f"{start + (length > 0)},{length}"


# -- uniq and join

_UNIQ = """
count c repeated d all-repeated D unique u ignore-case i skip-fields f skip-chars s check-chars w
zero-terminated z
"""


def unique(words: list[str]) -> None:
    """Prints the first of each run of equal lines."""
    values, names = options_of(words, "cdDuizf:s:w:", _UNIQ)
    fields, skipped = number_of(values, "f") or 0, number_of(values, "s") or 0
    most = number_of(values, "w")

    def key(line: str) -> str:
        part = re.sub(rf"^(?:[ \t]*[^ \t]+){{0,{fields}}}", "", line) if fields else line
        part = part[skipped:][:most]
        return part.lower() if "i" in values else part

    end = "\0" if "z" in values else "\n"
    found: list[str] = []
    for _, run in itertools.groupby(lines_of(names[:1], end), key):
        equal = [*run]
        if ("d" in values or "D" in values) and len(equal) == 1:
            continue
        if "u" in values and len(equal) > 1:
            continue
        kept = equal if "D" in values else equal[:1]
        found += [f"{len(equal):7} {line}" if "c" in values else line for line in kept]
    write("".join(f"{line}{end}" for line in found), *names[1:2])


_Rows = list[tuple[str, list[list[str]]]]
_JOIN = "ignore-case i header H check-order C nocheck-order N zero-terminated z"


def join(words: list[str]) -> None:
    """Prints the pairs of lines of two sorted files that have the same field."""
    values, names = options_of(words, "1:2:j:t:a:v:o:e:iz", _JOIN)
    if len(names) != 2 or "z" in values:
        raise Misuse("two files are needed" if len(names) != 2 else "-z is not known here")
    columns = [int(values.get(each, values.get("j", 1))) - 1 for each in "12"]
    shown = values.get("a", "") + values.get("v", "")
    rows = [[_fields(line, values.get("t")) for line in lines_of([name])] for name in names]

    def wide(key: str, pair: Sequence[list[str]]) -> str:
        rest = [[*row[:at], *row[at + 1 :]] for row, at in zip(pair, columns, strict=True)]
        chosen = [key, *rest[0], *rest[1]]
        if forms := values.get("o", "").replace(",", " ").split():
            chosen = [_chosen(form, key, pair) or values.get("e", "") for form in forms]
        return (values.get("t") or " ").join(chosen)

    if "H" in values and all(rows):
        heads = [one.pop(0) for one in rows]
        print(wide(heads[0][columns[0]], heads))
    sides = [_grouped(one, at, "i" in values) for one, at in zip(rows, columns, strict=True)]
    while any(sides):
        first = min(side[0][0] for side in sides if side)
        met = [side.pop(0)[1] if side and side[0][0] == first else [] for side in sides]
        if all(met):
            pairs = [(one, other) for one in met[0] for other in met[1] if "v" not in values]
        else:
            side = 0 if met[0] else 1
            pairs = [(row, []) if side == 0 else ([], row) for row in met[side]]
            pairs = pairs if str(side + 1) in shown else []
        for pair in pairs:
            side = 0 if pair[0] else 1
            print(wide(pair[side][columns[side]], pair))


def _fields(line: str, separator: str | None) -> list[str]:
    return line.split(separator) if separator else line.split()


def _chosen(form: str, key: str, pair: Sequence[list[str]]) -> str:
    if form == "0":
        return key
    side, _, column = form.partition(".")
    row = pair[int(side) - 1]
    return row[int(column) - 1] if int(column) <= len(row) else ""


def _grouped(rows: list[list[str]], column: int, is_lower: bool) -> _Rows:
    def key(row: list[str]) -> str:
        text = row[column] if column < len(row) else ""
        return text.lower() if is_lower else text

    found = [(each, [*group]) for each, group in itertools.groupby(rows, key)]
    if any(a > b for (a, _), (b, _) in itertools.pairwise(found)):
        raise Misuse("a file is not sorted by its field")
    return found


PROGRAMS = {"uniq": unique, "join": join, "sort": sort, "tr": translate, "diff": diff}
"""All programs, by name."""
