"""Digests of files for the shell's scripts: `md5sum`, `sha1sum`, `sha256sum` and `sha512sum`."""

from __future__ import annotations

import hashlib
import sys
from functools import partial

from wasm_kernel_agent.shell_options import content_of, options_of


def _print_digests(command: str, words: list[str]) -> None:
    """Prints the digests of files, or with `-c` compares files with such a list."""
    options, names = options_of(words, "bct")
    failed = False
    for name in names or ["-"]:
        try:
            if "c" in options:
                failed |= not _agree(command, content_of(name).decode())
            else:
                print(f"{_digest(command, name)}  {name}")
        except OSError as problem:
            sys.stderr.write(f"{command}: {name}: {problem.strerror}\n")
            failed = True
    if failed:
        raise SystemExit(1)


def _agree(command: str, listed: str) -> bool:
    """Prints for each line of a list whether its file has that digest; returns whether all have."""
    fine = True
    for line in filter(None, listed.splitlines()):
        digest, _, name = line.partition(" ")
        name = name.removeprefix(" ").removeprefix("*")
        same = _digest(command, name) == digest
        print(f"{name}: {'OK' if same else 'FAILED'}")
        fine &= same
    return fine


def _digest(command: str, name: str) -> str:
    return hashlib.new(command.removesuffix("sum"), content_of(name)).hexdigest()


PROGRAMS = {
    name: partial(_print_digests, name) for name in ("md5sum", "sha1sum", "sha256sum", "sha512sum")
}
"""All programs, by name."""
