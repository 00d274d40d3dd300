"""The host's own folder in a workspace, and what is where in it."""

from __future__ import annotations

PRIVATE = ".wasm_kernel"
"""The folder's name; it does not exist for the guest."""

SCRATCH = f"{PRIVATE}/tmp"  # noqa: S108 - not the host's
"""The guest's /tmp, below the workspace."""

PACKAGES = f"{PRIVATE}/packages"
"""Packages of this session alone; the guest reads them, and can't change them."""

SITE = f"{PACKAGES}/site-packages"
"""The folder in it that the guest imports from."""

FETCHED = f"{PRIVATE}/fetched"
"""Where packages lie before they are checked, out of the guest's sight."""

KEPT = f"{PRIVATE}/files"
"""Earlier versions of the workspace's files."""

LOOSE = f"{PRIVATE}/loose"
"""Files that the guest has open and that have no name any more."""

HISTORY = f"{PRIVATE}/history"
"""The history of the guest's memory, below the workspace."""
