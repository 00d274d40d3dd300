"""Programs for the shell's scripts: just-bash lacks them, or options of them that scripts use."""

from __future__ import annotations

import ast
import os
import random
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal, localcontext
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from wasm_kernel_agent.shell_options import Misuse, content_of, lines_of, number_of, options_of

# -- date

_STEP = re.compile(
    r"([+-]?\s*\d+|next|last|this)?\s*"
    r"(?<![a-z])(second|sec|minute|min|hour|day|week|fortnight|month|year)s?\b\s*(ago)?",
    re.IGNORECASE,
)
_WEEKDAY = re.compile(
    r"\b(next|last|this)?\s*(mon|tues|wednes|thurs|fri|satur|sun)day\b", re.IGNORECASE
)
_OFFSET = re.compile(
    r"(:\d\d\s*)([+-]\s*\d\d?)(?=\s+(?:sec|min|hour|day|week|fort|month|year))", re.IGNORECASE
)
"""A number with a sign after a time: `date` takes it for hours from UTC."""
_DOTTED_DATE = re.compile(r"\d\.\d+\.\d")
_DAY_OF_DATE = re.compile(r"\d[-/]\d|\d{5}|\d\s+[a-z]{3}|[a-z]{3}\s+\d", re.IGNORECASE)
_NAMES = {"now": 0, "today": 0, "yesterday": -1, "tomorrow": 1}
_SECONDS = {"sec": 1, "second": 1, "min": 60, "minute": 60, "hour": 3600, "day": 86400}
_DAYS = ["mon", "tues", "wednes", "thurs", "fri", "satur", "sun"]


_DATE = "utc u universal u date d reference r iso-8601 I rfc-email R rfc-3339 3"
_HOURS = {"EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7}
_HOURS |= {"BST": 1, "CET": 1, "CEST": 2, "EET": 2, "EEST": 3, "JST": 9}


def date(words: list[str]) -> None:
    """Prints the current time, or a described one, in a format."""
    words = [re.sub("^(-I|--iso-8601)$", "-Idate", word) for word in words]
    values, formats = options_of(words, "ud:r:I:R3:", _DATE)
    zone = _zone("" if "u" in values else os.environ.get("TZ", ""))
    moment = datetime.now(zone)
    if "r" in values:
        moment = datetime.fromtimestamp(Path(values["r"]).stat().st_mtime, zone)
    elif "d" in values:
        try:
            moment = described_time(values["d"], moment)
        except (ValueError, OverflowError, RuntimeWarning):
            raise Misuse(f"invalid date {values['d']!r}") from None
    if "R" in values:
        print(format_datetime(moment))
        return
    iso = {"date": "+%F", "hours": "+%FT%H%:z", "minutes": "+%FT%H:%M%:z", "seconds": "+%FT%T%:z"}
    iso["ns"] = "+%FT%T,%N%:z"
    form = [*formats, "+%a %b %e %H:%M:%S %Z %Y"][0]
    if values.keys() & {"I", "3"}:
        unit = values.get("I", values.get("3", ""))
        form = next((iso[name] for name in iso if name.startswith(unit)), "")
        form = form.replace("T", " ", 1).replace(",", ".") if "3" in values else form
    if not form.startswith("+"):
        raise Misuse(f"invalid date {form!r}: the clock can't be set")
    print(formatted_time(moment, form[1:]))


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name.lstrip(":")) if name else UTC
    except (ValueError, OSError, LookupError):
        raise Misuse(f"the time zone {name!r} is not known here") from None


