"""The scenarios through an older official client: `old_client.py stdio COMMAND...` or `http URL`.

It runs in its own environment, without pytest.
"""

import asyncio
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client


async def use(session: ClientSession) -> None:
    told = await session.initialize()
    assert told.instructions and len(told.instructions) < 2000
    names = {tool.name for tool in (await session.list_tools()).tools}
    assert {"execute_code", "get_workspace_info", "undo", "write_file"} <= names

    async def call(tool: str, **arguments: object) -> str:
        result = await session.call_tool(tool, arguments)
        assert not result.structuredContent
        return "\n".join(block.text for block in result.content if block.type == "text")

    heard = []

    async def hear(progress: float, total: object, message: object) -> None:
        heard.append(message)

    await call("execute_code", code="import math; x = 6")
    assert "720" in await call("execute_code", code="math.factorial(x)")
    made = await session.call_tool("execute_code", {"code": "open('a.txt', 'w').write('hi'); None"})
    (link,) = [block for block in made.content if block.type == "resource_link"]
    assert (await session.read_resource(link.uri)).contents[0].text == "hi"
    code = "import time\nfor i in range(3): print('step', i, flush=True); time.sleep(1)"
    await session.call_tool("execute_code", {"code": code}, progress_callback=hear)
    assert any("step" in str(each) for each in heard), heard
    assert "x: int" in await call("get_workspace_info")
    await call("execute_code", code="x = 7")
    await call("undo")
    assert "\n6\n" in await call("execute_code", code="x")
    assert "ZeroDivisionError" in await call("execute_code", code="1 / 0")
    await call("create_session")
    assert (await call("list_sessions")).count("session=") == 2


async def main() -> None:
    if sys.argv[1] == "stdio":
        server = StdioServerParameters(command=sys.argv[2], args=sys.argv[3:], env=dict(os.environ))
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            await use(session)
    else:
        async with (
            streamablehttp_client(sys.argv[2]) as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await use(session)
    print("all well")


asyncio.run(main())
