"""The options, files and errors of the programs that a shell's scripts run in this interpreter."""

from __future__ import annotations

import getopt
import io
import os
import string
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

CLASSES = {
    "upper": string.ascii_uppercase,
    "lower": string.ascii_lowercase,
    "alpha": string.ascii_uppercase + string.ascii_lowercase,
    "digit": string.digits,
    "alnum": string.digits + string.ascii_uppercase + string.ascii_lowercase,
    "space": "\t\n\v\f\r ",
    "blank": "\t ",
    "punct": string.punctuation,
    "xdigit": string.hexdigits,
    "cntrl": "".join(map(chr, [*range(32), 127])),
    "print": "".join(map(chr, range(32, 127))),
    "graph": "".join(map(chr, range(33, 127))),
}
"""The characters of classes such as `[:alpha:]`."""
Program = Callable[[list[str]], int | None]
"""A program takes its words; it returns its exit status, None for 0."""


class Misuse(Exception):
    """A program was called in a way that it does not know, or can't do; `str()` says why."""


class Kept(io.BytesIO):
    """A buffer whose bytes stay readable after a program has closed it."""

    def close(self) -> None:
        """Does nothing."""


def options_of(words: list[str], letters: str, long: str = "") -> tuple[dict[str, str], list[str]]:
    """Returns a command's options, with their values, and the other words.

    A colon follows the letters that have a value; the values of a repeated option are lines. `long`
    holds the names of long options, each with its letter. Raises `Misuse` for an unknown option.
    """
    told = long.split()
    letter_of = dict(zip(told[::2], told[1::2], strict=True))
    wanted = [f"{name}=" if f"{each}:" in letters else name for name, each in letter_of.items()]
    try:
        found, names = getopt.gnu_getopt(words, letters, wanted)
    except getopt.GetoptError as problem:
        raise Misuse(problem.msg) from None
    values: dict[str, str] = {}
    for option, value in found:
        letter = letter_of[option[2:]] if option.startswith("--") else option[1:]
        values[letter] = f"{values[letter]}\n{value}" if letter in values else value
    return values, names


def content_of(name: str) -> bytes:
    """Returns the bytes of a file; `-` is the standard input."""
    return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()


def text_of(name: str) -> str:
    """Returns the text of a file; `-` is the standard input."""
    return os.fsdecode(content_of(name))


def lines_of(names: Sequence[str], end: str = "\n") -> list[str]:
    """Returns the lines of files, or of the standard input, without their ends."""
    texts = map(text_of, names or ["-"])
    return [line for text in texts if text for line in text.removesuffix(end).split(end)]


def write(text: str, name: str = "") -> None:
    """Writes a text to a file, or to the standard output."""
    if name:
        Path(name).write_bytes(os.fsencode(text))
    else:
        sys.stdout.buffer.write(os.fsencode(text))


def number_of(values: dict[str, str], option: str) -> int | None:
    """Returns the whole number of an option; None without the option."""
    try:
        return int(values[option]) if option in values else None
    except ValueError:
        raise Misuse(f"invalid number: {values[option]!r}") from None


def in_words(program: Program, words: list[str]) -> None:
    """Runs a program; its errors are sentences, and its result is the exit status."""
    try:
        status = program(words)
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as problem:
        name = getattr(problem, "filename", None)
        reason = getattr(problem, "strerror", None) or problem
        raise Misuse(f"{name}: {reason}" if name else str(reason)) from None
    except MemoryError:
        raise Misuse("memory exhausted") from None
    except ArithmeticError:
        raise Misuse("a number is out of range") from None
    except (ValueError, LookupError) as problem:
        raise Misuse(f"can't use this: {problem}") from None
    if status:
        raise SystemExit(status)
