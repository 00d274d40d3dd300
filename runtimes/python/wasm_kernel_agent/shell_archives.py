"""Archives for the shell's scripts: `tar`, `zip`, `unzip`, `gzip`, `gunzip` and `zcat`."""

from __future__ import annotations

import getopt
import gzip
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from wasm_kernel_agent.shell_commands import Usage

_PACKERS = {"z": "gz", "j": "bz2", "J": "xz"}
_STRIP = "--strip-components="


_NO_LONG: Mapping[str, str] = {}


def options_of(
    words: list[str], letters: str, long: Mapping[str, str] = _NO_LONG
) -> tuple[dict[str, str], list[str]]:
    """Returns a command's options, with their values, and the other words.

    A colon follows the letters that have a value; the values of a repeated option are lines. `long`
    names the letters of long options. Raises `Usage` for an option that is not known.
    """
    wanted = [f"{name}=" if f"{letter}:" in letters else name for name, letter in long.items()]
    try:
        found, names = getopt.gnu_getopt(words, letters, wanted)
    except getopt.GetoptError as problem:
        raise Usage(problem.msg) from None
    values: dict[str, str] = {}
    for option, value in found:
        letter = long[option[2:]] if option.startswith("--") else option[1:]
        values[letter] = f"{values[letter]}\n{value}" if letter in values else value
    return values, names


def tar(words: list[str]) -> None:
    """Makes, lists or unpacks a tape archive."""
    if words and not words[0].startswith("-"):
        words = [f"-{words[0]}", *words[1:]]
    strip = sum(int(word.removeprefix(_STRIP)) for word in words if word.startswith(_STRIP))
    words = [word for word in words if not word.startswith("--")]
    options, names = options_of(words, "cxtzjJvkf:C:")
    packer = next((_PACKERS[letter] for letter in _PACKERS if letter in options), "")
    if len(options.keys() & {"c", "x", "t"}) != 1:
        raise Usage("one of -c, -x and -t is needed")
    where, name = Path(options.get("C", ".")), options.get("f", "-")
    if "c" in options:
        mode: Any = f"w|{packer}"
        with tarfile.open(**_opened(name, "wb"), mode=mode) as archive:
            for each in names:
                archive.add(where / each, PurePosixPath(each).as_posix().lstrip("/"))
        return
    with tarfile.open(**_opened(name, "rb"), mode="r|*") as archive:
        for member in _wanted(archive, names, strip):
            if "t" in options or "v" in options:
                print(member.name + "/" * member.isdir())
            if "x" in options:
                archive.extract(member, where, filter="data")


def _opened(name: str, mode: str) -> dict[str, Any]:
    """Returns the archive as `tarfile.open` takes it; `-` is a standard stream."""
    if name != "-":
        return {"name": name}
    return {"fileobj": (sys.stdin if mode == "rb" else sys.stdout).buffer}


def _wanted(
    archive: tarfile.TarFile, names: Sequence[str], strip: int
) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        path = PurePosixPath(member.name)
        if names and not any(path.is_relative_to(name.rstrip("/")) for name in names):
            continue
        parts = path.parts[strip:]
        if parts:
            yield member.replace(name="/".join(parts), deep=False) if strip else member


def unzip(words: list[str]) -> None:
    """Lists or unpacks a zip file."""
    options, names = options_of(words, "oqlpnd:")
    if not names:
        raise Usage("the name of a zip file is needed")
    with zipfile.ZipFile(names[0]) as archive:
        for member in archive.infolist():
            if names[1:] and not any(PurePosixPath(member.filename).match(n) for n in names[1:]):
                continue
            if "l" in options:
                print(f"{member.file_size:>9}  {member.filename}")
            elif "p" in options:
                sys.stdout.buffer.write(archive.read(member))
            else:
                place = archive.extract(member, options.get("d", "."))
                if "q" not in options:
                    print(f"  inflating: {place}")


def zip_up(words: list[str]) -> None:
    """Makes a zip file."""
    options, names = options_of(words, "rqj123456789")
    if len(names) < 2:
        raise Usage("the names of a zip file and of files are needed")
    target = names[0] if "." in Path(names[0]).name else f"{names[0]}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names[1:]:
            inside = sorted(Path(name).rglob("*")) if "r" in options else []
            for path in [Path(name), *inside]:
                archive.write(path, path.name if "j" in options else None)
                if "q" not in options:
                    print(f"  adding: {path}")


def gzip_up(words: list[str]) -> None:
    """Packs files, or unpacks them with `-d`."""
    options, names = options_of(words, "dckfnqv123456789")
    level = max((int(letter) for letter in options if letter.isdigit()), default=6)
    for name in names or ["-"]:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        found = gzip.decompress(data) if "d" in options else gzip.compress(data, level, mtime=0)
        if name == "-" or "c" in options:
            sys.stdout.buffer.write(found)
            continue
        target = name.removesuffix(".gz") if "d" in options else f"{name}.gz"
        if target == name:
            raise Usage(f"{name} does not end in .gz")
        Path(target).write_bytes(found)
        if "k" not in options:
            Path(name).unlink()


def gunzip(words: list[str]) -> None:
    """Unpacks files."""
    gzip_up(["-d", *words])


def zcat(words: list[str]) -> None:
    """Prints unpacked files."""
    gzip_up(["-dc", *words])


def in_words(program: Callable[[list[str]], int | None]) -> Callable[[list[str]], None]:
    """Returns a program whose errors are sentences, and whose result is its exit status."""

    def run(words: list[str]) -> None:
        try:
            status = program(words)
        except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as problem:
            name = getattr(problem, "filename", None)
            reason = getattr(problem, "strerror", None) or problem
            raise Usage(f"{name}: {reason}" if name else str(reason)) from None
        if status:
            raise SystemExit(status)

    return run


PROGRAMS = {
    name: in_words(program)
    for name, program in {
        "tar": tar,
        "zip": zip_up,
        "unzip": unzip,
        "gzip": gzip_up,
        "gunzip": gunzip,
        "zcat": zcat,
    }.items()
}
"""All programs, by name."""
