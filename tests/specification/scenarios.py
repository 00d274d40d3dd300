"""The titles of the specification's scenarios, by document, in its own order and words.

Each has a test of its name: `Log file read operation` of `workspace-operations` is
`test_log_file_read_operation` in `test_workspace_operations.py`. `session-design` has no scenarios;
its decisions stand here in its place. Of `automatic-sessions`, what an MCP server is for stands
with that server.
"""

from __future__ import annotations

import re

SCENARIOS: dict[str, tuple[str, ...]] = {
    "session-management": (
        "Generate unique session ID",
        "Session ID format validation",
        "Create session workspace",
        "Resolve existing session workspace",
        "Custom workspace root",
        "Create new session with sandbox",
        "Create session with custom policy",
        "Create session with custom logger",
        "Retrieve sandbox for existing session",
        "Files isolated between sessions",
        "WASI preopen scoped to session",
        "Persist files across executions",
        "Track file changes per execution",
        "Delete session workspace",
        "Prevent path traversal in deletion",
        "Safe deletion when workspace missing",
        "Log session creation",
        "Log session retrieval",
        "Log session deletion",
        "Include session ID in execution logs",
        "Include session ID in result metadata",
        "Workspace path reflects session",
        "Non-session sandbox usage unchanged",
        "Explicit workspace parameter still works",
        "Public API surface extended additively",
    ),
    "workspace-operations": (
        "List all files in session",
        "List files with pattern filter",
        "List empty session workspace",
        "List files with custom workspace root",
        "Read text file from session",
        "Read binary file from session",
        "Read nested file",
        "Read nonexistent file",
        "Reject path traversal in read",
        "Write new file to session",
        "Write nested file with directory creation",
        "Overwrite existing file with overwrite=True",
        "Reject overwrite with overwrite=False",
        "Reject path traversal in write",
        "Delete single file",
        "Delete empty directory",
        "Delete directory with recursive=True",
        "Reject non-recursive delete of non-empty directory",
        "Reject path traversal in delete",
        "Delete nonexistent path",
        "Validate relative paths",
        "Reject absolute paths",
        "Resolve symlinks safely",
        "Normalize path separators",
        "Log file list operation",
        "Log file read operation",
        "Log file write operation",
        "Log file delete operation",
        "File not found error",
        "Permission error",
        "Invalid session ID",
        "list_session_files type hints",
        "read_session_file type hints",
        "write_session_file type hints",
        "Path validation helper type hints",
    ),
    "metadata-and-pruning": (
        "Create session with metadata",
        "Session creation fails gracefully if metadata write fails",
        "Update timestamp on successful execution",
        "Skip timestamp update for sessions without metadata",
        "Handle corrupted metadata gracefully",
        "Metadata schema validation",
        "Metadata is hidden from guest code",
        "Prune sessions older than threshold",
        "Dry-run mode lists candidates without deleting",
        "Calculate disk space reclaimed",
        "Handle permission errors gracefully",
        "Custom workspace root",
        "PruneResult contains operation details",
        "PruneResult supports string representation",
        "Log pruning lifecycle events",
        "Log warnings for skipped sessions",
        "Validate workspace root before pruning",
        "Prevent deletion of non-session directories",
        "Execute legacy session without metadata",
        "Prune skips legacy sessions",
    ),
    "automatic-sessions": (
        "Session Persistence",
        "Memory Limits",
        "Fuel Budget Enforcement",
    ),
    "session-design": (
        "Stateless session helpers",
        "Session ID as directory name",
        "File operations as standalone functions",
        "Session id in the result's metadata",
        "Lifecycle: create, use, clean up",
        "Attack vectors prevented",
        "Log events added",
        "Exports of the public API",
        "Signatures of the API",
        "Both patterns work simultaneously",
    ),
}


def name_of(title: str) -> str:
    """The name of a scenario's test."""
    words = re.sub(r"[^a-z0-9]+", "_", title.lower().replace("'", ""))
    return "test_" + words.strip("_")
