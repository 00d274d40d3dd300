"""The facts about JavaScript that are known without a running guest; little is imported for it."""

from __future__ import annotations

from wasm_kernel.guests.base import LanguageInfo
from wasm_kernel.guests.javascript.files import VERSION

_HELP_LINKS = (
    ("JavaScript Reference", "https://developer.mozilla.org/docs/Web/JavaScript/Reference"),
    ("TypeScript Handbook", "https://www.typescriptlang.org/docs/handbook/intro.html"),
)


def info() -> LanguageInfo:
    """Returns the facts."""
    language = {
        "name": "javascript",
        "version": f"ES2025, QuickJS-NG {VERSION}",
        "mimetype": "application/typescript",
        "codemirror_mode": "typescript",
        "pygments_lexer": "typescript",
        "nbconvert_exporter": "script",
        "file_extension": ".ts",
    }
    return LanguageInfo("JavaScript and TypeScript", language, _HELP_LINKS)
