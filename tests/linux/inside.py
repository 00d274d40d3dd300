"""Runs a few lines in a process of their own, because walls can't be removed again."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.faces import completed
from wasm_kernel.linux import confinement

needs_walls = pytest.mark.skipif(
    not confinement.possible().is_complete, reason=f"this machine can't: {confinement.possible()}"
)

TRIED = """
def tried(what):
    try:
        what()
    except OSError as problem:
        return type(problem).__name__
    return "done"
"""


def said_by(code: str, *arguments: object) -> list[str]:
    """The output of a new process, line by line."""
    return run(code, *arguments).stdout.splitlines()


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a new process to its end; it must succeed."""
    done = completed([sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)])
    assert done.returncode == 0, done.stderr
    return done
