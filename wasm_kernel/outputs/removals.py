"""What was taken out of an output, and the sentence that says so."""

from __future__ import annotations

from collections.abc import Iterable

PHRASES_MOST = 8
PHRASE_CHARACTERS = 120

SCRIPTS = "scripts"
HANDLERS = "event handlers"
EMBEDDED = "embedded pages"
CONTROLS = "form controls"
ANIMATIONS = "animations"
MATHML = "MathML"
STYLESHEETS = "style sheets from elsewhere"
FETCHED_STYLE = "styles that load something"
STYLES = "styles that reach out of the output"
SCRIPT_LINKS = "links that run a script"
LINKS = "links that lead to no web page"
COMMANDS = "TeX commands that act on the page"
PICTURES = "pictures that are not what they say they are"
LABELS = "labels' tags that do more than format"
RECORDINGS = "sounds and films that are not what they say they are"
SOURCES = "things to be loaded from elsewhere"


class Removals:
    """The phrases for what was taken out of one output, each once, in order."""

    def __init__(self) -> None:
        self._phrases: dict[str, None] = {}
        self._expected: frozenset[str] = frozenset()

    def expect(self, phrases: frozenset[str]) -> None:
        """These need not be told: what they did is made up for."""
        self._expected = phrases

    def add(self, phrase: str) -> None:
        """Something was taken out."""
        if phrase not in self._expected and len(self._phrases) < PHRASES_MOST:
            self._phrases[phrase[:PHRASE_CHARACTERS]] = None

    def update(self, phrases: Iterable[str]) -> None:
        """Several things were."""
        for phrase in phrases:
            self.add(phrase)

    @property
    def phrases(self) -> tuple[str, ...]:
        """What was taken out, in the order in which it was met."""
        return tuple(self._phrases)


class Refused(Exception):
    """A content can't be shown at all; `str()` is the phrase that says what it was."""
