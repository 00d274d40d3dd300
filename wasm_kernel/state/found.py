"""What an earlier process left of a session's history: the commits that can be used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state.commit import Commit, CommitFile

SUFFIX = ".commit"


def name_of(one: int) -> str:
    """The name of a commit's file."""
    return f"{one:010d}{SUFFIX}"


def names_in(folder: Folder) -> list[str]:
    """Returns the names of the commits' files in a folder, oldest first."""
    return sorted(name for name in folder.names() if name.endswith(SUFFIX) and name[0].isdigit())


def usable(folder: Folder, names: Iterable[str], image: str) -> tuple[dict[int, Commit], list[str]]:
    """Returns the commits that are whole, as all that they stand on are.

    Args:
        folder: The folder that they lie in.
        names: The names of their files.
        image: The base image that they are to lie over.

    Returns:
        The commits by number, and sentences on those that are damaged.

    Raises:
        HistoryError: there are files, and none can be used.
    """
    found: dict[int, Commit] = {}
    problems = []
    for name in names:
        try:
            commit = _read(folder, name)
            found[commit.id] = commit
        except HistoryError as problem:
            problems.append(str(problem))
        except OSError as problem:
            problems.append(problem.strerror or "it can't be read")
    if found and all(commit.image != image for commit in found.values()):
        raise HistoryError(
            "they were saved by another version of the sandbox, or before its cache was made anew"
        )
    whole = _whole(found, image)
    if not whole and (found or problems):
        why = problems[0] if problems else "the first commit is not there"
        raise HistoryError(f"what was saved of them can't be used ({why})")
    return whole, problems


def _read(folder: Folder, name: str) -> Commit:
    with CommitFile(folder, name) as file:
        file.verify()
        if name != name_of(file.commit.id):
            raise HistoryError("a commit has the name of another")
        return file.commit


def _whole(found: Mapping[int, Commit], image: str) -> dict[int, Commit]:
    """Returns the commits of an image whose ancestors are all there; a parent is older."""
    whole: dict[int, Commit] = {}
    for one in sorted(found):
        commit = found[one]
        if commit.image == image and (commit.parent == 0 or commit.parent in whole):
            whole[one] = commit
    return whole
