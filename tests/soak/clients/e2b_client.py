"""Uses a server by E2B's own Python clients, with asyncio and without; prints what they say."""

from __future__ import annotations

import asyncio

import e2b
from e2b_code_interpreter import AsyncSandbox, Sandbox

FRAME = "import pandas as pd\npd.DataFrame({'a': [1, 2]})"


def refused(call: object, *arguments: object, **options: object) -> None:
    """Prints the error of a call."""
    try:
        call(*arguments, **options)  # type: ignore[operator]
    except Exception as problem:
        print(type(problem).__name__)


def plain() -> None:
    """Uses a sandbox without asyncio."""
    sandbox = Sandbox.create(timeout=300, metadata={"run": "1"}, envs={"COLOUR": "red"})
    print(sandbox.run_code("import os; print(os.environ['COLOUR'])").logs.stdout)
    print(sandbox.run_code(FRAME).results[0].formats())
    print(sandbox.run_code("1 / 0").error.name, sandbox.run_code("x = 41; x + 1").text)
    print(sandbox.run_code("let y = 6; y * 7", language="typescript").text)
    print(sandbox.files.write("/home/user/in/a.csv", "a\n1\n").path)
    print(sandbox.run_code("open('in/a.csv').read()").text, sandbox.files.read("in/a.csv").split())
    print([each.path for each in sandbox.files.list(".", depth=2)], sandbox.files.exists("none"))
    print(sandbox.files.make_dir("b/c"), sandbox.files.rename("in/a.csv", "b/a.csv").path)
    sandbox.files.remove("b")
    context = sandbox.create_code_context()
    print(sandbox.run_code("x", context=context).error.name, len(sandbox.list_code_contexts()))
    sandbox.remove_code_context(context)
    (fork,) = sandbox.fork()
    print(fork.run_code("x").text, fork.kill())
    print(sandbox.get_metrics()[0].cpu_count, sandbox.get_info().metadata, sandbox.is_running())
    print(len(Sandbox.list(query=e2b.SandboxQuery(metadata={"run": "1"})).next_items()))
    sandbox.set_timeout(600)
    print(sandbox.pause(), sandbox.pause())
    refused(sandbox.run_code, "x")
    print(Sandbox.connect(sandbox.sandbox_id).run_code("x").text)
    refused(sandbox.files.read, "none")
    print(sandbox.commands.run("echo $COLOUR | tr a-z A-Z").stdout.strip())
    refused(sandbox.commands.run, "exit 3")
    refused(sandbox.pty.create, e2b.PtySize(rows=9, cols=9))
    refused(Sandbox.create, "an-image")
    refused(Sandbox.create, api_key="unknown")
    print(sandbox.kill(), sandbox.kill(), sandbox.is_running())
    refused(sandbox.run_code, "1")
    refused(sandbox.files.read, "a")


async def awaited() -> None:
    """Uses a sandbox with asyncio: streams, a time-out, files in pieces."""
    sandbox = await AsyncSandbox.create()
    lines: list[str] = []
    code = "import time\nfor i in range(3): print(i); time.sleep(0.1)"
    await sandbox.run_code(code, on_stdout=lambda message: lines.append(message.line))
    print(lines)
    try:
        await sandbox.run_code("n = 1\nwhile True: n += 1", timeout=2)
    except e2b.TimeoutException:
        print("timed out", (await sandbox.run_code("n > 1")).text)

    async def pieces() -> object:
        for piece in (b"a", b"b"):
            yield piece

    await sandbox.files.write("pieces", pieces(), gzip=True)
    print(await sandbox.files.read("pieces"), bytes(await sandbox.files.read("pieces", "bytes")))
    print(await sandbox.kill())


plain()
asyncio.run(awaited())
