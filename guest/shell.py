"""The recipe of the shell: files of JavaScript from npm's registry, pinned and checked.

They are taken as they are. The table `shell` in `pyproject.toml` pins them as that of the codecs
does.

`python -m guest.shell FOLDER` fetches them by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guest import codecs
from guest.pinned import make_by_hand

NOTICE = "shell-notice.txt"


class Pins(codecs.Pins):
    """The pins of all files, by the names of their packages."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Pins:
        """Reads the pins from the build hook's table in `pyproject.toml`."""
        return cls({name: codecs.Codec(**row) for name, row in config["shell"].items()})


def make(pins: Pins, folder: Path) -> list[str]:
    """Fetches the files into a folder, with their licences; returns the files' names.

    Raises:
        GuestFilesError: an archive can't be fetched, or a file differs from its pin.
    """
    return codecs.make(pins, folder, NOTICE)


if __name__ == "__main__":
    make_by_hand(lambda config, folder: make(Pins.of(config), folder))
