"""Real agents: other clients, and fifty at once.

The other clients come from their registries: the older official one for Python, those for
TypeScript, and the Inspector's command line. All do the same things over each transport.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import TextContent

from tests.faces import completed, happens, wait_for
from tests.mcp.clients import MODERN, HttpServer, server_environment, serving

pytestmark = pytest.mark.soak
CLIENTS = Path(__file__).with_name("clients")
OLD, TYPESCRIPT_1, TYPESCRIPT_2 = "mcp>=1.20,<2", "@modelcontextprotocol/sdk@1", "client@2"
INSPECTOR = "@modelcontextprotocol/inspector@2"
COMMAND = [str(Path(sys.executable).with_name("wasm-kernel")), "mcp"]
MANY, CALLS = 50, 8


@pytest.fixture(scope="module")
def environment_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return server_environment(tmp_path_factory.mktemp("mcp"))


@pytest.fixture(scope="module")
def http(environment_of: dict[str, str]) -> Iterator[HttpServer]:
    with serving(environment_of) as server:
        yield server


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The commands of other clients, in environments of their own."""
    folder = tmp_path_factory.mktemp("foreign")
    python = folder / "old" / "bin" / "python"
    run(sys.executable, "-m", "venv", str(folder / "old"))
    run(str(python), "-m", "pip", "install", "--quiet", OLD)
    run("npm", "install", "--silent", "--prefix", str(folder), TYPESCRIPT_1)
    run(
        "npm",
        "install",
        "--silent",
        "--prefix",
        str(folder),
        f"@modelcontextprotocol/{TYPESCRIPT_2}",
    )
    script = folder / "client.mjs"
    script.write_text((CLIENTS / "client.mjs").read_text())
    return {
        "python 1": [str(python), str(CLIENTS / "old_client.py")],
        "typescript 1": ["node", str(script), "sdk"],
        "typescript 2": ["node", str(script), "client"],
    }


def run(*command: str, **options: Any) -> str:
    """The output of a command that must succeed."""
    ended = completed(command, timeout=600, **options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return str(ended.stdout)


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("client", ["python 1", "typescript 1", "typescript 2"])
def test_other_clients_do_the_same(
    foreign: dict[str, list[str]],
    environment_of: dict[str, str],
    http: HttpServer,
    client: str,
    transport: str,
) -> None:
    server = COMMAND if transport == "stdio" else [http.url]
    assert "all well" in run(*foreign[client], transport, *server, env=environment_of)


def test_the_inspector_lists_and_calls_the_tools(environment_of: dict[str, str]) -> None:
    inspector = ["npx", "--yes", INSPECTOR, "--cli", *COMMAND, "--method"]
    listed = json.loads(run(*inspector, "tools/list", env=environment_of))
    assert "execute_code" in [tool["name"] for tool in listed["tools"]]
    call = ["tools/call", "--tool-name", "execute_code", "--tool-arg", "code=6*7"]
    assert "[result]\\n42" in run(*inspector, *call, env=environment_of)


def test_fifty_clients_at_once(environment_of: dict[str, str]) -> None:
    """No client sees another's state; some leave without notice; nothing is left at the end."""
    seconds = ("--idle-seconds", "2", "--expire-seconds", "45")
    options = (*seconds, "--memory", "200000", "--owner-sessions", str(MANY))
    data = Path(environment_of["XDG_DATA_HOME"]) / "wasm-kernel" / "mcp" / "sessions"
    others = {*data.glob("*/")}  # folders of the other server, which is still running
    with serving(environment_of, *options) as server:
        before = numbers(server)
        asyncio.run(crowd(server.url))
        assert "wasm_kernel_sessions" in server.page("/metrics")
        assert happens(lambda: numbers(server)["sessions"] == 0, 300)
        assert numbers(server)["memory"] == before["memory"] == 0
        wait_for(lambda: {*data.glob("*/")} <= others, "the folders' end")


def numbers(server: HttpServer) -> dict[str, float]:
    page = server.page("/metrics")
    states = re.findall(r'^wasm_kernel_sessions\{state="\w+"\} ([\d.]+)$', page, re.MULTILINE)
    memory = re.search(r"^wasm_kernel_memory_bytes ([\d.e+]+)$", page, re.MULTILINE)
    assert memory is not None
    return {"sessions": sum(map(float, states)), "memory": float(memory[1])}


async def crowd(url: str) -> None:
    chance = random.Random(1)
    began = time.monotonic()
    tasks = [one_of_many(url, number, chance.random()) for number in range(MANY)]
    seconds = sum(await asyncio.gather(*tasks)) / MANY / CALLS
    print(
        f"{MANY} clients, {CALLS} calls each: {time.monotonic() - began:.1f} s in all, "
        f"{seconds:.2f} s a call"
    )


async def in_javascript(says: Any, number: int, chance: float) -> None:
    await says(f"let mine = [{number}]")
    for turn in range(1, CALLS):
        await asyncio.sleep(chance / 5)
        expected = f"[{', '.join([str(number)] * turn)}]"
        text = await says("JSON.stringify(mine).replaceAll(',', ', ')")
        assert expected in text
        await says("mine.push(mine[0]); 1")


async def one_of_many(url: str, number: int, chance: float) -> float:
    mode = ("legacy", "auto", MODERN)[number % 3]
    began = time.monotonic()
    async with Client(url, mode=mode) as client:
        handle: dict[str, str] = {}

        async def says(code: str) -> str:
            result = await client.call_tool("execute_code", {"code": code, **handle})
            return "\n".join(each.text for each in result.content if isinstance(each, TextContent))

        if number % 5 == 0:
            handle["language"] = "javascript"
        if mode == MODERN:  # other clients with the same address have begun sessions
            made = await client.call_tool("create_session", handle)
            found = re.search(r'session="([\w-]+)"', str(made.content))
            assert found is not None
            handle["session"] = found[1]
        if number % 5 == 0:
            await in_javascript(says, number, chance)
            return time.monotonic() - began
        await says(f"mine = [{number}]; open('who', 'w').write('{number}'); None")
        for turn in range(1, CALLS):
            await asyncio.sleep(chance / 5)
            expected = f"{[number] * turn} {number}"
            assert expected in await says("print(mine, open('who').read()); mine.append(mine[0])")
        if chance < 0.3:
            leaving = asyncio.ensure_future(says("import time; time.sleep(100)"))
            await asyncio.sleep(0.1)
            leaving.cancel()
    return time.monotonic() - began
