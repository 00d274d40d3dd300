"""The host's own folder in a workspace, and what is where in it."""

from __future__ import annotations

PRIVATE = ".wasm_kernel"
"""The folder's name; it does not exist for the guest."""

SCRATCH = f"{PRIVATE}/tmp"  # noqa: S108 - not the host's
"""The guest's /tmp, below the workspace."""
