"""The pages of the documentation, those whose code runs, and the blocks of code on a page.

Python that can't run by itself, such as a setting, is a block of the kind `py`.
"""

from __future__ import annotations

import re
from doctest import ELLIPSIS, OutputChecker
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SITE = sorted(DOCS.rglob("*.md"))
ALL = [*sorted(ROOT.glob("*.md")), ROOT / "examples/README.md", *SITE]

PROGRAMS = {
    "README": ROOT / "README.md",
    "python": DOCS / "python.md",
    "functions": DOCS / "functions.md",
    "frameworks": DOCS / "frameworks.md",
    "javascript": DOCS / "javascript.md",
    "service": DOCS / "tutorials/hosting.md",
    "agent": DOCS / "tutorials/agent.md",
}
"""The pages whose Python is a program each, with its output below it."""
NOTEBOOKS = {
    "first-notebook": DOCS / "tutorials/first-notebook.md",
    "undo-and-forks": DOCS / "tutorials/undo-and-forks.md",
    "my-files": DOCS / "my-files.md",
    "shell": DOCS / "shell.md",
}
"""The pages whose Python is the cells of one notebook."""
COURSE = DOCS / "tutorials/grading.md"
"""The page with the files and commands of a course."""

_FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CHECKER = OutputChecker()


class Block(NamedTuple):
    """One block; `title` is the name of the file that it is, or nothing."""

    kind: str
    title: str
    text: str


class Example(NamedTuple):
    """A block that is run, and the text below it: what it prints, or None if there is none."""

    code: str
    printed: str | None


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page."""
    return [Block(*found) for found in _FENCE.findall(page.read_text(encoding="utf-8"))]


def examples_of(page: Path, kind: str = "python") -> list[Example]:
    """The blocks of one kind that are run; a block that is a file is not."""
    examples = []
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        block, below = Block(*found.groups()), _FENCE.match(text, found.end() + len("\n\n"))
        if block.kind == kind and not block.title:
            printed = below[3] if below and below[1] == "text" else None
            examples.append(Example(block.text, printed))
    return examples


def says(printed: str, expected: str) -> bool:
    """True if a text is the page's text, in which `...` stands for any text."""
    return _CHECKER.check_output(expected, printed, ELLIPSIS)


def prose_of(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))
