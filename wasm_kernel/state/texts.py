"""The sentences that tell a user about a session's history, in the next cell's stderr."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from wasm_kernel.errors import Door
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.result import first_of, readable
from wasm_kernel.state.file_journal import NotKept, Reason
from wasm_kernel.state.file_restore import RestoredFiles
from wasm_kernel.state.index import Commit, place_of
from wasm_kernel.state.stored import RecoveredHistory
from wasm_kernel.wasi_files.preopens import covered_by

FILES_KEPT = "The files in /app are as the cell left them, unless the session was deleted."
KEPT = (
    "The variables are as they were before this cell, without what it imported; the files in /app "
    "are as the cell left them."
)
TAKE_BACK = " %restore --files takes that back, too."
KEPT_OF_CALLBACK = (
    "The variables are as they were before this callback; the files in /app are as it left them."
)
SPOILT = (
    "An earlier cell had left the interpreter unable to run another. The variables are now as they "
    "were before that earlier cell, and this cell was not run."
)
SPOILT_FROM_THE_START = (
    "An earlier cell had left the interpreter unable to run another, and no state before it is "
    "kept. The variables begin fresh, and this cell was not run. The files in /app are all there; "
    "%checkpoints lists the states that %restore can still bring back."
)
TAKEN = (
    "[wasm-kernel] This session is already open, in another process or another sandbox. You see "
    "the same files; variables begin fresh here and end with this sandbox.\n"
)
AWAKE_ELSEWHERE = (
    "Another server has this session awake. Nothing was run, and nothing was changed. Send the "
    "call there, or try again when the session sleeps there."
)
FILES_ALONE = (
    "[wasm-kernel] This notebook's session is open again: its files are here, its variables were "
    "not kept (WasmKernel.resume=always keeps them).\n"
)
AT_THE_BEGINNING = (
    "[wasm-kernel] The variables begin fresh: the session was left before its first cell, as no "
    "guest ran in its saved states. The files in /app are all there. %checkpoints lists what "
    "%restore can still try.\n"
)
DEAD_LOST = (
    "[wasm-kernel] The variables are gone: no guest runs in the states that were tried. The files "
    "in /app are all there. %checkpoints lists what %restore can still try.\n"
)
TOO_MANY_NAMES = (
    "The checkpoint was not made: the session has 1,000 named ones already, and can't forget any. "
    "Nothing was changed. Use one of their names again."
)
REMOVED = (
    "[wasm-kernel] Another program has removed the workspace folder. Its files are gone, and "
    "cells can't make new ones; the variables are kept as long as this kernel or sandbox runs. "
    "Save what matters by printing it, then begin a new session.\n"
)
NO_FILES = (
    "Earlier versions of files are not kept here: files_history_bytes is 0, or this session "
    "was already open when it was opened here. Nothing was changed."
)
UNKNOWN_FILES = (
    "The files in /app of that time are not known: they were not kept yet, or the record of them "
    "was lost. Nothing was changed; without --files, variables can be brought back."
)
NAMES_LOST = "[wasm-kernel] Named checkpoints of earlier runs can't be restored: {why}.\n"
NAMES_MISSING = (
    "[wasm-kernel] Saved states that were damaged or missing are left out: {lost}. Named "
    "checkpoints of earlier runs may be missing.\n"
)
UNSAVED = (
    "[wasm-kernel] This session's variables can't be saved to disk ({why}). It goes on in memory; "
    "unsaved changes are lost when this kernel or sandbox ends.\n"
)
UNTAKEN = (
    "[wasm-kernel] The state after In[{cell}] ({label}) could not be kept ({why}); the variables "
    "themselves are all there. The next cell tries again; until then, a rollback leads to before "
    "that cell.\n"
)
KEEPS_NO_FILES = (
    "[wasm-kernel] Earlier versions of files can't be kept on disk ({why}): after a crash of the "
    "kernel, %undo --files would not know them.\n"
)
_NAMED = 5
_REASONS: Mapping[Reason, str] = {
    "large": "too large",
    "room": "no room left for it",
    "unreadable": "it can't be read",
    "unwritable": "something else is in its place",
    "changed": "its kept content was changed from outside",
}


def going_on(head: Commit, *, forked: bool, crashed: bool) -> str:
    """Returns the notice of a session that goes on."""
    after = _place(head)
    if forked:
        return (
            "[wasm-kernel] This session was forked off another one, or imported: variables and "
            f"files are as they were there after {after}.\n"
        )
    if crashed:
        return (
            "[wasm-kernel] The session goes on after a break: the variables are as they were after "
            f"{after}. Later cells are lost; the files in /app are as they were left.\n"
        )
    return f"[wasm-kernel] The session goes on: the variables are as they were after {after}.\n"


def restorable(names: Collection[str]) -> str:
    """Returns the quiet notice of named states of earlier runs."""
    first, listed = next(iter(names)), _first_names([*names])
    return _notice(
        f"Named checkpoints of earlier runs: {listed}. `%restore {first}` brings the variables "
        "back as they were there; `%checkpoints` lists them all."
    )


def names_evicted(why: str) -> str:
    """Returns the quiet notice of named states that were removed from an unused session."""
    return _notice(f"Saved variables of earlier runs can't be restored: {evicted(why)}.")


def lost(problem: Exception) -> str:
    """Returns the notice of variables that this version, at least, can't restore."""
    return f"[wasm-kernel] The variables begin fresh: {problem}. The files in /app are all there.\n"


