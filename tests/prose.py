"""The check of prose in `make lint`: `python -m tests.prose FILE...` finds unclear words.

Each row of the table names words that stand for something else, and their replacement. proselint
finds them in comments, in texts and in pages.
"""

from __future__ import annotations

import sys
from pathlib import Path

from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, CheckFlags
from proselint.registry.checks.types import Existence
from proselint.tools import LintFile

UNCLEAR = {
    "a noun": "what (was|were|came|comes|lay|lies|stood|stands|went|goes|belongs|remains)"
    "|what (it|they) (fetched|held|holds|left|made|said|says|took|wrote)|who (asks|calls|wants)",
    "a clause that stands alone": r"\S\x20\x20#\x20(which|whose)",
    "the number, size or time": "so (many|few|much|long)",
    "the verb or noun itself": "(do|does|did) so|the (latter|former)",
    "a sentence that begins with its subject": "(is|are) to be|of (others|these|those), (the|no)",
    "who it is": "(some|every)body|(who|which)(so)?ever|nobody (is|was|has|can|who|uses|trusts)",
    "'not a'": "(it|that|this|which) (is|are) no (file|folder|function|name|number|part|text|type)",
    "a common word": "but (for)|without (a) word|(mean|erst)while|(there|where)(by|of|in|upon)"
    "|then(ce|ceforth)",
}
"""Words by what to write instead; `(a|b)` are alternatives."""

_GAP = r"[\s#*]+"  # a comment may be broken here
CHECKS = tuple(
    Check(
        check_type=Existence((f"(?:{words.replace('(', '(?:').replace(' ', _GAP)})",)),
        path="unclear",
        message=f"write {instead} in place of '{{}}'",
        flags=CheckFlags(allow_quotes=True),
    )
    for instead, words in UNCLEAR.items()
)


def main(files: list[str]) -> int:
    """Prints each finding with its place; returns 1 if there is any."""
    CheckRegistry().register_many(CHECKS)
    found = 0
    for file in files:
        for result in LintFile(Path(file)).lint({"max_errors": 100, "checks": {"unclear": True}}):
            print(f"{file}:{result.pos[0]}: {' '.join(result.check_result.message.split())}")
            found = 1
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
