"""LiteLLM's code interpreter in E2B's sandboxes of `https://api.DOMAIN`, with a scripted model."""

import asyncio
import json
import os
import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it is not fetched
import litellm
from litellm.integrations.code_interpreter_interception.handler import (
    CodeInterpreterInterceptionLogger,
)
from litellm.sandbox.sandbox_tools import register_sandbox_tools

litellm.suppress_debug_info = True
DOMAIN, resolve = os.environ["E2B_DOMAIN"], socket.getaddrinfo
STEPS = ["import pandas as pd\ndata = pd.Series([1, 2, 4])\nprint(data.sum())", "print(data.max())"]


def resolve_here(name: Any, *rest: Any, **more: Any) -> Any:
    """Finds the domain and its sandboxes on this machine, as its DNS would."""
    own = str(name).endswith(DOMAIN.partition(":")[0])
    return resolve("127.0.0.1" if own else name, *rest, **more)


socket.getaddrinfo = resolve_here


class Model(BaseHTTPRequestHandler):
    """A model that runs the steps, then answers with their outputs."""

    def do_POST(self) -> None:
        """Answers a request for a completion."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        seen = [each["content"] for each in asked["messages"] if each["role"] == "tool"]
        message: dict[str, Any] = {"role": "assistant", "content": f"{seen}"}
        if len(seen) < len(STEPS):
            name = asked["tools"][0]["function"]["name"]
            called = {"name": name, "arguments": json.dumps({"code": STEPS[len(seen)]})}
            call = {"id": f"call_{len(seen)}", "type": "function", "function": called}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        content = {"id": "1", "object": "chat.completion", "created": 1, "model": "scripted"}
        text = json.dumps({**content, "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""


async def main() -> None:
    """Runs a cell, a cell that fails, and an agent's turns."""
    where = {"api_base": f"https://api.{DOMAIN}", "api_key": os.environ["E2B_API_KEY"]}
    for code in ("print(6 * 7)", "1 / 0"):
        ran = await litellm.acode_interpreter_tool(provider="e2b", code=code, **where)
        print(repr(ran.stdout), ran.error and ran.error["name"])
    register_sandbox_tools(
        [{"sandbox_tool_name": "ours", "litellm_params": {"sandbox_provider": "e2b", **where}}]
    )
    litellm.callbacks = [CodeInterpreterInterceptionLogger(sandbox_tool_name="ours")]
    server = HTTPServer(("127.0.0.1", 0), Model)
    Thread(target=server.serve_forever, daemon=True).start()
    answer = await litellm.acompletion(
        model="openai/scripted",
        api_base=f"http://127.0.0.1:{server.server_port}/v1",
        api_key="none",
        messages=[{"role": "user", "content": "What is the sum, and what the maximum?"}],
        tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
    )
    print(answer.choices[0].message.content)


asyncio.run(main())