def evicted(why: str) -> str:
    """Returns why the variables of an unused session were removed (`Holder.evicted`)."""
    if not why:
        return "another program has removed their saved states"
    if why == "age":
        return (
            "they were removed, with named states and earlier versions of files, as this session "
            "had not been used for as many days as WasmKernel.sessions_days says; raise it to "
            "keep them longer"
        )
    return (
        "they were removed to make room, with named states and earlier versions of files, as all "
        "sessions together took more than WasmKernel.sessions_bytes; raise it to keep more"
    )


def left_behind(folder: str, head: Commit | None) -> str:
    """Returns the log line of a session, of a workspace folder, whose last state could not be kept.

    `head` is the last commit that was kept.
    """
    where = "the beginning" if head is None else place_of(head.cell, head.label)
    return (
        f"The last variables of the session in {folder!r} could not be kept. Those after "
        f"{where} are kept; the files in /app are as they were left."
    )


def unwritten(names: Collection[str]) -> str:
    """Returns the error of checkpoints that are not on disk yet."""
    return (
        f"Named, but not on disk yet: {', '.join(names)}. The names hold as long as this kernel or "
        "sandbox runs, and are saved when the disk takes them; a crash before that loses them. "
        "Name the state again to wait for the disk once more."
    )


def lost_untaken(head: Commit | None) -> str:
    """Returns the sentence for a lost guest whose last cell's state could not be kept."""
    where = "fresh" if head is None else f"as they were after {_place(head)}"
    return (
        f"Later changes could not be kept and are lost: the variables are {where}. The files in "
        "/app are as the cell left them."
    )


def unreadable(commit: Commit, count: int, problem: Exception) -> str:
    """Returns the notice of a saved state that can't be read; `count` states are lost in all."""
    if not commit.parent:
        return lost(problem)
    also = f"; {count - 1} states that came later are lost, too" if count > 1 else ""
    return (
        f"[wasm-kernel] The saved state after {_place(commit)} can't be read any more ({problem}). "
        f"The variables are as they were before that{also}.\n"
    )


def dead(commit: Commit) -> str:
    """Returns the notice of a saved state that was left, as no guest runs in it."""
    return (
        f"[wasm-kernel] No guest runs in the saved state after {_place(commit)}. The variables are "
        "as they were before that.\n"
    )


def damaged(usable: RecoveredHistory, head: Commit) -> str:
    """Returns the notice of damaged states; the session goes on at a whole one."""
    doubt = (
        ", the newest state that can be used; that may not be where the session was left, and "
        "names of checkpoints may be missing"
    )
    return (
        f"[wasm-kernel] Saved states that were damaged or missing are left out: {usable.lost}. The "
        f"variables are as they were after {_place(head)}{'' if usable.is_certain else doubt}. The "
        "files in /app are as they were left.\n"
    )


