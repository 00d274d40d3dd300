"""Every scenario of the specification has a test of its name.

`Log file read operation` of `workspace-operations` is `test_log_file_read_operation` in
`test_workspace_operations.py`. `session-design` has no scenarios; it has those of its decisions
that no scenario of another document holds.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCENARIOS = {
    "session-management": """
        Generate unique session ID; Session ID format validation; Create session workspace;
        Resolve existing session workspace; Custom workspace root; Create new session with
        sandbox; Create session with custom policy; Create session with custom logger;
        Retrieve sandbox for existing session; Files isolated between sessions; WASI preopen
        scoped to session; Persist files across executions; Track file changes per
        execution; Delete session workspace; Prevent path traversal in deletion; Safe
        deletion when workspace missing; Log session creation; Log session retrieval; Log
        session deletion; Include session ID in execution logs; Include session ID in result
        metadata; Workspace path reflects session; Non-session sandbox usage unchanged;
        Explicit workspace parameter still works; Public API surface extended additively.
    """,
    "workspace-operations": """
        List all files in session; List files with pattern filter; List empty session
        workspace; List files with custom workspace root; Read text file from session; Read
        binary file from session; Read nested file; Read nonexistent file; Reject path
        traversal in read; Write new file to session; Write nested file with directory
        creation; Overwrite existing file with overwrite=True; Reject overwrite with
        overwrite=False; Reject path traversal in write; Delete single file; Delete empty
        directory; Delete directory with recursive=True; Reject non-recursive delete of
        non-empty directory; Reject path traversal in delete; Delete nonexistent path;
        Validate relative paths; Reject absolute paths; Resolve symlinks safely; Normalize
        path separators; Log file list operation; Log file read operation; Log file write
        operation; Log file delete operation; File not found error; Permission error;
        Invalid session ID; list_session_files type hints; read_session_file type hints;
        write_session_file type hints; Path validation helper type hints.
    """,
    "metadata-and-pruning": """
        Create session with metadata; Session creation fails gracefully if metadata write
        fails; Update timestamp on successful execution; Skip timestamp update for sessions
        without metadata; Handle corrupted metadata gracefully; Metadata schema validation;
        Metadata is hidden from guest code; Prune sessions older than threshold; Dry-run
        mode lists candidates without deleting; Calculate disk space reclaimed; Handle
        permission errors gracefully; Custom workspace root; PruneResult contains operation
        details; PruneResult supports string representation; Log pruning lifecycle events;
        Log warnings for skipped sessions; Validate workspace root before pruning; Prevent
        deletion of non-session directories; Execute legacy session without metadata; Prune
        skips legacy sessions.
    """,
    "automatic-sessions": """
        Session Creation on First Use; Session Persistence; Per-Language Sessions; stdio
        Session Binding; HTTP Session Binding; Session Timeout; Explicit Session Management;
        Session Cleanup; Workspace Information; Session Listing; Memory Limits; Concurrent
        Session Limits; Fuel Budget Enforcement.
    """,
    "session-design": """
        Stateless session helpers; File operations as standalone functions; Exports of the
        public API; Signatures of the API; Both patterns work simultaneously.
    """,
}
"""The titles of each document's scenarios, in its own order and words."""
COUNTS = {
    "session-management": 25,
    "workspace-operations": 35,
    "metadata-and-pruning": 20,
    "automatic-sessions": 13,
    "session-design": 5,
}


def name_of(title: str) -> str:
    """The name of a scenario's test."""
    words = re.sub(r"[^a-z0-9]+", "_", title.lower().replace("'", ""))
    return "test_" + words.strip("_")


@pytest.mark.parametrize("document", SCENARIOS)
def test_each_scenario_has_a_test_in_the_documents_order(document: str) -> None:
    expected = [name_of(title) for title in SCENARIOS[document].strip(" .\n").split(";")]
    assert len(set(expected)) == COUNTS[document]
    tree = ast.parse((HERE / f"test_{document.replace('-', '_')}.py").read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert [name for name in names if name in expected] == expected
