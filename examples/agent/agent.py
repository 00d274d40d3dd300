"""An agent at work with `wasm-kernel mcp`, through the official Python client.

pip install 'wasm-kernel[mcp]'
python examples/agent/agent.py
"""

import asyncio
import sys
from pathlib import Path

from mcp import Client
from mcp.client.stdio import StdioServerParameters

SERVER = StdioServerParameters(
    command=str(Path(sys.executable).with_name("wasm-kernel")), args=["mcp"]
)
ORDERS = "city,amount\nOslo,120\nRome,80\nOslo,200\nRome,310\nPisa,45\n"


async def main():
    async with Client(SERVER) as client:

        async def call(tool, **arguments):
            result = await client.call_tool(tool, arguments)
            print(f"{tool}: " + "\n".join(describe(block) for block in result.content), "\n")
            return result

        await call("write_file", path="orders.csv", content=ORDERS)
        await call(
            "execute_code", code="import pandas as pd\norders = pd.read_csv('orders.csv')\norders"
        )
        await call(
            "execute_code", code="orders.groupby('town').amount.sum()"
        )  # an error, as happens
        await call("execute_code", code="totals = orders.groupby('city').amount.sum()\ntotals")
        await call("execute_code", code="totals.plot.bar(title='Orders');")
        await call("checkpoint", name="totals")
        await call("execute_code", code="del orders, totals")
        await call("restore", name="totals")
        await call("execute_code", code="totals.to_csv('totals.csv'); totals.idxmax()")
        await call("get_workspace_info")
        await call("read_file", path="totals.csv")


def describe(block):
    match block.type:
        case "text":
            return block.text
        case "image":
            return f"<{block.mime_type}, {len(block.data):,} characters of base64>"
    return f"<{block.uri}>"


if __name__ == "__main__":
    asyncio.run(main())
