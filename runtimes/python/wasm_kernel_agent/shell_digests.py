"""Digests of files for the shell's scripts: `md5sum`, `sha1sum`, `sha256sum` and `sha512sum`."""

from __future__ import annotations

import hashlib
import sys
from functools import partial

from wasm_kernel_agent.shell_options import content_of, options_of


def _print_digests(command: str, words: list[str]) -> None:
    """Prints the digests of files, or with `-c` compares files with such a list."""
    options, names = options_of(words, "bctQ", "check c binary b text t quiet Q")
    failed = False
    for name in names or ["-"]:
        try:
            if "c" in options:
                listed = content_of(name).decode().splitlines()
                agree = [_agrees(command, each, "Q" in options) for each in listed]
                failed |= not all(agree)
            else:
                print(f"{_digest(command, name)}  {name}")
        except OSError as problem:
            sys.stderr.write(f"{command}: {name}: {problem.strerror}\n")
            failed = True
    if failed:
        raise SystemExit(1)


def _agrees(command: str, line: str, is_quiet: bool) -> bool:
    """Prints whether the file in a line of a list has that digest, and returns it."""
    digest, _, name = line.partition(" ")
    name = name.removeprefix(" ").removeprefix("*")
    try:
        found = "OK" if _digest(command, name) == digest else "FAILED"
    except OSError as problem:
        sys.stderr.write(f"{command}: {name}: {problem.strerror}\n")
        found = "FAILED open or read"
    if found != "OK" or not is_quiet:
        print(f"{name}: {found}")
    return found == "OK"


def _digest(command: str, name: str) -> str:
    return hashlib.new(command.removesuffix("sum"), content_of(name)).hexdigest()


PROGRAMS = {
    name: partial(_print_digests, name) for name in ("md5sum", "sha1sum", "sha256sum", "sha512sum")
}
"""All programs, by name."""