def narrowed(cells: int, policy: ExecutionPolicy) -> str:
    """Returns the notice that the cap on the history's size leaves fewer cells to undo."""
    count = "only the last cell" if cells == 1 else f"only the last {cells} cells"
    advice = policy.door.raising("history_bytes", purpose="to undo more")
    return _notice(
        "The states of the last cells take more room on disk than is allowed "
        f"({readable(policy.history_bytes)}). From here on {count} can be undone; variables and "
        f"named checkpoints are still kept. {advice}"
    )


def _notice(text: str) -> str:
    return f"[wasm-kernel] {text.rstrip()}\n"


def no_room_for_names(policy: ExecutionPolicy) -> str:
    """Returns the refusal of another named state that would take too much room on disk."""
    advice = policy.door.raising("history_bytes", purpose="to name more")
    return (
        "The checkpoint was not made: named states stay on disk as long as the session, and with "
        f"this one they would take more than is allowed ({readable(policy.history_bytes)}). The "
        "variables and all checkpoints are as they were. Use the name of one that is not needed "
        f"any more. {advice}"
    ).rstrip()


def left_out(reasons: Mapping[str, str]) -> str:
    """Returns the notice of files that a fork lacks; `reasons` are by path."""
    named = [f"{path!a} ({reason})" for path, reason in list(reasons.items())[:_NAMED]]
    names = ", ".join([*named, "..."] if len(reasons) > _NAMED else named)
    return f"[wasm-kernel] {len(reasons)} of the parent's files are not in this fork: {names}.\n"


def _place(commit: Commit) -> str:
    place = place_of(commit.cell, commit.label)
    return f"{place} ({commit.label})" if commit.label else place


def not_kept(files: Mapping[str, NotKept], door: Door) -> str:
    """Returns the notice of files, by path, that a cell changed and that could not be kept."""
    advice = door.raising("file_copy_bytes", "files_history_bytes", purpose="to keep more")
    return _notice(
        f"{_each(files)} could not be kept as before this cell; %undo --files will leave the file "
        f"as it is. {advice}"
    )


def tell_restored(found: RestoredFiles, write: Callable[[str, str], None]) -> None:
    """Writes which files were restored and which could not be, or which stay as they are."""
    if found.left is not None:
        if names := [ascii(covered_by(path) or path)[1:-1] for path in found.left]:
            write("stdout", f"Files in /app stay as they are: {_first_names(names)}.{TAKE_BACK}\n")
        return
    groups = (
        ("brought back", [path for path in found.back if not covered_by(path)]),
        ("removed", [path for path in found.removed if not covered_by(path)]),
        ("of the notebook's folder seen again", list(filter(None, map(covered_by, found.removed)))),
        ("of the notebook's folder hidden again", list(filter(None, map(covered_by, found.back)))),
    )
    done = [
        f"{len(paths)} {what} ({_first_names([ascii(path)[1:-1] for path in paths])})"
        for what, paths in groups
        if paths
    ]
    write("stdout", f"Files in /app: {', '.join(done) or 'nothing to change'}.\n")
    if found.missed:
        write("stderr", f"[wasm-kernel] Not brought back: {_each(dict(found.missed))}.\n")


def reasons(found: RestoredFiles) -> dict[str, str]:
    """Returns why files could not be brought back, by their paths."""
    return {path: _REASONS[problem.why] for path, problem in found.missed}


def _each(files: Mapping[str, NotKept]) -> str:
    return _first_names([f"{ascii(path)[1:-1]} ({_reason(why)})" for path, why in files.items()])


def _reason(problem: NotKept) -> str:
    size = f", {readable(problem.size)}" if problem.size else ""
    return f"{_REASONS[problem.why]}{size}"


def _first_names(names: list[str]) -> str:
    return ", ".join(first_of(names, _NAMED))