def formatted_time(moment: datetime, form: str) -> str:
    """Returns a time as text, in a format of `date`."""
    own = {
        "s": str(int(moment.timestamp())),
        "N": f"{moment.microsecond:06}000",
        "q": str((moment.month + 2) // 3),
    }

    def one(match: re.Match[str]) -> str:
        width, letter = match.groups()
        if letter == "N" and width:
            return own[letter][: int(width)]
        return own[letter].rjust(int(width or 0), "0") if letter else match[0]

    return moment.strftime(re.sub(r"%%|%[-_0^#]?(\d*)([sNq])", one, form))


def described_time(text: str, now: datetime) -> datetime:
    """Returns the time that words such as `2024-01-31 +1 month` describe."""
    from dateutil import parser  # type: ignore[import-untyped]

    if re.fullmatch(r"\s*@-?\d+(\.\d+)?\s*", text):
        return datetime.fromtimestamp(float(text.strip()[1:]), now.tzinfo)
    text = _OFFSET.sub(lambda found: f"{found[1]}{int(found[2].replace(' ', '')):+03}:00 1 ", text)
    steps = [*_STEP.finditer(text)]
    rest = _STEP.sub(" ", text)
    weekday = _WEEKDAY.search(rest)
    rest = _WEEKDAY.sub(" ", rest)
    start = now.replace(hour=0, minute=0, second=0, microsecond=0)
    moment, days = start if weekday or not text.strip() else now, 0
    for word in [each.lower() for each in rest.split()]:
        if word in _NAMES:
            days += _NAMES[word]
            rest = re.sub(rf"\b{word}\b", " ", rest, flags=re.IGNORECASE)
    if _DOTTED_DATE.search(rest):
        raise ValueError(rest)
    if rest.strip():
        if re.search(r"\b(UTC|GMT)\b", rest):
            rest, start = re.sub(r"\b(UTC|GMT)\b", " ", rest), start.replace(tzinfo=UTC)
        zones = {name: hours * 3600 for name, hours in _HOURS.items()}
        with warnings.catch_warnings(action="error"):  # another name of a zone
            year_first = re.match(r"\s*\d\d-\d", rest) is not None
            moment = parser.parse(rest, default=start, tzinfos=zones, yearfirst=year_first)
            moment = moment.astimezone(now.tzinfo)
    if weekday and not _DAY_OF_DATE.search(rest):  # a date's weekday moves nothing
        moment = _on_weekday(moment, weekday)
    for step in steps:
        moment = _stepped(moment, step)
    return moment + timedelta(days=days)


def _on_weekday(moment: datetime, found: re.Match[str]) -> datetime:
    which, name = (found.group(1) or "").lower(), found.group(2).lower()
    ahead = (_DAYS.index(name) - moment.weekday()) % 7
    if which == "next" and ahead == 0:
        ahead = 7
    return moment + timedelta(days=ahead - 7 if which == "last" else ahead)


def _stepped(moment: datetime, step: re.Match[str]) -> datetime:
    count, unit, ago = step.groups()
    word = (count or "1").lower().replace(" ", "")
    number = {"next": 1, "last": -1, "this": 0}.get(word)
    number = int(word) if number is None else number
    number, unit = -number if ago else number, unit.lower()
    if unit in ("month", "year"):
        months = moment.year * 12 + moment.month - 1 + number * (12 if unit == "year" else 1)
        first = moment.replace(year=months // 12, month=months % 12 + 1, day=1)
        return first + timedelta(days=moment.day - 1)
    days = {"week": 7, "fortnight": 14}.get(unit)
    return moment + timedelta(seconds=number * (86400 * days if days else _SECONDS[unit]))


# -- bytes and lines


_OD = "address-radix A format t read-bytes N skip-bytes j width w"


def octal_dump(words: list[str]) -> None:
    """Prints bytes as numbers or characters."""
    values, names = options_of(words, "A:t:N:j:w:bcdoxv", _OD)
    data = b"".join(map(content_of, names or ["-"]))[number_of(values, "j") or 0 :]
    data = data[: number_of(values, "N")]
    short = {"b": "o1", "c": "c", "d": "u2", "o": "o2", "x": "x2"}
    forms = [short[each] for each in values if each in short] + values.get("t", "").split()
    if not forms:
        forms = ["o2"]
    radix = values.get("A", "o")
    width = number_of(values, "w") or 16
    start = number_of(values, "j") or 0

    def placed(at: int) -> str:
        return "" if radix == "n" else f"{at:0{6 if radix == 'x' else 7}{radix}}"

    for at in range(0, len(data), width):
        place = placed(start + at)
        piece = data[at : at + width]
        for form in forms:
            text = _dumped(piece, form)
            if form.endswith("z"):
                shown = "".join(chr(each) if 32 <= each < 127 else "." for each in piece)
                text = f"{text.ljust(len(_dumped(bytes(width), form)))}  >{shown}<"
            sys.stdout.write(f"{place}{text}\n")
            place = " " * len(place)
    if radix != "n":
        sys.stdout.write(f"{placed(start + len(data))}\n")


_LETTERS = {0: r"\0", 7: r"\a", 8: r"\b", 9: r"\t", 10: r"\n", 11: r"\v", 12: r"\f", 13: r"\r"}
_WIDTHS = {"o": (3, 6, 0, 11), "x": (2, 4, 0, 8), "u": (3, 5, 0, 10), "d": (4, 6, 0, 11)}


def _dumped(data: bytes, form: str) -> str:
    form = form.rstrip("z")
    if form in ("c", "a"):
        return "".join(
            f"{_LETTERS.get(each) or (chr(each) if 32 <= each < 127 else f'{each:03o}'):>4}"
            for each in data
        )
    kind, size = form[0], int(form[1:] or 4)
    if kind not in _WIDTHS or size not in (1, 2, 4):
        raise Misuse(f"the type {form!r} is not known here")
    width, pad = _WIDTHS[kind][size - 1], "0" if kind in "ox" else ""
    letter = "d" if kind == "u" else kind
    pieces = (data[at : at + size] for at in range(0, len(data), size))
    numbers = (int.from_bytes(piece, "little", signed=kind == "d") for piece in pieces)
    return "".join(f" {number:{pad}{width}{letter}}" for number in numbers)


_CUT = "bytes b characters c fields f delimiter d complement C only-delimited s output-delimiter O"


def cut(words: list[str]) -> None:
    """Prints parts of lines: bytes, characters or fields; with `--complement` all others."""
    values, names = options_of(words, "b:c:f:d:CnsO:", _CUT)
    kind = next((letter for letter in "bcf" if letter in values), "")
    if not kind:
        raise Misuse("one of -b, -c and -f is needed")
    end = values.get("d", "\t")
    if len(end) != 1:
        raise Misuse("the delimiter must be a single character")
    between = values.get("O", end if kind == "f" else "").encode()
    spans = [part.partition("-") for part in values[kind].split(",")]
    ranges = [(int(a or 1), int(b or sys.maxsize) if dash else int(a)) for a, dash, b in spans]
    if wrong := next((values[kind] for first, last in ranges if not 1 <= first <= last), ""):
        raise Misuse(f"{wrong!r} has a place before the first, or a range that decreases")
    for line in lines_of(names):
        data = line.encode("utf-8", "surrogateescape")
        if kind == "f" and end not in line:
            parts = [] if "s" in values else [data]
            kept = parts
        else:
            parts = _parts(line, data, kind, end)
            places = (any(a <= at <= b for a, b in ranges) for at in range(1, len(parts) + 1))
            kept = [
                part for part, is_in in zip(parts, places, strict=True) if is_in != ("C" in values)
            ]
        if parts or kind != "f":
            sys.stdout.buffer.write(between.join(kept) + b"\n")


def _parts(line: str, data: bytes, kind: str, end: str) -> list[bytes]:
    """Returns the bytes of a line (`b`), its characters (`c`), or its fields."""
    if kind == "b":
        return [data[at : at + 1] for at in range(len(data))]
    if kind == "c":
        return [letter.encode("utf-8", "surrogateescape") for letter in line]
    return data.split(end.encode())


_SHUF = "echo e head-count n input-range i repeat r"


def shuffle(words: list[str]) -> None:
    """Prints lines, words (`-e`) or numbers (`-i`) in random order."""
    values, names = options_of(words, "en:i:r", _SHUF)
    if "i" in values:
        low, _, high = values["i"].partition("-")
        lines: Sequence[Any] = range(int(low), int(high) + 1)
    else:
        lines = names if "e" in values else lines_of(names)
    count, draws = number_of(values, "n"), random.Random()
    if "r" in values:
        chosen = draws.choices(lines, k=1 if count is None else count)
    else:
        chosen = draws.sample(lines, len(lines) if count is None else min(count, len(lines)))
    sys.stdout.write("".join(f"{line}\n" for line in chosen))


def _cut(number: Decimal, places: int) -> Decimal:
    return number.quantize(Decimal(1).scaleb(-places), "ROUND_DOWN")


def _places(number: Decimal) -> int:
    return max(0, -int(number.as_tuple().exponent))


def _product(a: Decimal, b: Decimal, scale: int) -> Decimal:
    one, other = _places(a), _places(b)
    return _cut(a * b, min(one + other, max(scale, one, other)))


def _power(a: Decimal, b: Decimal, scale: int) -> Decimal:
    places = _places(a)
    return _cut(a ** int(b), min(places * int(b), max(scale, places)) if b >= 0 else scale)


_SUMS: dict[type[ast.AST], Callable[[Decimal, Decimal, int], Decimal | bool]] = {
    ast.Add: lambda a, b, scale: a + b,
    ast.Sub: lambda a, b, scale: a - b,
    ast.Mult: _product,
    ast.Div: lambda a, b, scale: _cut(a / b, scale),
    ast.Mod: lambda a, b, scale: a - _cut(a / b, scale) * b,
    ast.Pow: _power,
    ast.Lt: lambda a, b, scale: a < b,
    ast.Gt: lambda a, b, scale: a > b,
    ast.LtE: lambda a, b, scale: a <= b,
    ast.GtE: lambda a, b, scale: a >= b,
    ast.Eq: lambda a, b, scale: a == b,
    ast.NotEq: lambda a, b, scale: a != b,
}
_DIGITS = 1000  # the most digits of a result
_NO_SUMS: dict[type[Exception], str] = {
    ZeroDivisionError: "division by zero",
    ArithmeticError: f"the result has more than {_DIGITS:,} digits, or does not exist",
    SyntaxError: "syntax error",
    **dict.fromkeys((MemoryError, RecursionError), "it is too deep"),
    **dict.fromkeys((LookupError, ValueError), "it is not known here"),
}
"""The message of `bc` for each error of a calculation; the first class that fits counts."""


def calculate(words: list[str]) -> None:
    """Calculates lines of `bc`: numbers, signs, parentheses, names, `scale` and bases."""
    values, names = options_of(words, "lq")
    known = dict.fromkeys(("ibase", "obase"), Decimal(10))
    known["scale"] = Decimal(20 if "l" in values else 0)
    for line in lines_of(names):
        for text in filter(None, map(str.strip, line.partition("#")[0].split(";"))):
            name, is_set, rest = text.partition("=")
            given = is_set and name.strip().isidentifier() and not rest.startswith("=")
            try:
                with localcontext(prec=_DIGITS, Emax=_DIGITS, Emin=-_DIGITS):
                    source = (rest if given else text).strip().replace("^", "**")
                    source = _in_decimal(source, int(known["ibase"]))
                    found = _calculated(ast.parse(source, mode="eval").body, known, source)
            except tuple(_NO_SUMS) as problem:
                why = next(why for kind, why in _NO_SUMS.items() if isinstance(problem, kind))
                raise Misuse(f"can't calculate {text[:100]!r}: {why}") from None
            if given:
                known[name.strip()] = found
            else:
                print(_plain(found, int(known["obase"])))


def _in_decimal(source: str, base: int) -> str:
    if base != 10 and re.search(r"\.\d|\d\.", source):
        raise ValueError("fractions have the base 10 here")
    return re.sub(r"(?<![\w.])[\dA-F]+(?![\w.])", lambda found: str(int(found[0], base)), source)


def _calculated(node: ast.expr, known: dict[str, Decimal], source: str) -> Decimal:
    match node:
        case ast.Constant(value=int() | float()):
            digits = source[node.col_offset : node.end_col_offset]  # with all its zeros
            if not re.fullmatch(r"[\d.]+", digits):
                raise SyntaxError
            return Decimal(digits)
        case ast.Name(id=name):
            return known.get(name, Decimal(0))
        case ast.UnaryOp(
            op=ast.USub(), operand=ast.BinOp(left=left, op=ast.Pow() as op, right=right) as power
        ) if not source[node.col_offset + 1 : power.col_offset].strip():
            one, other = -_calculated(left, known, source), _calculated(right, known, source)
            return Decimal(_SUMS[type(op)](one, other, int(known["scale"])))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_calculated(operand, known, source)
        case ast.Call(func=ast.Name(id="sqrt"), args=[argument]):
            square = _calculated(argument, known, source)
            return _cut(square.sqrt(), max(_places(square), int(known["scale"])))
        case (
            ast.BinOp(left=left, op=op, right=right)
            | ast.Compare(left=left, ops=[op], comparators=[right])
        ):
            one, other = (_calculated(each, known, source) for each in (left, right))
            return Decimal(_SUMS[type(op)](one, other, int(known["scale"])))
        case _:
            raise ValueError("this is not known here")


def _plain(number: Decimal, base: int) -> str:
    if base != 10:
        rest, digits = abs(int(number)), ""
        if number != int(number) or not 2 <= base <= 16:
            raise Misuse("only whole numbers are printed in another base here, from 2 to 16")
        while rest or not digits:
            rest, digit = divmod(rest, base)
            digits = f"{digit:X}{digits}"
        return "-" * (number < 0) + digits
    text = f"{number:f}"
    return re.sub(r"^(-?)0\.", r"\1.", text) if number else "0"


# -- paths


_REALPATH = """
relative-to R canonicalize-existing e canonicalize-missing m no-symlinks s strip s quiet q
"""


def real_path(words: list[str]) -> None:
    """Prints paths without links, also relative to another folder."""
    values, names = options_of(words, "emsqzR:", _REALPATH)
    base = values.get("R")
    for name in names:
        strict = "e" in values or not ("m" in values or Path(name).absolute().parent.is_dir())
        if strict and not Path(name).exists():
            raise Misuse(f"{name}: No such file or directory")
        path = os.path.abspath(name) if "s" in values else os.path.realpath(name)  # noqa: PTH100
        print(path if base is None else os.path.relpath(path, os.path.realpath(base)))


_MKTEMP = "directory d tmpdir p dry-run u quiet q suffix S"


def make_temporary(words: list[str]) -> None:
    """Makes a file or a folder with a new name, and prints its path."""
    values, names = options_of(words, "dp:tquS:", _MKTEMP)
    prefix, ending = [*re.split("X{3,}", [*names, "tmp.XXX"][0], maxsplit=1), ""][:2]
    place = values.get("p") or ("/tmp" if not names or "t" in values else "")
    folder = str(Path(place, prefix).parent) if "/" in prefix else place or "."
    begin, end = prefix.rpartition("/")[2], ending + values.get("S", "")
    if "d" in values:
        path = tempfile.mkdtemp(end, begin, folder)
    else:
        number, path = tempfile.mkstemp(end, begin, folder)
        os.close(number)
    if "u" in values:
        Path(path).rmdir() if "d" in values else Path(path).unlink()
    print(path if folder.startswith("/") else f"{place}{'/' * bool(place)}{os.path.relpath(path)}")


def install(words: list[str]) -> None:
    """Copies files into a folder or to a path, or makes folders with `-d`; there are no modes."""
    values, names = options_of(words, "dDm:o:g:t:vpCc")
    if "d" in values:
        for name in names:
            Path(name).mkdir(parents=True, exist_ok=True)
        return
    target = Path(values["t"] if "t" in values else names.pop() if len(names) > 1 else "")
    if not names or str(target) == ".":
        raise Misuse("a file and a place for it are needed")
    if "D" in values:
        (target if "t" in values else target.parent).mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copyfile(name, target / Path(name).name if target.is_dir() else target)


PROGRAMS = {
    "date": date,
    "od": octal_dump,
    "cut": cut,
    "shuf": shuffle,
    "bc": calculate,
    "realpath": real_path,
    "mktemp": make_temporary,
    "install": install,
}
"""All programs, by name."""
