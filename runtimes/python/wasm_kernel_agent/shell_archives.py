"""Archives for the shell's scripts: `tar`, `zip`, `unzip`, `gzip`, `gunzip` and `zcat`."""

from __future__ import annotations

import gzip
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from wasm_kernel_agent.shell_options import Usage, options_of

_PACKERS = {"z": "gz", "j": "bz2", "J": "xz"}
_STRIP, _EXCLUDE = "--strip-components=", "--exclude="


def tar(words: list[str]) -> None:
    """Makes, lists or unpacks a tape archive."""
    if words and not words[0].startswith("-"):
        words = [f"-{words[0]}", *words[1:]]
    strip = sum(int(word.removeprefix(_STRIP)) for word in words if word.startswith(_STRIP))
    left_out = [word.removeprefix(_EXCLUDE) for word in words if word.startswith(_EXCLUDE)]
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
                name_in_there = PurePosixPath(each).as_posix().lstrip("/")
                archive.add(where / each, name_in_there, filter=lambda it: _unless(it, left_out))
        return
    with tarfile.open(**_opened(name, "rb"), mode="r|*") as archive:
        for member in _wanted(archive, names, strip):
            if _unless(member, left_out) is None:
                continue
            if "t" in options or "v" in options:
                print(member.name + "/" * member.isdir())
            if "x" in options:
                archive.extract(member, where, filter="data")


def _unless(member: tarfile.TarInfo, left_out: list[str]) -> tarfile.TarInfo | None:
    """Returns a member; None if a pattern leaves it, or a folder that it is in, out."""
    path = PurePosixPath(member.name)
    places = [path, *path.parents]
    found = any(fnmatch(str(p), each) or fnmatch(p.name, each) for p in places for each in left_out)
    return None if found else member


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
    options, names = options_of(words, "dctkfnqv123456789", "test t decompress d keep k stdout c")
    level = max((int(letter) for letter in options if letter.isdigit()), default=6)
    for name in names or ["-"]:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        unpacks = options.keys() & {"d", "t"}
        found = gzip.decompress(data) if unpacks else gzip.compress(data, level, mtime=0)
        if "t" in options:
            continue
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


PROGRAMS = {
    "tar": tar,
    "zip": zip_up,
    "unzip": unzip,
    "gzip": gzip_up,
    "gunzip": gunzip,
    "zcat": zcat,
}
"""All programs, by name."""
