"""The broker's handlers for the JavaScript guest: they fill the cache, and fetch packages."""

from __future__ import annotations

from wasm_kernel.folders.private import OpenPrivate
from wasm_kernel.guests.base import GuestLanguage, PrepareGuest, preparing
from wasm_kernel.guests.javascript.npm import FetchPackages, fetching
from wasm_kernel.linux.broker import Handlers


def broker_handlers(private: OpenPrivate) -> Handlers:
    """Returns what the broker does for the guest of one sandbox."""
    return {PrepareGuest: preparing(_language), FetchPackages: fetching(private)}


def _language() -> GuestLanguage:
    from wasm_kernel.guests.javascript.language import shared_language

    return shared_language()
