"""The command `wasm-kernel serve`: all doors over HTTP, on one address and for the same clients."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from wasm_kernel.frontends.mcp.command import add_service_options, run

if TYPE_CHECKING:
    from wasm_kernel.frontends.http.limits import ClientLimits
    from wasm_kernel.frontends.http.serving import Address, App
    from wasm_kernel.frontends.mcp.sessions import AgentSessions

_OF_AGENTS = ("/mcp", "/healthz", "/metrics")


def add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command to those of `wasm-kernel`."""
    serve = commands.add_parser(
        "serve",
        help="serve sessions over HTTP, to clients of E2B's API and to agents",
        description="Serves sessions over HTTP: to clients of E2B's API, and to agents at /mcp.",
    )
    serve.add_argument("http", metavar="HOST:PORT", help="the address to listen on")
    add_service_options(serve, sessions=1_000, owner_sessions=100)
    serve.set_defaults(run=lambda options: run(options, _beside), admin=False)


def _beside(agents: App, sessions: AgentSessions, address: Address, clients: ClientLimits) -> App:
    """Returns the application that sends each request to its door."""
    from wasm_kernel.frontends.e2b.app import SandboxApi
    from wasm_kernel.frontends.e2b.sandboxes import Sandboxes
    from wasm_kernel.frontends.http.serving import by_path

    sandboxes = Sandboxes(sessions.service, sessions.policy, sessions.host)
    return by_path(_OF_AGENTS, agents, SandboxApi(sandboxes, address, clients))
