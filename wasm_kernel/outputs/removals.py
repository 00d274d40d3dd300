"""Phrases that name the parts taken out of an output, for the sentence that tells the user."""

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
LARGE_STYLES = "styles that are too large"
SCRIPT_LINKS = "links that run a script"
LINKS = "links that lead to no web page"
COMMANDS = "TeX commands that act on the page"
PICTURES = "pictures that are not what they say they are"
LABELS = "labels' tags that do more than format"
RECORDINGS = "sounds and films that are not what they say they are"
SOURCES = "things to be loaded from elsewhere"


class Removals:
    """The phrases for the parts taken out of one output, each once, in order."""

    def __init__(self) -> None:
        self._phrases: dict[str, None] = {}
        self._expected: frozenset[str] = frozenset()

    def expect(self, phrases: frozenset[str]) -> None:
        """Leaves these phrases out from now on, since their removal is made up for."""
        self._expected |= phrases

    def add(self, phrase: str) -> None:
        """Adds a phrase for something that was taken out."""
        if phrase.partition(" (")[0] not in self._expected and len(self._phrases) < PHRASES_MOST:
            self._phrases[phrase[:PHRASE_CHARACTERS]] = None

    def update(self, phrases: Iterable[str]) -> None:
        """Adds several phrases."""
        for phrase in phrases:
            self.add(phrase)

    @property
    def phrases(self) -> tuple[str, ...]:
        """The phrases, in the order in which they were added."""
        return tuple(self._phrases)


class NotShowable(Exception):
    """A content that can't be shown at all; `str()` is the phrase that names it."""


def words(text: str) -> frozenset[str]:
    """The words of a text, each once: the form in which the tables of this room are written."""
    return frozenset(text.split())
