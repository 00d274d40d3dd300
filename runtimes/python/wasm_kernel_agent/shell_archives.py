"""Archives for the shell's scripts: `tar`, `zip`, `unzip`, `gzip`, `bzip2`, `xz` and their like."""

from __future__ import annotations

import bz2
import gzip
import lzma
import stat
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from wasm_kernel_agent.shell_options import Misuse, lines_of, number_of, options_of

_PACKERS = {"z": "gz", "j": "bz2", "J": "xz"}
_ENDINGS = {".gz": "gz", ".tgz": "gz", ".bz2": "bz2", ".xz": "xz"}
_TAR = """
create c extract x get x list t append r gzip z gunzip z bzip2 j xz J verbose v keep-old-files k
file f directory C to-stdout O auto-compress a files-from T exclude ! strip-components # wildcards *
preserve-permissions p no-same-owner o overwrite U
"""


def tar(words: list[str]) -> None:
    """Makes, lists or unpacks a tape archive."""
    options, names = options_of(_with_dashes(words), "cxtrzjJvkOapoU*f:C:T:!:#:", _TAR)
    kinds = options.keys() & {"c", "x", "t", "r"}
    if len(kinds) != 1 or "\n" in options.get("C", ""):
        raise Misuse("it takes exactly one of -c, -x, -t and -r, and at most one -C")
    where, name = Path(options.get("C", ".")), options.get("f", "-")
    left_out = options["!"].split("\n") if "!" in options else []
    if "T" in options:
        names += lines_of([options["T"]])
    if kinds & {"c", "r"}:
        packer = next((_PACKERS[letter] for letter in _PACKERS if letter in options), "")
        packer = packer or (_ENDINGS.get(Path(name).suffix, "") if "a" in options else "")
        mode: Any = f"w|{packer}" if "c" in options else "a"
        with tarfile.open(**_tar_source(name, "wb"), mode=mode) as archive:
            for each in names:
                archive.add(where / each, each.strip("/"), filter=lambda it: _unless(it, left_out))
                if "v" in options:
                    print(each)
        return
    with tarfile.open(**_tar_source(name, "rb"), mode="r|*") as archive:
        for member in _wanted(archive, names, number_of(options, "#") or 0, "*" in options):
            if _unless(member, left_out) is None:
                continue
            if "t" in options or "v" in options:
                print(_described(member) if {"t", "v"} <= options.keys() else _title(member))
            if "O" in options and (content := archive.extractfile(member)):
                sys.stdout.buffer.write(content.read())
            elif "x" in options:
                if "k" in options and (where / member.name).is_file():
                    raise Misuse(f"{member.name}: Cannot open: File exists")
                archive.extract(member, where, filter="data")


def _with_dashes(words: list[str]) -> list[str]:
    """Writes options without a dash, whose values follow in their order, as others."""
    if not words or words[0].startswith("-"):
        return words
    found, rest = [], words[1:]
    for letter in words[0]:
        found += [f"-{letter}", *([rest.pop(0)] if letter in "fCTX" and rest else [])]
    return found + rest


def _title(member: tarfile.TarInfo) -> str:
    return member.name + "/" * member.isdir()


def _described(member: tarfile.TarInfo) -> str:
    kind = {tarfile.DIRTYPE: stat.S_IFDIR, tarfile.SYMTYPE: stat.S_IFLNK}
    mode = stat.filemode(kind.get(member.type, stat.S_IFREG) | member.mode)
    owner = f"{member.uname or member.uid}/{member.gname or member.gid}"
    moment = time.strftime("%Y-%m-%d %H:%M", time.gmtime(member.mtime))
    return f"{mode} {owner} {member.size:>9} {moment} {_title(member)}"


def _unless(member: tarfile.TarInfo, left_out: list[str]) -> tarfile.TarInfo | None:
    """Returns a member; None if a pattern leaves out the member, or a folder above it."""
    path = PurePosixPath(member.name)
    places = [path, *path.parents]
    found = any(fnmatch(str(p), each) or fnmatch(p.name, each) for p in places for each in left_out)
    return None if found else member


def _tar_source(name: str, mode: str) -> dict[str, Any]:
    """Returns the archive as `tarfile.open` takes it; `-` is a standard stream."""
    if name != "-":
        return {"name": name}
    return {"fileobj": (sys.stdin if mode == "rb" else sys.stdout).buffer}


def _wanted(
    archive: tarfile.TarFile, names: Sequence[str], strip: int, has_patterns: bool
) -> Iterator[tarfile.TarInfo]:
    missing = {*names}
    for member in archive:
        path = PurePosixPath(member.name)
        asked = [
            name
            for name in names
            if path.is_relative_to(name.rstrip("/")) or (has_patterns and fnmatch(str(path), name))
        ]
        if names and not asked:
            continue
        missing -= {*asked}
        if name := "/".join(member.name.split("/")[strip:]):
            yield member.replace(name=name, deep=False) if strip else member
    if missing:
        raise Misuse(f"{min(missing)}: Not found in archive")


