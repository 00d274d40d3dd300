"""The progress of a run: plain lines for people, JSON lines for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from msgspec import to_builtins

from wasm_kernel.frontends.batch.outcome import VERDICTS, Outcome, cleaned, plain


class Progress:
    """Receives the events of a batch, and does nothing with them. Derive yours."""

    def began(self, name: str, cells: int) -> None:
        """Called when a notebook with `cells` code cells begins."""

    def cell_ended(self, name: str, done: int, cells: int) -> None:
        """Called when a code cell has ended: `done` of the notebook's `cells` are done."""

    def ended(self, outcome: Outcome) -> None:
        """Called when a notebook is done."""

    def noted(self, text: str) -> None:
        """Called with a note about the run, such as a notebook that waits."""


class Lines(Progress):
    """Writes a line to a stream for each notebook that is done."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def ended(self, outcome: Outcome) -> None:
        """Writes the line."""
        print(line_of(outcome), file=self._stream, flush=True)

    def noted(self, text: str) -> None:
        """Writes a line."""
        print(f"{'note':<13} {plain(text)}", file=self._stream, flush=True)


class JsonLines(Progress):
    """Writes a line with a JSON object to a stream for each event, for programs."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def began(self, name: str, cells: int) -> None:
        """Writes `began`, with the number of code cells."""
        self._write({"event": "began", "notebook": name, "code_cells": cells})

    def cell_ended(self, name: str, done: int, cells: int) -> None:
        """Writes `cell`, with the number of cells done."""
        self._write({"event": "cell", "notebook": name, "done": done, "code_cells": cells})

    def ended(self, outcome: Outcome) -> None:
        """Writes `ended`, with the fields of an `Outcome`."""
        self._write({"event": "ended", **to_builtins(outcome)})

    def noted(self, text: str) -> None:
        """Writes `note`, with a text."""
        self._write({"event": "note", "text": text})

    def _write(self, fields: dict[str, object]) -> None:
        print(json.dumps(fields), file=self._stream, flush=True)


def line_of(outcome: Outcome) -> str:
    """Returns a notebook's outcome on one line; a difference of outputs follows on others."""
    ran = "1 code cell" if outcome.cells == 1 else f"{outcome.cells} code cells"
    facts = [ran, f"{outcome.seconds:.1f} s"]
    if outcome.kept:
        facts.insert(1, f"{outcome.kept} kept")
    where = f", in cell {outcome.cell} of the notebook" if outcome.cell else ""
    why = f": {outcome.why}" if outcome.why else ""
    notes = [plain(outcome.note)] if outcome.note else []
    if outcome.files:
        folder, count = outcome.files[0].partition("/")[0], len(outcome.files)
        notes.insert(0, f"{count} file{'s' * (count != 1)} in {plain(folder)}")
    note = f" ({'; '.join(notes)})" if notes else ""
    name = plain(outcome.notebook)
    line = f"{outcome.verdict:<13} {name}  {', '.join(facts)}{where}{why}{note}"
    return f"{line}\n{cleaned(outcome.difference)}".rstrip()


def summary(outcomes: Sequence[Outcome]) -> str:
    """Returns the number of notebooks with each verdict, on one line."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    named = ", ".join(f"{counts[each]} {each}" for each in VERDICTS if counts[each])  # type: ignore[index]
    return f"{len(outcomes)} notebooks: {named}" if len(outcomes) != 1 else f"1 notebook: {named}"
