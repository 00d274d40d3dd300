"""What an earlier process left of a session's history: the commits that can be used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from wasm_kernel.engine.memory.commit import Commit, CommitFile
from wasm_kernel.errors import HistoryError

SUFFIX = ".commit"


def name_of(one: int) -> str:
    """The name of a commit's file."""
    return f"{one:010d}{SUFFIX}"


def usable(files: Iterable[Path], image: str) -> tuple[dict[int, Commit], list[str]]:
    """The commits in files that are whole, as all that they stand on are.

    Returns:
        The commits by number, and sentences on those that are damaged.

    Raises:
        HistoryError: there are files, and none can be used.
    """
    found: dict[int, Commit] = {}
    problems = []
    for path in files:
        try:
            commit = _read(path)
            found[commit.id] = commit
        except (HistoryError, OSError) as problem:
            problems.append(str(problem))
    if found and all(commit.image != image for commit in found.values()):
        raise HistoryError(
            "they were saved by another version of the sandbox, or before its cache was made anew"
        )
    whole = {one: commit for one, commit in found.items() if _whole(one, found, image)}
    if not whole and (found or problems):
        why = problems[0] if problems else "the first commit is not there"
        raise HistoryError(f"what was saved of them can't be used ({why})")
    return whole, problems


def _read(path: Path) -> Commit:
    with CommitFile(path) as file:
        file.verify()
        if path.name != name_of(file.commit.id):
            raise HistoryError("a commit has the name of another")
        return file.commit


def _whole(one: int, found: Mapping[int, Commit], image: str) -> bool:
    while one:
        commit = found.get(one)
        if commit is None or commit.image != image or commit.parent >= one:
            return False
        one = commit.parent
    return True
