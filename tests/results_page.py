"""The page of results, from the code: `python -m tests.results_page > docs/results.md`."""

from __future__ import annotations

import inspect
import re

from wasm_kernel import (
    CellError,
    Checkpoint,
    Exported,
    Grade,
    Imported,
    Outcome,
    PruneResult,
    SandboxResult,
    SessionInfo,
    Stream,
    TestGrade,
    Travelled,
)
from wasm_kernel.result import Output

RESULTS: dict[type, str] = {
    SandboxResult: "`execute`, `aexecute`, and the futures of `submit`",
    Output: "`SandboxResult.outputs`, and a listener's `emit`",
    Stream: "a listener's `emit`, for text",
    CellError: "`SandboxResult.error`",
    Checkpoint: "`checkpoints`",
    Travelled: "`undo`, `redo` and `restore`",
    SessionInfo: "`Service.list`",
    PruneResult: "`prune_sessions`",
    Exported: "`export_session`",
    Imported: "`import_session`",
    Outcome: "`run_notebooks`, and `Grade.outcome`",
    Grade: "`grade_notebooks`",
    TestGrade: "`Grade.tests`",
}
HEAD = """\
# Results

What the functions of the Python interface return, field by field. All of these are values: they
stay as they are when the sandbox goes on, or is closed. This page is written from the code
(`python -m tests.results_page`).
"""


def page() -> str:
    """The whole page, in Markdown."""
    return "\n".join([HEAD, *map(_section, RESULTS)])


def _section(kind: type) -> str:
    first, _, _ = (inspect.getdoc(kind) or "").partition("\n\n")
    rows = [f"| `{name}` | `{of}` | {meaning} |" for name, of, meaning in fields_of(kind)]
    about = f"{' '.join(first.split())} From {RESULTS[kind]}."
    return "\n".join([f"## {kind.__name__}\n", f"{about}\n", *_HEADINGS, *rows, ""])


_HEADINGS = ("| field | type | meaning |", "|---|---|---|")


def fields_of(kind: type) -> list[tuple[str, str, str]]:
    """Returns name, type and meaning of each field and property; no meaning if there is none."""
    told = _attributes(inspect.getdoc(kind) or "")
    kept = inspect.get_annotations(kind)
    found = [(name, _type(of), told.get(name, "")) for name, of in kept.items()]
    for name, member in vars(kind).items():
        if isinstance(member, property) and not name.startswith("_"):
            of = inspect.get_annotations(member.fget).get("return") if member.fget else ""
            found.append((name, _type(of), " ".join((inspect.getdoc(member) or "").split())))
    return found


def _type(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return str(text).replace("|", "\\|")


def _attributes(text: str) -> dict[str, str]:
    _, _, section = text.partition("Attributes:\n")
    section = section.partition("\n\n")[0]
    found = re.findall(r"^ {4}(\w+): (.+?)(?=^ {4}\w+: |\Z)", section, re.MULTILINE | re.DOTALL)
    return {name: " ".join(words.split()) for name, words in found}


if __name__ == "__main__":
    print(page(), end="")