_RULE = "---------  ---------- -----"


def unzip(words: list[str]) -> None:
    """Lists or unpacks a zip file."""
    options, names = options_of(words, "oqlpnd:")
    if not names:
        raise Misuse("the name of a zip file is needed")
    name = names[0] if Path(names[0]).exists() else f"{names[0]}.zip"
    with zipfile.ZipFile(name) as archive:
        members = [
            member
            for member in archive.infolist()
            if not names[1:] or any(PurePosixPath(member.filename).match(n) for n in names[1:])
        ]
        if names[1:] and not members:
            raise Misuse(f"filename not matched: {names[1]}")
        if "l" in options:
            print(f"Archive:  {name}\n  Length      Date    Time    Name\n{_RULE}   ----")
            for member in members:
                moment = "{}-{:02}-{:02} {:02}:{:02}".format(*member.date_time)
                print(f"{member.file_size:>9}  {moment}   {member.filename}")
            total = sum(member.file_size for member in members)
            print(f"{_RULE[:9]:30}-------\n{total:>9}{'':21}{len(members)} files")
            return
        for member in members:
            if "n" in options and Path(options.get("d", "."), member.filename).exists():
                continue
            if "p" in options:
                sys.stdout.buffer.write(archive.read(member))
            else:
                place = archive.extract(member, options.get("d", "."))
                if "q" not in options:
                    print(f"  inflating: {place}")


def zip_up(words: list[str]) -> None:
    """Makes a zip file."""
    left_out: list[str] = []
    if "-x" in words:
        at = words.index("-x")
        end = next((n for n, word in enumerate(words) if n > at and word[0] == "-"), len(words))
        left_out, words = words[at + 1 : end], words[:at] + words[end:]
    options, names = options_of(words, "rqj123456789")
    if len(names) < 2:
        raise Misuse("the names of a zip file and of files are needed")
    target = names[0] if "." in Path(names[0]).name else f"{names[0]}.zip"
    paths = [Path(name) for name in names[1:]]
    for path in [*paths] if "r" in options else []:
        paths += sorted(path.rglob("*"))
    named = {path: f"{path}{'/' * path.is_dir()}" for path in paths}
    paths = [path for path in paths if not any(fnmatch(named[path], each) for each in left_out)]
    added = {path.name if "j" in options else path.as_posix().lstrip("/") for path in paths}
    kept = {}
    if Path(target).exists():
        with zipfile.ZipFile(target) as archive:
            left = [one for one in archive.infolist() if one.filename.rstrip("/") not in added]
            kept = {one: archive.read(one) for one in left}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for one, content in kept.items():
            archive.writestr(one, content)
        for path in paths:
            archive.write(path, path.name if "j" in options else None)
            if "q" not in options:
                print(f"  adding: {path}")


_FORMATS: dict[str, tuple[Any, str]] = {
    "gzip": (gzip, ".gz"),
    "bzip2": (bz2, ".bz2"),
    "xz": (lzma, ".xz"),
}


def pack(words: list[str], form: str = "gzip") -> None:
    """Packs files, or unpacks them with `-d`."""
    options, names = options_of(
        words, "dctkfnqvT:0123456789", "test t decompress d keep k stdout c"
    )
    packer, ending = _FORMATS[form]
    level = max((int(letter) for letter in options if letter.isdigit()), default=6)
    more = {"preset": level} if form == "xz" else {"compresslevel": level}
    for name in names or ["-"]:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        unpacks = options.keys() & {"d", "t"}
        more |= {"mtime": 0} if form == "gzip" else {}
        found = packer.decompress(data) if unpacks else packer.compress(data, **more)
        if "t" in options:
            continue
        if name == "-" or "c" in options:
            sys.stdout.buffer.write(found)
            continue
        target = name.removesuffix(ending) if "d" in options else f"{name}{ending}"
        if target == name:
            raise Misuse(f"{name} does not end in {ending}")
        if Path(target).exists() and "f" not in options:
            raise Misuse(f"{target} already exists; use -f to replace it")
        Path(target).write_bytes(found)
        if "k" not in options:
            Path(name).unlink()


PROGRAMS = {
    "tar": tar,
    "zip": zip_up,
    "unzip": unzip,
    "gzip": pack,
    "gunzip": lambda words: pack(["-d", *words]),
    "zcat": lambda words: pack(["-dc", *words]),
    "bzip2": lambda words: pack(words, "bzip2"),
    "bunzip2": lambda words: pack(["-d", *words], "bzip2"),
    "bzcat": lambda words: pack(["-dc", *words], "bzip2"),
    "xz": lambda words: pack(words, "xz"),
    "unxz": lambda words: pack(["-d", *words], "xz"),
    "xzcat": lambda words: pack(["-dc", *words], "xz"),
}
"""All programs, by name."""
