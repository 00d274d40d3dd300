"""The shortest code that makes ipykernel a tool, which an agent would use without a sandbox."""

from __future__ import annotations

from jupyter_client.manager import start_new_async_kernel
from mcp.server.mcpserver import MCPServer

server = MCPServer("ipykernel")
kernels: list[object] = []


@server.tool()
async def execute_code(code: str) -> str:
    """Runs a cell; returns its outputs."""
    if not kernels:
        kernels.extend(await start_new_async_kernel())
    shown: list[str] = []

    def hear(message: dict[str, dict[str, object]]) -> None:
        content = message["content"]
        if "text" in content:
            shown.append(str(content["text"]))
        elif isinstance(data := content.get("data"), dict):
            shown.append(str(data.get("text/plain", "")))

    await kernels[1].execute_interactive(code, output_hook=hear)  # type: ignore[attr-defined]
    return "\n".join(shown)


if __name__ == "__main__":
    server.run()
