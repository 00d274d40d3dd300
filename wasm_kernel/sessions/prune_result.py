"""`PruneResult`: the result of pruning, as values and as a summary for people."""

from __future__ import annotations

from dataclasses import dataclass, field

from wasm_kernel.result import readable


@dataclass(frozen=True)
class PruneResult:
    """The result of `prune_sessions`.

    Attributes:
        deleted_sessions: The ids of the deleted sessions, the oldest first; in a dry run, of those
            that would be deleted.
        skipped_sessions: The ids of sessions that were left alone: they have no readable metadata,
            or an id that a person chose.
        reclaimed_bytes: The size of all files in the deleted sessions' workspaces; a file with two
            names counts once.
        errors: Why a session could not be deleted, by its id. The next pruning tries again.
        dry_run: True if nothing was really deleted.
        skip_reasons: Why a session was skipped, by its id: `no_metadata`, `corrupted_metadata`, or
            `not_a_uuid` for an old session whose id a person chose.
        in_use: The users of old sessions that were spared, by the sessions' ids: `running_cell` in
            this process, or `another_process`.
        reclaimed_private_bytes: The size of the deleted sessions' private files, such as variables
            and earlier versions of files, which lie elsewhere.
    """

    deleted_sessions: list[str] = field(default_factory=list)
    skipped_sessions: list[str] = field(default_factory=list)
    reclaimed_bytes: int = 0
    errors: dict[str, str] = field(default_factory=dict)
    dry_run: bool = False
    skip_reasons: dict[str, str] = field(default_factory=dict)
    in_use: dict[str, str] = field(default_factory=dict)
    reclaimed_private_bytes: int = 0

    def __str__(self) -> str:
        """Returns a summary for people: counts, bytes, and each reason and error."""
        mode, would = ("Dry run: ", "would be ") if self.dry_run else ("", "")
        own = self.reclaimed_private_bytes
        private = f", and {_specified(own)} of private files" if own else ""
        used = f"{len(self.in_use)} in use, " if self.in_use else ""
        summary = (
            f"{mode}{_counted(len(self.deleted_sessions))} {would}deleted, "
            f"{len(self.skipped_sessions)} skipped, {used}"
            f"{_specified(self.reclaimed_bytes)} {would}reclaimed{private}."
        )
        skipped = [f"  skipped {name}: {why}" for name, why in self.skip_reasons.items()]
        spared = [f"  in use {name}: {why}" for name, why in self.in_use.items()]
        failed = [f"  failed {name}: {why}" for name, why in self.errors.items()]
        return "\n".join([summary, *skipped, *spared, *failed])


def _counted(sessions: int) -> str:
    return f"{sessions} session" if sessions == 1 else f"{sessions} sessions"


def _specified(size: int) -> str:
    """Returns a size as the specification's summary has it, where 1,048,576 bytes are 1 MB."""
    return readable(size).replace("iB", "B")
