#!/bin/sh
# A client of `wasm-kernel mcp`, as an agent would be.
cd "$(dirname "$0")" && exec python agent.py
