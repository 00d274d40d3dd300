"""What a user is told about a session's history, in the next cell's stderr. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from wasm_kernel.engine.memory.commit import Commit

KEPT = (
    "The variables are as they were before this cell; the files in /app are as the cell left them."
)
KEPT_OF_CALLBACK = (
    "The variables are as they were before this callback; the files in /app are as it left them."
)
SPOILT = (
    "An earlier cell had left the interpreter unable to run another. The variables are now as they "
    "were before that earlier cell, and this cell was not run."
)
TAKEN = (
    "[wasm-kernel] Another process has this session open. You see the same files; variables begin "
    "fresh here and end with this process.\n"
)
_RESUMED = (
    "[wasm-kernel] The session goes on after a break: the variables are as they were after "
    "{after}. What ran later is lost; the files in /app are as they were left.\n"
)
_CONTINUED = "[wasm-kernel] The session goes on: the variables are as they were after {after}.\n"
_FORKED = (
    "[wasm-kernel] This session was forked off another one: variables and files are as they were "
    "there after {after}.\n"
)
_LOST = "[wasm-kernel] The variables are gone: {why}. The files in /app are all there.\n"
_UNSAVED = (
    "[wasm-kernel] This session's variables can't be saved to disk ({why}). It goes on in memory; "
    "a crash of the kernel would lose them.\n"
)
_UNTAKEN = (
    "[wasm-kernel] The state after {after} could not be kept ({why}); the variables themselves are "
    "all there. The next cell tries again; until then, a rollback leads to before that cell.\n"
)
_UNREADABLE = (
    "[wasm-kernel] The saved state after {after} can't be read any more ({why}). The variables are "
    "as they were before that.\n"
)
_DAMAGED = "[wasm-kernel] {count} saved states were damaged and are left out.\n"
_LEFT_OUT = "[wasm-kernel] {count} of the parent's files are not in this fork: {names}.\n"
_NAMED = 5


def going_on(head: Commit, *, forked: bool, crashed: bool) -> str:
    """A session that was there goes on."""
    words = _FORKED if forked else _RESUMED if crashed else _CONTINUED
    return words.format(after=_place(head))


def lost(problem: Exception) -> str:
    """A session's variables are gone."""
    return _LOST.format(why=problem)


def unsaved(problem: Exception) -> str:
    """Nothing can be written."""
    return _UNSAVED.format(why=why(problem))


def untaken(cell: int, label: str, problem: Exception) -> str:
    """There was no room for what a cell did."""
    return _UNTAKEN.format(after=f"In[{cell}] ({label})", why=why(problem))


def unreadable(commit: Commit, problem: Exception) -> str:
    """A saved state can't be read."""
    return _UNREADABLE.format(after=_place(commit), why=problem) if commit.parent else lost(problem)


def damaged(count: int) -> str:
    """Saved states were damaged, but not the one that counts."""
    return _DAMAGED.format(count=count)


def left_out(reasons: Mapping[str, str]) -> str:
    """Files of the parent, by path, were not copied into a fork."""
    named = [f"{path!a} ({reason})" for path, reason in list(reasons.items())[:_NAMED]]
    more = ["..."] if len(reasons) > _NAMED else []
    return _LEFT_OUT.format(count=len(reasons), names=", ".join(named + more))


def _place(commit: Commit) -> str:
    return f"In[{commit.cell}] ({commit.label})" if commit.cell else "its beginning"


def why(problem: Exception) -> str:
    """A problem in words, without a path of the host."""
    words = problem.strerror if isinstance(problem, OSError) else str(problem)
    return words or "no memory is left"
