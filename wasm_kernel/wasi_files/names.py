"""The name that does not exist for the guest.

One name in a session's workspace is the host's: `.metadata.json`, also with `~` and more behind it,
which is how the host calls what it writes aside. Whether a name is this one is decided under any
spelling that some file system would take for the same name (letter case, Unicode forms, ignorable
characters, trailing dots and spaces, an NTFS stream suffix).
"""

from __future__ import annotations

import unicodedata

HIDDEN = frozenset({".metadata.json"})


def is_hidden(name: str) -> bool:
    """Whether a name is the metadata file's, under any spelling."""
    if name.isascii() and not name.startswith("."):
        return False  # the quick way for nearly all names: only other characters fold to a dot
    return spelling(name) in HIDDEN


def spelling(name: str) -> str:
    """The one form that all spellings of a name share."""
    plain = "".join(c for c in name if unicodedata.category(c) != "Cf")
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", plain).casefold())
    return folded.split(":", 1)[0].split("~", 1)[0].rstrip(". ")
