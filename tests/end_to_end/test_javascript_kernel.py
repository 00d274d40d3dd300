"""The JavaScript kernel: the protocol's own test suite, and what a notebook does with it."""

from __future__ import annotations

from collections.abc import Iterator

import jupyter_kernel_test
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

KERNEL = "wasm-javascript"


class TestProtocol(jupyter_kernel_test.KernelTests):
    kernel_name = KERNEL
    language_name = "javascript"
    file_extension = ".ts"
    code_hello_world = "console.log('hello, world')"
    code_stderr = "console.error('test')"
    completion_samples = [
        {"text": "struct", "matches": {"structuredClone"}},
        {"text": "Math.cei", "matches": {"ceil"}},
    ]
    complete_code_samples = ["1", "console.log('hello, world')", "let x: number = 1", "f(`a\nb`)"]
    incomplete_code_samples = ["function f() {", "const a = [1,", "`half", "x +", "/* open"]
    invalid_code_samples = ["f(]", "'half"]
    code_generate_error = "throw new Error('x')"
    code_execute_result = [
        {"code": "1+2+3", "result": "6"},
        {"code": "[1, 2, 3].map(n => n * n)", "result": "[ 1, 4, 9 ]"},
    ]
    code_display_data = [
        {"code": "display.html('<b>test</b>')", "mime": "text/html"},
        {"code": "display.markdown('*test*')", "mime": "text/markdown"},
        {"code": "display({ 'text/latex': '$x$' })", "mime": "text/latex"},
        {"code": "display([{ a: 1 }])", "mime": "text/html"},
    ]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "range", "search")
    code_inspect_sample = "structuredClone"
    code_clear_output = "display.clear()"


# the base classes are not tests themselves
del jupyter_kernel_test


@pytest.fixture(scope="module")
def client() -> Iterator[BlockingKernelClient]:
    manager = KernelManager(kernel_name=KERNEL)
    manager.start_kernel()
    found = manager.client()
    found.start_channels()
    found.wait_for_ready(timeout=60)
    try:
        yield found
    finally:
        found.stop_channels()
        manager.shutdown_kernel(now=True)


def texts(client: BlockingKernelClient, code: str, *, answer: str = "") -> tuple[str, str]:
    """Returns the text that a cell prints, and its value or its error's name."""
    printed, value = [], ""

    def hear(message: dict[str, dict[str, str | dict[str, str]]]) -> None:
        nonlocal value
        content = message["content"]
        if "text" in content:
            printed.append(str(content["text"]))
        if isinstance(data := content.get("data"), dict):
            value = data["text/plain"]
        value = str(content.get("ename", value))

    def reply(message: object) -> None:
        client.input(answer)

    client.execute_interactive(
        code, timeout=60, output_hook=hear, stdin_hook=reply, allow_stdin=bool(answer)
    )
    return "".join(printed), value


def test_a_cell_asks_its_user(client: BlockingKernelClient) -> None:
    code = "const name: string = await prompt('Who? '); `hello ${name}`"
    assert texts(client, code, answer="you") == ("", "'hello you'")


def test_commands_stand_at_the_top_of_a_cell(client: BlockingKernelClient) -> None:
    texts(client, "var a = 1")
    printed, value = texts(client, "// before\n%checkpoint one\n%session_info\na = 2")
    assert "Checkpoint 'one'" in printed
    assert "confinement" in printed
    assert value == "2"
    printed, _ = texts(client, "%undo")
    assert printed.startswith("Undone: ")
    assert texts(client, "a") == ("", "1")
    assert "fork" in texts(client, "%fork")[0].lower()
    assert texts(client, "%nothing_like_it")[1] == "UsageError"
    assert texts(client, "const text = `\n%fork\n`; text.length") == ("", "7")


def test_the_notebooks_folder_is_where_cells_begin(client: BlockingKernelClient) -> None:
    assert texts(client, "process.cwd()") == ("", "'/notebook'")
